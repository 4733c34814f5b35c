//! Messages of a newer version: what this version does not know is ignored, or fails alone.

#![cfg(test)]

use quotagate_protocol::dials::{DialsReply, Report};
use quotagate_protocol::{Adjustment, Kind, Reservation, ReserveReply, ReserveRequest};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Adds an unknown field to every object within a message. A calendar gets none: there, a field of
/// a newer version may change the window.
fn with_unknown_fields(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.iter_mut().filter(|(name, _)| *name != "calendar").for_each(|(_, value)| {
                with_unknown_fields(value);
            });
            if !fields.contains_key("calendar") {
                fields.insert("of_a_newer_version".to_owned(), json!({"list": [1, null, "x"]}));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(with_unknown_fields),
        _ => {}
    }
}

fn reads_the_same_with_unknown_fields<T>(message: &Value)
where
    T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let read = |value: &Value| serde_json::from_str::<T>(&value.to_string()).unwrap();
    let mut newer = message.clone();
    with_unknown_fields(&mut newer);
    assert_ne!(newer, *message);
    assert_eq!(read(&newer), read(message));
    assert_eq!(serde_json::to_value(read(message)).unwrap(), *message, "nothing is lost");
}

fn reservation(kind: &Value) -> Value {
    json!({"key": "s:p:{*}", "kind": kind, "window_s": 60, "quota": 5, "want": 3, "min": 1,
        "spare": 2, "count_denied": true, "shadow": true, "own_quota": true})
}

fn adjustment(kind: &Value) -> Value {
    json!({"key": "s:p:{*}", "kind": kind, "window_s": 60, "offset_s": 7, "window": 9, "units": 3})
}

fn calendar() -> Value {
    json!({"calendar": {"unit": "day", "time_zone": "UTC"}})
}

#[test]
fn every_message_ignores_unknown_fields() {
    let kind = json!("sliding");
    reads_the_same_with_unknown_fields::<ReserveRequest>(&json!({
        "budget_ms": 50, "refunds": [adjustment(&kind)], "charges": [adjustment(&calendar())],
        "reservations": [reservation(&kind), reservation(&calendar())]
    }));
    reads_the_same_with_unknown_fields::<ReserveReply>(&json!({"dials": 17, "grants": [
        {"granted": 3, "used": 57, "quota": 100, "reset_ms": 42137, "window": 28333335},
        {"granted": 0, "used": 5, "quota": 5, "reset_ms": 1, "window": 1, "window_s": 82800},
        {"error": "the primary of slot 4711 is down"}
    ]}));
    reads_the_same_with_unknown_fields::<Report>(&json!({
        "protocol": 1, "build": "1.2.3",
        "policies": [{"name": "p", "quota": 5, "kind": calendar(), "window_s": 7, "stagger": true,
            "mode": "mark", "on_failure": "local", "tiers": true, "settles": true,
            "partition_by": [{"name": "caller", "forms": ["jwt.sub"]}], "admitted": 1, "refused": 2,
            "shadow_refused": 3, "marked": 4, "missing_identity": 5, "store_error": 6, "settled_if_missing": 7}],
        "refused": [{"key": "s:p:{*}", "requests": 7}]
    }));
    reads_the_same_with_unknown_fields::<DialsReply>(&json!({
        "version": 17, "overridden": ["p"],
        "dials": [{"policy": "p", "mode": "off", "quota": 5, "on_failure": "deny", "for_ms": 9}]
    }));
}

#[test]
fn item_of_an_unknown_kind_fails_alone_and_names_the_remedy() {
    let unknown = [
        json!("token_bucket"),
        json!({"token_bucket": {"burst": 5}}),
        json!({"calendar": {"unit": "quarter", "time_zone": "UTC"}}),
        // It would be another window.
        json!({"calendar": {"unit": "day", "time_zone": "UTC", "starts": "06:00"}}),
        json!({"fixed": {}, "sliding": {}}),
        json!("unknown"),
        json!(7),
        json!(null),
    ];
    for kind in unknown {
        let body = json!({
            "budget_ms": 50, "refunds": [adjustment(&kind)], "charges": [adjustment(&kind)],
            "reservations": [reservation(&kind), reservation(&json!("sliding"))]
        });
        let call: ReserveRequest = serde_json::from_str(&body.to_string()).unwrap();
        let errors = [
            call.reservations[0].check().unwrap_err(),
            call.refunds[0].check().unwrap_err(),
            call.charges[0].check().unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.field, "kind", "{kind}");
            assert!(error.reason.contains("upgrade the stores before the filters"), "{error}");
        }
        assert!(call.reservations[1].check().is_ok());
    }
}

#[test]
fn unknown_kind_stays_unknown_when_it_is_passed_on() {
    let read: Reservation = serde_json::from_value(reservation(&json!("lunar"))).unwrap();
    let again: Adjustment =
        serde_json::from_value(adjustment(&serde_json::to_value(&read.kind).unwrap())).unwrap();
    assert_eq!((read.kind, again.kind), (Kind::Unknown, Kind::Unknown));
}

#[test]
fn report_leaves_out_the_policies_that_this_version_cannot_read() {
    let policy = |mode: &str| {
        json!({"name": mode, "quota": 5, "window_s": 60, "stagger": false, "mode": mode,
            "on_failure": "allow"})
    };
    let text = json!({"protocol": 99, "build": "9.9.9", "refused": [7, {"key": "k", "requests": 1}],
        "policies": [policy("delay"), policy("enforce"), 7, {"name": "p"}]});
    let report: Report = serde_json::from_str(&text.to_string()).unwrap();
    let names: Vec<_> = report.policies.iter().map(|policy| &*policy.name).collect();
    assert_eq!((names, report.refused.len(), report.protocol), (vec!["enforce"], 1, 99));
}

#[test]
fn reports_without_a_version_are_of_version_0() {
    let report: Report = serde_json::from_str(r#"{"policies": []}"#).unwrap();
    assert_eq!((report.protocol, &*report.build), (0, ""));
}
