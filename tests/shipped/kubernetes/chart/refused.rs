//! Wrong values are refused, with a message that names the value and the remedy.

use std::fs;

use quotagate_chart::cases::refused;
use quotagate_support::paths;
use serde_json::{Value, json};

use super::{RELEASE, example, render};

#[test]
fn wrong_values_are_refused_with_the_value_and_the_remedy() {
    let cases = refused();
    let values: Vec<Value> =
        cases.iter().map(|(name, overlay, _)| example(name, overlay.clone())).collect();
    for ((_, overlay, expected), rendered) in cases.iter().zip(render(&values)) {
        let Err(message) = rendered else { panic!("{overlay} is rendered") };
        for part in *expected {
            assert!(message.contains(part), "{overlay}: {message}");
        }
        assert!(!message.contains("geheim"), "{message}");
    }
}

/// A template cannot read the schema, so it repeats these names.
#[test]
fn chart_knows_what_every_request_can_be_partitioned_by() {
    let schema = fs::read_to_string(paths::root().join("envoy/quotagate.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let built_in = &schema["properties"]["identities"]["propertyNames"]["not"]["enum"];
    let mut built_in: Vec<String> = serde_json::from_value(built_in.clone()).unwrap();
    built_in.sort_unstable();
    let policy = json!({"name": "a", "partition_by": ["caler"], "quota": 1, "window": "1m"});
    let policy = json!({"policy": {"identities": null, "policies": [policy]}});
    let message = render(&[example("istio.yaml", policy)]).remove(0).unwrap_err();
    let (_, known) = message.split_once("or name one of ").unwrap();
    assert_eq!(known.trim_end(), built_in.join(", "), "{message}");
}

#[test]
fn secret_without_the_authorities_of_redis_is_refused() {
    let secret = |key: &str| {
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "redis-tls", "namespace": RELEASE},
            "data": {key: "dA=="},
        })
    };
    let tls = json!({"existingSecret": "redis-tls"});
    let values = [example("istio.yaml", json!({"store": {"redis": {"tls": tls}}}))];
    let rendered = |key: &str| {
        let (chart, existing) = (quotagate_chart::chart(), [secret(key)]);
        let rendered =
            quotagate_chart::render_over(&chart, &values, RELEASE, RELEASE, &existing).unwrap();
        rendered.into_iter().next().unwrap()
    };
    assert!(rendered("ca.crt").is_ok());
    let message = rendered("tls.crt").unwrap_err();
    assert!(message.contains("the Secret redis-tls has no key ca.crt"), "{message}");
}

#[test]
fn chart_without_values_says_what_to_give_first() {
    let [rendered] = &render(&[json!({})])[..] else { panic!("one") };
    let message = rendered.as_ref().unwrap_err();
    assert!(message.contains("store.redis.existingSecret"), "{message}");
}
