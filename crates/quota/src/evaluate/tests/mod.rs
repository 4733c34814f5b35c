use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::request::{JWT_AUTHN, PeerName, Request};

/// A request made of named facts, which notes what it is asked for. Claims are `payload/path/to/claim`.
#[derive(Default)]
struct Fake {
    facts: BTreeMap<String, Vec<u8>>,
    asked: RefCell<Vec<String>>,
}

impl Fake {
    fn new<V: AsRef<[u8]>>(facts: &[(&str, V)]) -> Self {
        let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), value.as_ref().to_vec()));
        Self { facts: facts.collect(), asked: RefCell::default() }
    }

    fn fact(&self, name: &str) -> Option<Vec<u8>> {
        self.asked.borrow_mut().push(name.to_owned());
        self.facts.get(name).cloned()
    }
}

impl Request for Fake {
    fn method(&self) -> Option<Vec<u8>> {
        self.fact(":method")
    }
    fn path(&self) -> Option<Vec<u8>> {
        self.fact(":path")
    }
    fn authority(&self) -> Option<Vec<u8>> {
        self.fact(":authority")
    }
    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        self.fact(name).into_iter().collect()
    }
    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        let path = path.join("/");
        self.fact(&if filter == JWT_AUTHN { path } else { format!("{filter}:{path}") })
    }
    fn peer(&self, name: PeerName) -> Option<Vec<u8>> {
        self.fact(&format!("{name:?}"))
    }
    fn source_address(&self) -> Option<Vec<u8>> {
        self.fact("address")
    }
    fn route_name(&self) -> Option<Vec<u8>> {
        self.fact("route")
    }
}

