//! Who is calling, of every source, and what becomes of those who are nobody.

use serde_json::json;

use super::*;

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
    assert_eq!(keys(&config, &facts), ["{jwt@other.realm.tenant=t,method=GET}"]);
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
