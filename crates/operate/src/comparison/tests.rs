//! Each kind of change, and what the comparison says of it.

use quotagate_quota::config::Config;
use serde_json::{Value, json};

use super::*;

fn document(value: &Value) -> DocumentVersion {
    let config = Config::parse(value.to_string().as_bytes()).unwrap_or_else(|f| panic!("{f}"));
    DocumentVersion { config, value: value.clone() }
}

fn base() -> Value {
    json!({
        "domain": "shop", "store": {"redis": "redis://u:hunter2@r1"}, "digest_key": "hunter2-hunter2-hunter2",
        "identities": {
            "caller": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}],
            "key": [{"header": {"name": "x-key", "secret": true}}],
        },
        "policies": [
            {"name": "caller", "partition_by": ["caller"], "quota": 100, "window": "1m"},
            {"name": "key", "partition_by": ["key"], "on_missing": "skip", "quota": 5, "window": "1h",
             "overrides": [{"value": "hunter2", "quota": 7}]},
        ],
    })
}

/// The comparison with `base` after this change.
fn after(change: impl FnOnce(&mut Value)) -> DocumentDiff {
    let mut new = base();
    change(&mut new);
    DocumentDiff::of(&document(&base()), &document(&new))
}

fn changed(change: impl FnOnce(&mut Value)) -> (PolicyChange, Vec<CounterPart>, Vec<Orphan>) {
    let diff = after(change);
    let PolicyDiff { change, differs, orphans, .. } = diff.policies.into_iter().next().unwrap();
    (change, differs, orphans)
}

#[test]
fn each_change_of_a_policy_says_what_happens_to_its_counts() {
    use CounterPart::{Domain, Partition, Prefix, Stagger, Window, WindowKind};
    use Orphan::{Dial, Overrides, SomeOverrides};
    use PolicyChange::{KeepsCount, KeepsPart, StartsFromZero, Unchanged};
    let policy = |field: &'static str, value: Value| {
        move |new: &mut Value| new["policies"][0][field] = value
    };
    let caller = |sources: Value| move |new: &mut Value| new["identities"]["caller"] = sources;
    assert_eq!(changed(|_| ()), (Unchanged, vec![], vec![]));
    for (field, value) in [
        ("quota", json!(50)),
        ("mode", json!("shadow")),
        ("match", json!({"methods": ["GET"]})),
        ("cost", json!(2)),
        ("on_missing", json!("shared")),
    ] {
        assert_eq!(changed(policy(field, value)), (KeepsCount, vec![], vec![]), "{field}");
    }
    // Another spelling of the same window.
    assert_eq!(changed(policy("window", json!("60s"))), (KeepsCount, vec![], vec![]));
    let day = json!({"calendar": "day", "time_zone": "UTC"});
    for (field, value, part) in [
        ("window", json!("1h"), Window),
        ("window", day, WindowKind),
        ("sliding", json!(true), WindowKind),
    ] {
        assert_eq!(changed(policy(field, value)), (StartsFromZero, vec![part], vec![]), "{field}");
    }
    assert_eq!(changed(policy("stagger", json!(true))), (KeepsPart, vec![Stagger], vec![]));
    for by in [json!([]), json!(["method"]), json!(["caller", "method"])] {
        let expected = (StartsFromZero, vec![Partition], vec![Overrides]);
        assert_eq!(changed(policy("partition_by", by)), expected);
    }
    for (sources, change, orphans) in [
        // A new first source takes some callers along, and so does a prefix for IPv6.
        (
            json!([{"peer": {"san": "uri"}}, {"jwt": {"claim": "sub"}}, {"client_ip": {}}]),
            KeepsPart,
            vec![SomeOverrides],
        ),
        (
            json!([{"jwt": {"claim": "sub"}}, {"client_ip": {"ipv6_prefix": 56}}]),
            KeepsPart,
            vec![SomeOverrides],
        ),
        (json!([{"jwt": {"claim": "email"}}]), StartsFromZero, vec![Overrides]),
        // Fewer sources, or more at the end: whom both count keeps its count.
        (json!([{"jwt": {"claim": "sub"}}]), KeepsCount, vec![SomeOverrides]),
        (json!([{"jwt": {"claim": "sub"}}, {"client_ip": {}}, {"sni": {}}]), KeepsCount, vec![]),
    ] {
        assert_eq!(changed(caller(sources)), (change, vec![Partition], orphans));
    }
    assert_eq!(
        changed(|new| new["domain"] = json!("other")),
        (StartsFromZero, vec![Domain], vec![Dial, Overrides])
    );
    assert_eq!(
        changed(|new| new["store"]["prefix"] = json!("other")),
        (StartsFromZero, vec![Prefix], vec![Dial, Overrides])
    );
}