fn config(identities: Value, policies: &[Value]) -> Config {
    let policies: Vec<_> = policies
        .iter()
        .enumerate()
        .map(|(i, policy)| {
            let mut whole = json!({"name": format!("p{i}"), "quota": 5, "window": "1m"});
            whole.as_object_mut().unwrap().extend(policy.as_object().unwrap().clone());
            whole
        })
        .collect();
    let text = json!({
        "domain": "shop", "store": {"cluster": "store"}, "identities": identities, "policies": policies,
    });
    Config::parse(text.to_string().as_bytes()).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The keys of all checks, without `shop:p<n>:`; `deny` for a missing identity.
fn keys<V: AsRef<[u8]>>(config: &Config, facts: &[(&str, V)]) -> Vec<String> {
    match config.evaluate(&Fake::new(facts)).checks {
        Err(MissingIdentity { policy }) => vec![format!("deny {policy}")],
        Ok(checks) => checks
            .iter()
            .map(|check| {
                let key = check.counter.key.strip_prefix("shop:").unwrap();
                let (policy, partition) = key.split_once(':').unwrap();
                assert_eq!(policy, &*config.policies[check.policy].name);
                partition.to_owned()
            })
            .collect(),
    }
}

const NOTHING: [(&str, &str); 0] = [];

#[test]
fn a_policy_without_conditions_and_partition_counts_everyone_and_asks_for_nothing() {
    let config = config(json!({}), &[json!({})]);
    let request = Fake::default();
    let checks = config.evaluate(&request).checks.unwrap();
    let counter = Counter { key: "shop:p0:{*}".into(), quota: 5, window: Window::new(60, 0).unwrap() };
    assert_eq!(checks, [Check { policy: 0, counter, cost: NonZeroU64::MIN }]);
    assert_eq!(*request.asked.borrow(), [""; 0]);
}

#[test]
fn all_conditions_must_hold() {
    let matching =
        json!({"methods": ["GET", "HEAD"], "path": {"prefix": "/api/"}, "hosts": ["*.EXAMPLE.org.", "a.b"]});
    let config = config(json!({}), &[json!({ "match": matching })]);
    for (method, path, host, applies) in [
        ("GET", "/api/x?y", "www.example.org:80", true),
        ("HEAD", "/api/", "A.B.", true),
        ("get", "/api/x", "a.b", false),
        ("GET", "/api?/api/", "a.b", false),
        ("GET", "/x#/api/", "a.b", false),
        ("GET", "/api/x", "example.org", false),
        ("GET", "/api/x", "x.a.b", false),
    ] {
        let facts = [(":method", method), (":path", path), (":authority", host)];
        assert_eq!(!keys(&config, &facts).is_empty(), applies, "{facts:?}");
        for missing in 0..3 {
            let mut fewer = facts.to_vec();
            fewer.remove(missing);
            assert!(keys(&config, &fewer).is_empty(), "{fewer:?}");
        }
    }
}

#[test]
fn the_first_source_that_yields_a_value_wins() {
    let caller = json!([{"jwt": {"claim": "sub"}}, {"header": {"name": "X-Api-Key"}}, {"client_ip": {}}]);
    let config = config(json!({ "caller": caller }), &[json!({"partition_by": ["caller"]})]);
    for (facts, key) in [
        (
            vec![("jwt_payload/sub", "alice"), ("x-api-key", "k"), ("address", "192.0.2.7:1")],
            "{jwt.sub=alice}",
        ),
        (
            vec![("jwt_payload/sub", ""), ("x-api-key", "k"), ("address", "192.0.2.7:1")],
            "{header.x-api-key=k}",
        ),
        (vec![("x-api-key", ""), ("address", "192.0.2.7:1")], "{ip=192.0.2.7}"),
        (vec![("address", "[2001:db8:1:2:3::4]:1")], "{ip=2001:db8:1:2::/64}"),
        (vec![("address", "[::ffff:192.0.2.7]:1")], "{ip=192.0.2.7}"),
    ] {
        assert_eq!(keys(&config, &facts), [key]);
    }
    assert!(keys(&config, &[("address", "/run/a.sock")]).is_empty());
}

#[test]
fn claims_are_nested_by_dots_and_several_must_all_be_there() {
    let identities = json!({
        "user": [{"jwt": {"claims": ["iss", "sub"]}}, {"jwt": {"payload": "other", "claim": "realm.tenant"}}],
    });
    let config = config(identities, &[json!({"partition_by": ["user", "method"]})]);
    let facts = [("jwt_payload/iss", "https://idp"), ("jwt_payload/sub", "a,b"), (":method", "GET")];
    assert_eq!(keys(&config, &facts), ["{jwt.iss=https://idp,jwt.sub=a%2Cb,method=GET}"]);
    let facts = [("jwt_payload/sub", "a"), ("other/realm/tenant", "t"), (":method", "GET")];
    assert_eq!(keys(&config, &facts), ["{jwt.realm.tenant=t,method=GET}"]);
}

#[test]
fn facts_of_the_request_itself_are_normalized() {
    let by = json!({"partition_by": ["route", "host", "path", "method"]});
    let config = config(json!({}), &[by]);
    let facts =
        [(":method", "GET"), (":path", "/a b?q=1#f"), (":authority", "Shop.example.:443"), ("route", "r 1")];
    assert_eq!(keys(&config, &facts), ["{route=r%201,host=shop.example,path=/a%20b,method=GET}"]);
    assert!(keys(&config, &facts[..3]).is_empty());
}

#[test]
fn a_missing_identity_is_skipped_denied_or_shared() {
    let identities = json!({"caller": [{"jwt": {"claim": "sub"}}]});
    let policy = |on_missing: &str, mode: &str| json!({"partition_by": ["method", "caller"], "on_missing": on_missing, "mode": mode});
    for (policies, expected) in [
        (vec![policy("skip", "enforce"), policy("shared", "enforce")], vec!["{method=GET,-}"]),
        (vec![policy("shared", "shadow"), policy("deny", "enforce")], vec!["deny 1"]),
        (vec![policy("deny", "shadow"), policy("shared", "enforce")], vec!["{method=GET,-}"]),
        (vec![policy("deny", "off"), policy("deny", "enforce")], vec!["deny 0"]),
    ] {
        assert_eq!(keys(&config(identities.clone(), &policies), &[(":method", "GET")]), expected);
    }
    let shared = json!({"partition_by": ["caller"], "on_missing": "shared"});
    let config = config(identities, &[shared]);
    assert_eq!(keys(&config, &NOTHING), ["{-}"]);
    assert_eq!(keys(&config, &[("jwt_payload/sub", "-")]), ["{jwt.sub=-}"]);
}

#[test]
fn secrets_are_digests_keyed_by_the_configuration() {
    let text = |more: &str| {
        format!(
            r#"{{"domain":"shop","store":{{"cluster":"s"}},{more}
            "identities":{{"key":[{{"header":{{"name":"x-api-key","secret":true}}}}]}},
            "policies":[{{"name":"p0","quota":1,"window":"1s","partition_by":["key"]}}]}}"#
        )
    };
    let key = |more: &str| {
        let config = Config::parse(text(more).as_bytes()).unwrap();
        assert!(!format!("{config:?}").contains("Jefe"));
        keys(&config, &[("x-api-key", "what do ya want for nothing?")]).remove(0)
    };
    assert_eq!(key(r#""digest_key":"Jefe","#), "{header.x-api-key=~5bdcc146bf60754e6a042426089575c7}");
    assert_ne!(key(""), key(r#""digest_key":"Jefe","#));
    assert_eq!(key(""), "{header.x-api-key=~fafff23d94c3228de3862f5215b57efa}");
}

#[test]
fn each_fact_is_fetched_when_it_is_needed_and_once() {
    let identities = json!({
        "key": [{"header": {"name": "x-api-key", "secret": true}}, {"jwt": {"claim": "sub"}}],
        "same": [{"header": {"name": "X-API-KEY"}}, {"client_ip": {}}],
        "unused": [{"header": {"name": "x-unused"}}],
    });
    let never = json!({"match": {"methods": ["POST"], "hosts": ["a"]}, "partition_by": ["unused", "route"]});
    let get = json!({"match": {"methods": ["GET"]}, "partition_by": ["key", "same"]});
    let config = config(identities, &[never, get.clone(), get.clone(), get]);
    let request = Fake::new(&[(":method", "GET"), ("address", "192.0.2.7:1"), ("jwt_payload/sub", "a")]);
    let checks = config.evaluate(&request).checks.unwrap();
    assert_eq!(checks.len(), 3);
    assert_eq!(*request.asked.borrow(), [":method", "x-api-key", "jwt_payload/sub", "address"]);
}

#[test]
fn hostile_values_make_keys_that_the_store_takes_and_no_two_the_same() {
    let sources: Vec<_> =
        (0..15).map(|i| json!({"header": {"name": format!("x-{i}-{}", "*".repeat(100))}})).collect();
    let identities: serde_json::Map<_, _> =
        sources.iter().enumerate().map(|(i, source)| (format!("i{i}"), json!([source]))).collect();
    let names: Vec<_> = identities.keys().cloned().chain(["path".to_owned()]).collect();
    let config = config(Value::Object(identities), &[json!({"partition_by": names, "on_missing": "shared"})]);
    // A small generator of pseudo-random numbers (xorshift) is enough for bytes.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut seen = BTreeMap::new();
    let mut digested = 0;
    for _ in 0..2000 {
        let mut facts = BTreeMap::new();
        for i in 0..15 {
            let len = [0, 0, 0, 1, 2, 128, 129][(random() % 7) as usize];
            let bytes: Vec<u8> =
                (0..len).map(|_| b"a~%=,-*{}:\r\n\0\xff\xc3"[(random() % 15) as usize]).collect();
            if len > 0 {
                facts.insert(format!("x-{i}-{}", "*".repeat(100)), bytes);
            }
        }
        let request = Fake { facts: facts.clone(), asked: RefCell::default() };
        let checks = config.evaluate(&request).checks.unwrap();
        let key = checks[0].counter.key.to_string();
        let reservation = crate::wire::Reservation {
            key: key.as_str(),
            window_s: 60,
            offset_s: 0,
            quota: 5,
            want: 1,
            min: 1,
            spare: 0,
            count_denied: false,
        };
        assert!(reservation.check().is_ok(), "{key}");
        digested += usize::from(key.starts_with("shop:p0:{~"));
        if let Some(before) = seen.insert(key, facts.clone()) {
            assert_eq!(before, facts);
        }
    }
    assert!(digested > 0 && digested < 2000, "{digested}");
}
