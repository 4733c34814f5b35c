//! The rules that descriptors of a form may have, against the rule that each descriptor has.

use quotagate_ratelimit::messages::DescriptorEntry;
use quotagate_ratelimit::rules::{
    EntryForm, OtherValues, RuleDomain, RuleFile, SharedDomains, ValueCase, is_like, read_files,
};

const RULES: &str = "
domain: d
descriptors:
  - {key: a, value: x}
  - {key: a, value: y, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: a, value: 'x*', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: a, value: '*x', rate_limit: {unit: day, requests_per_unit: 3}}
  - key: a
    rate_limit: {unit: day, requests_per_unit: 4}
    descriptors:
      - {key: b, value: x, rate_limit: {unlimited: true}}
      - {key: b, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: b, value: y, rate_limit: {unit: day, requests_per_unit: 6}}
";
const VALUES: [&str; 7] = ["", "x", "y", "xy", "yx", "xx", "z"];

fn holds(case: &ValueCase<'_>, value: &str) -> bool {
    let is_other = |others: &OtherValues<'_>| {
        !others.texts().contains(&value)
            && !others.patterns().iter().any(|pattern| is_like(value, pattern))
    };
    match case {
        ValueCase::Known => true,
        ValueCase::Is(text) => *text == value,
        ValueCase::Like(pattern, others) => is_like(value, pattern) && is_other(others),
        ValueCase::Other(others) => is_other(others),
    }
}

/// The rules whose cases hold for these entries, each with the values that tell counters apart.
fn by_cases(
    domain: &RuleDomain,
    entries: &[DescriptorEntry],
    known: usize,
) -> Vec<(usize, Vec<String>)> {
    let form: Vec<EntryForm> = entries
        .iter()
        .enumerate()
        .map(|(index, DescriptorEntry { key, value })| EntryForm {
            key: key.clone(),
            value: (known >> index & 1 == 1).then(|| value.clone()),
        })
        .collect();
    let cases = domain.cases(&form).cases.into_iter();
    let held = cases.filter(|case| {
        case.entries.iter().zip(entries).all(|(case, entry)| holds(&case.value, &entry.value))
    });
    held.map(|case| {
        let counted = case.entries.iter().zip(entries).filter(|(case, _)| case.is_counted);
        (case.rule, counted.map(|(_, entry)| entry.value.clone()).collect())
    })
    .collect()
}

#[test]
fn exactly_the_case_of_the_matching_rule_holds() {
    let file = RuleFile { name: "r.yaml".to_owned(), text: RULES.into() };
    let domain = read_files(&[file], SharedDomains::Refuse).unwrap().remove("d").unwrap();
    let mut found = 0;
    for keys in [&["a"][..], &["b"], &["a", "b"], &["a", "a"], &["c"], &["a", "b", "b"]] {
        let combinations = VALUES.len().pow(keys.len() as u32);
        for number in 0..combinations {
            let entry = |(index, key): (usize, &&str)| {
                let value = VALUES[number / VALUES.len().pow(index as u32) % VALUES.len()];
                DescriptorEntry { key: (*key).to_owned(), value: value.to_owned() }
            };
            let entries: Vec<DescriptorEntry> = keys.iter().enumerate().map(entry).collect();
            let matched = domain.find(&entries).map(|found| {
                let values = found.partition.iter().map(|(_, value)| (*value).to_owned());
                (found.rule, values.collect::<Vec<_>>())
            });
            found += usize::from(matched.is_some());
            for known in 0..1 << keys.len() {
                let cases = by_cases(&domain, &entries, known);
                assert_eq!(
                    cases,
                    matched.iter().cloned().collect::<Vec<_>>(),
                    "{entries:?} {known}"
                );
            }
        }
    }
    assert!(found > 20, "{found}");
}

#[test]
fn rules_below_a_pattern_over_keys_are_named() {
    let text = "
domain: d
descriptors:
  - key: 'ab*'
    descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 1}}]
  - {key: abc, rate_limit: {unit: day, requests_per_unit: 1}}
";
    let file = RuleFile { name: "r.yaml".to_owned(), text: text.into() };
    let domain = read_files(&[file], SharedDomains::Refuse).unwrap().remove("d").unwrap();
    let form = |key: &str| [EntryForm { key: key.to_owned(), value: None }];
    let below = |outer: &str, inner: &str| {
        let form = [form(outer), form(inner)].concat();
        domain.cases(&form).under_key_patterns
    };
    assert_eq!(below("abc", "c"), [0]);
    for (outer, inner) in [("abc", "d"), ("b", "c")] {
        assert_eq!(below(outer, inner), [] as [usize; 0], "{outer} {inner}");
    }
    // No rule has one entry alone.
    assert_eq!(domain.cases(&form("abc")).under_key_patterns, [] as [usize; 0]);
}