#[test]
fn renamed_removed_and_added_policies_are_told_apart() {
    let renamed = after(|new| new["policies"][0]["name"] = json!("callers"));
    let policy = renamed.policies.iter().find(|policy| policy.policy == "callers").unwrap();
    assert_eq!(policy.old_name.as_deref(), Some("caller"));
    assert_eq!(
        (policy.change, &*policy.differs),
        (PolicyChange::StartsFromZero, &[CounterPart::Name][..])
    );
    assert_eq!(policy.orphans, [Orphan::Dial, Orphan::Overrides]);
    let replaced = after(|new| {
        new["policies"][0] = json!({"name": "all", "partition_by": [], "quota": 9, "window": "1m"});
        new["identities"].as_object_mut().unwrap().remove("caller");
    });
    let changes: Vec<_> =
        replaced.policies.iter().map(|policy| (&*policy.policy, policy.change)).collect();
    assert_eq!(
        changes,
        [
            ("key", PolicyChange::Unchanged),
            ("all", PolicyChange::Added),
            ("caller", PolicyChange::Removed)
        ]
    );
    assert_eq!(replaced.policies[2].orphans, [Orphan::Dial, Orphan::Overrides]);
    // The one may be the other, renamed and changed at once.
    assert!(
        replaced.loses_counts() && replaced.to_string().contains("replaces one that is removed")
    );
    let removed = after(|new| {
        new["policies"].as_array_mut().unwrap().remove(1);
        new["identities"].as_object_mut().unwrap().remove("key");
    });
    assert!(!removed.loses_counts(), "{removed}");
}

#[test]
fn counts_double_only_where_both_counters_grant() {
    let twice = |fields: Value| {
        let diff = after(|new| {
            new["policies"][0].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        });
        (diff.policies[0].quota, diff.policies[0].counts_twice)
    };
    let pair = QuotaPair { old: 100, new: 50 };
    assert_eq!(twice(json!({"quota": 50})), (Some(pair), None));
    assert_eq!(twice(json!({"quota": 50, "window": "1h"})), (Some(pair), Some(pair)));
    assert_eq!(twice(json!({"quota": 50, "window": "1h", "mode": "off"})), (Some(pair), None));
}

