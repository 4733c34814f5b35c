//! No dial can produce an invalid configuration: a document with the dialed values is valid and
//! equal.

#![cfg(test)]

use quotagate_protocol::{MAX_UNITS, Mode, OnFailure};
use quotagate_quota::config::{Config, Dialed};
use serde_json::{Value, json};

const GOOD: &str = include_str!("fixtures/good.json");

#[test]
fn every_dialed_configuration_equals_a_valid_document() {
    let good = Config::parse(GOOD.as_bytes()).unwrap();
    for mode in [Mode::Enforce, Mode::Mark, Mode::Shadow, Mode::Off] {
        for on_failure in [OnFailure::Allow, OnFailure::Deny, OnFailure::Local] {
            for quota in [0, 1, 199, MAX_UNITS] {
                let mut document: Value = serde_json::from_str(GOOD).unwrap();
                for policy in document["policies"].as_array_mut().unwrap() {
                    policy["mode"] = json!(mode);
                    policy["on_failure"] = json!(on_failure);
                    policy["quota"] = json!(quota);
                }
                let written = Config::parse(document.to_string().as_bytes())
                    .unwrap_or_else(|faults| panic!("{faults}"));
                let dialed = Dialed {
                    enforced_for: None,
                    mode: Some(mode),
                    quota: Some(quota),
                    on_failure: Some(on_failure),
                    is_overridden: false,
                };
                let dialed = good.dialed(&vec![dialed; good.policies.len()]);
                assert_eq!(written.policies.len(), dialed.policies.len());
                for (written, dialed) in written.policies.iter().zip(&dialed.policies) {
                    assert_eq!((&written.name, written.mode), (&dialed.name, dialed.mode));
                    assert_eq!(written.on_failure, dialed.on_failure);
                    assert_eq!(Some(written.quota), dialed.dialed_quota);
                }
            }
        }
    }
}

#[test]
fn fields_without_a_dial_keep_their_configured_values() {
    let good = Config::parse(GOOD.as_bytes()).unwrap();
    let same = good.dialed(&vec![Dialed::default(); good.policies.len()]);
    let also = good.dialed(&[]);
    for ((good, same), also) in good.policies.iter().zip(&same.policies).zip(&also.policies) {
        for dialed in [same, also] {
            assert_eq!(
                (&good.name, good.mode, good.quota),
                (&dialed.name, dialed.mode, dialed.quota)
            );
            assert_eq!(
                (good.on_failure, None, false),
                (dialed.on_failure, dialed.dialed_quota, dialed.is_overridden)
            );
        }
    }
}
