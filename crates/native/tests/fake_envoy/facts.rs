//! Who is counted: what the module reads of a request, of other filters and of Envoy.

use serde_json::{Value, json};

use crate::document::policy;
use crate::host::{Envoy, Request};

const JWT: &str = "envoy.filters.http.jwt_authn";

/// Whether these two requests share a counter of one unit.
fn share(name: &str, source: &str, first: Request, second: Request) -> bool {
    let policies = policy("p", 1, r#","partition_by":["who"],"on_missing":"deny""#);
    let document = format!(
        r#"{{"domain":"d","store":{{"redis":"memory:","prefix":"{name}","timeout":"20s"}},
            "identities":{{"who":[{source}]}},"policies":[{policies}]}}"#
    );
    let envoy = Envoy::start(1, &document);
    assert_eq!(envoy.request(0, first).status(), 0, "{name}: it is identified");
    match envoy.request(0, second).status() {
        429 => true,
        0 => false,
        other => panic!("{name}: {other}"),
    }
}

fn get() -> Request {
    Request::get("/")
}

#[test]
fn claims_come_from_the_copied_metadata() {
    let key = "quotagate.metadata.envoy.filters.http.jwt_authn";
    let token = |sub: &str| {
        let payload = json!({"jwt_payload": {"sub": sub, "realm": {"roles": ["a", "b"]}}});
        get().filter_state(key, &payload.to_string())
    };
    let source = r#"{"jwt":{"claim":"sub"}}"#;
    assert!(share("claim-same", source, token("ann"), token("ann")));
    assert!(!share("claim-other", source, token("ann"), token("bob")));
    let nested = r#"{"jwt":{"claim":["realm","roles","1"]}}"#;
    assert!(share("claim-nested", nested, token("ann"), token("bob")));
    // A Lua filter can write only metadata.
    let scripted = |sub: &str| {
        let payload = json!({"jwt_payload": {"sub": sub}}).to_string();
        get().metadata("quotagate.metadata", JWT, json!(payload))
    };
    assert!(share("claim-scripted", source, token("ann"), scripted("ann")));
    assert!(!share("claim-scripted-other", source, token("ann"), scripted("bob")));
}

#[test]
fn metadata_of_every_type_identifies_at_the_top_level_and_below() {
    let cases = [
        ("string", json!("x"), json!("y")),
        ("number", json!(7), json!(7.5)),
        ("boolean", json!(true), json!(false)),
    ];
    for (kind, one, other) in cases {
        let source = r#"{"metadata":{"filter":"f","path":["k"],"type":"TYPE"}}"#;
        let source = source.replace("TYPE", kind);
        let plain = |value: &Value| get().metadata("f", "k", value.clone());
        assert!(share(&format!("m-{kind}"), &source, plain(&one), plain(&one)));
        assert!(!share(&format!("n-{kind}"), &source, plain(&one), plain(&other)));
        let copied = |value: &Value| {
            get().filter_state("quotagate.metadata.f", &json!({"k": value}).to_string())
        };
        assert!(share(&format!("o-{kind}"), &source, plain(&one), copied(&one)), "{kind}");
    }
}

#[test]
fn unreadable_metadata_is_missing() {
    let policies = policy("p", 1, r#","partition_by":["who"],"on_missing":"deny""#);
    let document = format!(
        r#"{{"domain":"d","store":{{"redis":"memory:","prefix":"unreadable"}},
            "identities":{{"who":[{{"jwt":{{"claim":"sub"}}}}]}},"policies":[{policies}]}}"#
    );
    let envoy = Envoy::start(1, &document);
    let key = "quotagate.metadata.envoy.filters.http.jwt_authn";
    for text in ["-", "{", "null", "[1]", "\"x\""] {
        assert_eq!(envoy.request(0, get().filter_state(key, text)).status(), 401, "{text}");
    }
    let uncopied = get().metadata(JWT, "jwt_payload", json!({"sub": "ann"}));
    assert_eq!(envoy.request(0, uncopied).status(), 401);
    assert!(crate::host::logged(&["claims and nested metadata", JWT, "set_filter_state"]));
}

#[test]
fn headers_and_attributes_identify() {
    let header = r#"{"header":{"name":"x-tenant"}}"#;
    let tenant = |value: &[u8]| get().header("x-tenant", value);
    assert!(share("header-same", header, tenant(b"\xff\0"), tenant(b"\xff\0")));
    assert!(!share("header-other", header, tenant(b"a"), tenant(b"b")));
    let from = |address| get().attribute(24, address);
    let ip = r#"{"client_ip":{}}"#;
    assert!(share("ip-same", ip, from("192.0.2.7:1"), from("192.0.2.7:2")));
    assert!(!share("ip-other", ip, from("192.0.2.7:1"), from("192.0.2.8:1")));
    let sni = r#"{"sni":{}}"#;
    assert!(!share("sni", sni, get().attribute(30, "a.example"), get().attribute(30, "b.example")));
    let san = r#"{"peer":{"san":"uri"}}"#;
    assert!(!share(
        "uri",
        san,
        get().attribute(37, "spiffe://a/b"),
        get().attribute(37, "spiffe://a/c")
    ));
}