#[test]
fn text_tells_slots_from_units_of_a_window() {
    let said = |old: Value, new: Option<Value>| {
        let with = |fields: Option<Value>| {
            let mut value = base();
            value["policies"] = json!([{"name": "other", "partition_by": ["key", "caller"], "quota": 1,
                                        "window": "1m", "mode": "shadow"}]);
            if let Some(mut policy) = fields {
                policy["name"] = json!("caller");
                policy["partition_by"] = json!(["caller"]);
                value["policies"].as_array_mut().unwrap().push(policy);
            }
            document(&value)
        };
        DocumentDiff::of(&with(Some(old)), &with(new)).to_string()
    };
    let window = || json!({"quota": 100, "window": "1m"});
    let slots = |most: u64| json!({"in_flight": most});
    for (old, new, expected) in [
        (
            window(),
            Some(slots(4)),
            "the old counter grants 100 in a window, and the new one 4 at once\n",
        ),
        (
            slots(4),
            Some(window()),
            "the old counter grants 4 at once, and the new one 100 in a window\n",
        ),
        (
            slots(4),
            Some(slots(2)),
            "    a caller that holds 2 slots or more gets no more until requests end\n",
        ),
        (slots(4), None, "  caller: removed, its slots are free once their requests end\n"),
        (window(), None, "  caller: removed, its counters end with their windows\n"),
    ] {
        let text = said(old, new);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn digest_key_moves_secret_values_alone() {
    let diff = after(|new| new["digest_key"] = json!("hunter2-hunter2-hunter3"));
    let changes: Vec<_> =
        diff.policies.iter().map(|policy| (policy.change, &*policy.differs)).collect();
    assert_eq!(
        changes,
        [
            (PolicyChange::Unchanged, &[][..]),
            (PolicyChange::StartsFromZero, &[CounterPart::DigestKey])
        ]
    );
    assert!(diff.settings[0].effect.unwrap().contains("128 bytes"), "{:?}", diff.settings);
}

#[test]
fn settings_have_paths_and_no_value_that_may_be_secret_is_shown() {
    let diff = after(|new| {
        new["store"] = json!({"redis": "redis://u:hunter2x@r1", "on_failure": "deny"});
        new["response"] = json!({"headers": []});
        new["access_log"] = json!(["decision"]);
        new["digest_key"] = json!("hunter2-hunter2-hunter3");
        new["identities"]["key"] = json!([{"header": {"name": "x-k", "secret": true}}]);
        new["policies"][1]["overrides"] = json!([{"value": "hunter2", "quota": 8}]);
        new["policies"][1]["match"] = json!({"headers": [{"name": "x", "exact": "hunter2"}]});
    });
    let paths: Vec<_> = diff.settings.iter().map(|setting| &*setting.path).collect();
    assert_eq!(
        paths,
        [
            "store.redis",
            "store.on_failure",
            "digest_key",
            "identities.key",
            "response",
            "access_log"
        ]
    );
    assert!(diff.loses_counts());
    let text = format!("{diff}{}", serde_json::to_string(&diff).unwrap());
    assert!(!text.contains("hunter2"), "{text}");
    assert!(text.contains("    overrides differs\n"), "{text}");
}

#[test]
fn documents_are_matched_by_domain() {
    let of = |domain: &str, quota: u64| {
        let mut value = base();
        value["domain"] = json!(domain);
        value["policies"][0]["quota"] = json!(quota);
        document(&value)
    };
    let compared = compare(
        &[of("a", 1), of("b", 1), of("c", 1)],
        &[of("d", 1), of("b", 2), of("a", 1), of("e", 1)],
    );
    let domains: Vec<_> = compared.documents.iter().map(|diff| &*diff.domain).collect();
    assert_eq!(domains, ["b", "a"]);
    assert_eq!(
        (compared.added, compared.removed),
        (vec!["d".into(), "e".into()], vec!["c".into()])
    );
    assert!(!compared.loses_counts);
    let renamed = compare(&[of("a", 1)], &[of("b", 1)]);
    assert_eq!(renamed.documents[0].old_domain.as_deref(), Some("a"));
    assert!(renamed.loses_counts);
}

#[test]
fn several_documents_of_a_domain_are_not_guessed_at() {
    let of = |domain: &str, quota: u64| {
        let mut value = base();
        value["domain"] = json!(domain);
        value["policies"][0]["quota"] = json!(quota);
        document(&value)
    };
    let compared = |old: &[DocumentVersion], new: &[DocumentVersion]| {
        let compared = compare(old, new);
        let pairs =
            compared.documents.iter().map(|diff| diff.policies[0].quota).collect::<Vec<_>>();
        (pairs, compared.ambiguous.len(), compared.removed.len() + compared.added.len())
    };
    let pair = |old, new| Some(QuotaPair { old, new });
    // Two listeners with one document.
    let twice = [of("a", 1), of("a", 1)];
    assert_eq!(compared(&twice, &[of("a", 2), of("a", 2)]), (vec![pair(1, 2)], 0, 0));
    assert_eq!(compared(&twice, &[of("a", 1)]), (vec![None], 0, 0));
    // What is the same in both is matched, and so is what is left over alone.
    let two = [of("a", 1), of("a", 2)];
    assert_eq!(compared(&two, &[of("a", 3), of("a", 1)]), (vec![pair(2, 3), None], 0, 0));
    for (old, new, pairs) in [
        (&two[..], &[of("a", 3), of("a", 4)][..], 0),
        (&two, &[of("a", 1)], 1),
        (&[of("a", 1)], &two, 1),
        (&[of("a", 5)], &two, 0),
    ] {
        let (found, ambiguous, others) = compared(old, new);
        assert_eq!((found.len(), ambiguous, others), (pairs, 1, 0));
        assert!(compare(old, new).loses_counts);
        assert!(compare(old, new).to_string().contains("domain a: not compared"));
    }
}

#[test]
fn default_prefix_may_be_written_out() {
    let spelled = after(|new| new["store"]["prefix"] = json!("qg"));
    let effects: Vec<_> = spelled.settings.iter().map(|of| (&*of.path, of.effect)).collect();
    assert_eq!((effects, spelled.loses_counts()), (vec![("store.prefix", None)], false));
}

#[test]
fn order_of_tiers_is_a_change() {
    let tiers = |first: &str, second: &str| {
        let mut value = base();
        let quotas: Value =
            serde_json::from_str(&format!("{{\"{first}\": 1, \"{second}\": 2}}")).unwrap();
        value["policies"][0]["tiers"] =
            json!({"source": {"jwt": {"claim": "roles"}}, "quotas": quotas});
        document(&value)
    };
    let diff = DocumentDiff::of(&tiers("a", "b"), &tiers("b", "a"));
    assert_eq!(diff.policies[0].change, PolicyChange::KeepsCount);
}
