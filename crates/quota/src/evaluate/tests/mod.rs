mod identities;
mod index;
mod matching;
mod naming;
mod quotas;

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::request::source::JWT_AUTHN;
use crate::request::{HeaderValues, Request};

/// A request made of named facts that records which ones it is asked for. A fact that is given
/// twice has two values, like a repeated header. Claims are `payload/path/to/claim`, other metadata
/// is `filter:path/to/member`.
#[derive(Default)]
struct Fake {
    facts: BTreeMap<String, Vec<Vec<u8>>>,
    asked: RefCell<Vec<String>>,
}

impl Fake {
    fn new<V: AsRef<[u8]>>(facts: &[(&str, V)]) -> Self {
        let mut fake = Self::default();
        for (name, value) in facts {
            fake.facts.entry((*name).to_owned()).or_default().push(value.as_ref().to_vec());
        }
        fake
    }

    fn ask(&self, name: &str) -> impl Iterator<Item = Cow<'_, [u8]>> {
        self.asked.borrow_mut().push(name.to_owned());
        self.facts.get(name).into_iter().flatten().map(Cow::from)
    }

    fn fact(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.ask(name).next()
    }
}

impl Request for Fake {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        self.fact(":method")
    }
    fn path(&self) -> Option<Cow<'_, [u8]>> {
        self.fact(":path")
    }
    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        self.fact(":authority")
    }
    fn header(&self, name: &str) -> HeaderValues<'_> {
        let values = self.ask(name).collect();
        // Hosts keep their headers, so only the first question is one for the host.
        let mut asked = self.asked.borrow_mut();
        if asked.iter().filter(|known| *known == name).count() > 1 {
            asked.pop();
        }
        values
    }
    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        let path = path.join("/");
        let name = if filter == JWT_AUTHN { path } else { format!("{filter}:{path}") };
        self.fact(&name).map(Cow::into_owned)
    }
    fn has_metadata(&self, filter: &str, path: &[Box<str>]) -> bool {
        let path = path.join("/");
        let name = if filter == JWT_AUTHN { path } else { format!("{filter}:{path}") };
        self.facts.contains_key(&name)
    }
    fn attribute(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.fact(&path.join(".")).map(Cow::into_owned)
    }
    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        self.fact("address")
    }
    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        self.fact("route")
    }
}

fn config(identities: Value, policies: &[Value]) -> Config {
    let policies: Vec<_> = policies
        .iter()
        .enumerate()
        .map(|(i, policy)| {
            let mut whole =
                json!({"name": format!("p{i}"), "partition_by": [], "quota": 5, "window": "1m"});
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
fn a_policy_without_conditions_counts_everyone_and_fetches_nothing() {
    let config = config(json!({}), &[json!({})]);
    let request = Fake::default();
    let checks = config.evaluate(&request).checks.unwrap();
    let counter =
        Counter { key: "shop:p0:{*}".into(), quota: 5, window: Window::new(60, 0).unwrap() };
    assert_eq!(checks, [Check { policy: 0, counter, cost: NonZeroU64::MIN, mode: Mode::Enforce }]);
    assert_eq!(*request.asked.borrow(), [""; 0]);
}

#[test]
fn each_fact_is_fetched_on_demand_and_once() {
    let identities = json!({
        "key": [{"header": {"name": "x-api-key", "secret": true}}, {"jwt": {"claim": "sub"}}],
        "same": [{"header": {"name": "X-API-KEY"}}, {"client_ip": {}}],
        "unused": [{"header": {"name": "x-unused"}}],
    });
    let never = json!({"match": {"methods": ["POST"], "hosts": ["a"]}, "partition_by": ["unused", "route"]});
    let get = json!({"match": {"methods": ["GET"]}, "partition_by": ["key", "same"]});
    let config = config(identities, &[never, get.clone(), get.clone(), get]);
    let request =
        Fake::new(&[(":method", "GET"), ("address", "192.0.2.7:1"), ("jwt_payload/sub", "a")]);
    let checks = config.evaluate(&request).checks.unwrap();
    assert_eq!(checks.len(), 3);
    assert_eq!(*request.asked.borrow(), [":method", "x-api-key", "jwt_payload/sub", "address"]);
}
