//! Which rule a descriptor has.

use prost::Message;
use quotagate_ratelimit::messages::DescriptorEntry;
use quotagate_ratelimit::rules::{RuleDomain, RuleFile, SharedDomains, read_files};

use crate::bench::descriptor;

fn domain(rules: &str) -> std::sync::Arc<RuleDomain> {
    let file = RuleFile { name: "rules.yaml".to_owned(), text: rules.into() };
    read_files(&[file], SharedDomains::Refuse).unwrap().remove("d").unwrap()
}

/// The policy of a descriptor and the entries that tell its counters apart.
fn found(domain: &RuleDomain, text: &str) -> String {
    let descriptor = descriptor(text);
    let Some(found) = domain.find(&descriptor.entries) else { return "-".to_owned() };
    let partition: Vec<String> =
        found.partition.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{} {{{}}}", domain.rules()[found.rule].policy, partition.join(","))
}

#[test]
fn examples_of_the_original_match_as_they_do_there() {
    let domain = domain(
        "
domain: d
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: database
    value: default
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 5}
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: remote_address
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: remote_address
    value: 50.0.0.5
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: key
    value: '1'
    descriptors:
      - key: foo
        value: 'bar*'
        rate_limit: {unit: minute, requests_per_unit: 20}
      - key: foo
        value: 'ba*'
        rate_limit: {unit: minute, requests_per_unit: 10}
      - key: foo
        rate_limit: {unit: minute, requests_per_unit: 1}
",
    );
    for (asked, expected) in [
        ("database=users", "database=users {}"),
        ("database=other", "-"),
        ("message_type=marketing", "-"),
        ("message_type=marketing,to_number=1", "message_type=marketing/to_number {to_number=1}"),
        ("message_type=other,to_number=1", "-"),
        ("message_type=marketing,to_number=1,more=2", "-"),
        ("to_number=1", "to_number {to_number=1}"),
        ("remote_address=50.0.0.5", "remote_address=50.0.0.5 {}"),
        ("remote_address=50.0.0.6", "remote_address {remote_address=50.0.0.6}"),
        ("key=1,foo=bar", "key=1/foo=bar%2A {foo=bar}"),
        ("key=1,foo=bazaar", "key=1/foo=ba%2A {foo=bazaar}"),
        ("key=1,foo=other", "key=1/foo {foo=other}"),
        ("unknown=1", "-"),
    ] {
        assert_eq!(found(&domain, asked), expected, "{asked}");
    }
}

#[test]
fn value_that_matches_is_not_left_for_the_key_alone() {
    let domain = domain(
        "
domain: d
descriptors:
  - key: a
    value: x
  - key: a
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors:
      - key: b
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: w
    value: 'x*'
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 1}
",
    );
    assert_eq!(found(&domain, "a=x"), "-");
    assert_eq!(found(&domain, "a=x,b=1"), "-");
    assert_eq!(found(&domain, "a=y,b=1"), "a/b {a=y,b=1}");
    assert_eq!(found(&domain, "w=x1"), "w=x%2A {}", "all values share a counter");
}

#[test]
fn key_and_value_never_run_into_each_other() {
    let domain = domain(
        "
domain: d
descriptors:
  - {key: a, value: b, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: c_d, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: 'x*', rate_limit: {unit: day, requests_per_unit: 1}}
",
    );
    assert_eq!(found(&domain, "a_b="), "-");
    assert_eq!(found(&domain, "c=d"), "-");
    assert_eq!(found(&domain, "xyz=1"), "x%2A {xyz=1}", "a pattern over key and value");
}

#[test]
fn rules_of_one_name_have_policies_of_their_own() {
    let domain = domain(
        "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1, name: same}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 1, name: same}}
",
    );
    let policies: Vec<&str> = domain.rules().iter().map(|rule| &*rule.policy).collect();
    assert_eq!(policies, ["same", "b"]);
}

#[test]
fn hostile_descriptors_find_nothing_and_do_no_harm() {
    let domain = domain(
        "domain: d\ndescriptors:\n- {key: a, value: 'x*y*z', rate_limit: {unit: day, requests_per_unit: 1}}\n",
    );
    let long = "x".repeat(1 << 20);
    for text in [
        format!("a={long}"),
        format!("{long}={long}"),
        vec!["a=x"; 10_000].join(","),
        "a=\0".to_owned(),
        vec!["k=v"; 50].join(","),
    ] {
        assert_eq!(found(&domain, &text), "-");
    }
    assert!(domain.find(&[]).is_none());
}

#[test]
fn backslashes_in_values_of_requests_are_those_of_rules() {
    let domain = domain(
        r"
domain: d
descriptors:
  - {key: user, value: 'CORP\xavier', rate_limit: {unit: day, requests_per_unit: 1}}
",
    );
    let sent = DescriptorEntry { key: "user".to_owned(), value: r"CORP\xavier".to_owned() };
    let read = DescriptorEntry::decode(sent.encode_to_vec().as_slice()).unwrap();
    assert!(domain.find(&[read]).is_some());
    // Two bytes of it belong to no letter.
    let wrong = [b"\x0a\x04user\x12\x0cCORP".as_slice(), b"\xff\xfexavier"].concat();
    let read = DescriptorEntry::decode(wrong.as_slice()).unwrap();
    assert!(domain.find(&[read]).is_none());
}
