//! Rule files that nobody would write: they load, or are refused with a fault, in memory and time
//! that grow with their size.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use quotagate_ratelimit::rules::{
    DescriptorRule, DomainRules, FileFault, RateLimitRule, RuleDomain, RuleFile, SharedDomains,
    compile, is_rule_file, read_files, written_name,
};

use crate::bench::descriptor;

fn read(text: impl Into<Vec<u8>>) -> Result<Arc<RuleDomain>, Vec<FileFault>> {
    let file = RuleFile { name: "r.yaml".to_owned(), text: text.into() };
    let domains = read_files(&[file], SharedDomains::Refuse)?;
    Ok(domains.into_values().next().unwrap())
}

fn fault(text: impl Into<Vec<u8>>) -> String {
    read(text).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 1}";

/// Rules of so many levels, with this before the limit of the innermost one.
fn nested(depth: usize, extra: &str) -> String {
    let mut text = "domain: d\n".to_owned();
    for level in 0..depth {
        let indent = "  ".repeat(level);
        text += &format!("{indent}descriptors:\n{indent}- key: k{level}\n");
    }
    text + &format!("{}{LIMIT}\n{extra}", "  ".repeat(depth))
}

#[test]
fn rules_of_fifty_levels_match_and_too_many_levels_are_refused() {
    let domain = read(nested(50, "")).unwrap();
    let entries: Vec<String> = (0..50).map(|level| format!("k{level}=v")).collect();
    let descriptor = descriptor(&entries.join(","));
    assert_eq!(domain.find(&descriptor.entries).unwrap().partition.len(), 50);
    assert!(domain.find(&descriptor.entries[..49]).is_none());
    assert!(domain.rules()[0].policy.len() <= 256);
    assert!(fault(nested(80, "")).contains("is nested deeper than 64 levels: use fewer entries"));
    for open in ["[", "{a: ", "- ", "descriptors: ["] {
        let text = fault(format!("domain: d\ndescriptors: {}", open.repeat(100_000)));
        assert!(text.starts_with("r.yaml:"), "{text}");
    }
}

#[test]
fn ten_thousand_entries_load() {
    let entries = |values: &str| -> String {
        let entry = |number| {
            let value = values.replace('N', &format!("{number}"));
            format!("- {{key: k, value: '{value}', {LIMIT}}}\n")
        };
        (0..10_000).map(entry).collect()
    };
    let domain = read(format!("domain: d\ndescriptors:\n{}", entries("vN"))).unwrap();
    assert_eq!(domain.rules().len(), 10_000);
    assert_eq!(domain.find(&descriptor("k=v9999").entries).unwrap().rule, 9999);
    let domain = read(format!("domain: d\ndescriptors:\n{}", entries("vN*"))).unwrap();
    assert_eq!(domain.find(&descriptor("k=v9999").entries).unwrap().rule, 9, "v9* is the first");
    let names = read(format!(
        "domain: d\ndescriptors:\n{}",
        entries("vN").replace("{unit:", "{name: same, unit:")
    ))
    .unwrap();
    assert_eq!(names.rules()[9999].policy.as_ref(), "k=v9999");
}

#[test]
fn faults_beyond_the_first_thousand_of_a_file_are_only_counted() {
    let text: String = (0..100_000).map(|number| format!("f{number}: 1\n")).collect();
    let faults = read(format!("domain: d\n{text}")).unwrap_err();
    assert_eq!(faults.len(), 1001, "the number of faults is bounded");
    assert!(
        faults[1000].to_string().ends_with("has 99000 further faults: correct those above first")
    );
    let text: String = "- {}\n".repeat(100_000);
    let faults = read(format!("domain: d\ndescriptors:\n{text}")).unwrap_err();
    assert_eq!(faults.len(), 1001);
    assert_eq!(faults[999].line, 1002);
    // The bound holds for what is wrong with fields and with rules together, and in each file.
    let both: String = (0..600).map(|number| format!("f{number}: 1\n")).collect();
    let both = format!("{both}domain: d\ndescriptors:\n{}", "- {}\n".repeat(700));
    let file = |name: &str| RuleFile { name: name.to_owned(), text: both.clone().into() };
    let faults = read_files(&[file("a"), file("b")], SharedDomains::Merge).unwrap_err();
    for name in ["a", "b"] {
        let of_file: Vec<&FileFault> = faults.iter().filter(|fault| fault.file == name).collect();
        assert_eq!(of_file.len(), 1001, "{name}");
        let last = of_file[1000].to_string();
        assert!(last.ends_with("has 300 further faults: correct those above first"), "{last}");
    }
}

#[test]
fn long_names_that_begin_alike_stay_apart_whatever_their_order() {
    let names = |order: [&str; 3]| -> BTreeMap<String, String> {
        let entry = |end: &str| format!("- {{key: {}{end}, {LIMIT}}}\n", "k".repeat(300));
        let text = format!("domain: d\ndescriptors:\n{}", order.map(entry).concat());
        let domain = read(text).unwrap();
        let rules = order.into_iter().zip(domain.rules());
        rules.map(|(end, rule)| (end.to_owned(), rule.policy.to_string())).collect()
    };
    let found = names(["a", "b", "c"]);
    let distinct: BTreeSet<&String> = found.values().collect();
    assert!(distinct.len() == 3 && distinct.iter().all(|name| name.len() == 256), "{found:?}");
    assert_eq!(found, names(["c", "a", "b"]));
    let [one, other] = ["a", "b"].map(|end| written_name(&format!("{}{end}", "d".repeat(300))));
    assert!(one != other && one.len() == 256, "{one}");
}

#[test]
fn two_hundred_thousand_rules_below_a_long_key_get_names() {
    let rate_limit = RateLimitRule { unlimited: true, ..RateLimitRule::default() };
    let below = (0..200_000).map(|number| DescriptorRule {
        key: format!("k{number}"),
        rate_limit: Some(rate_limit.clone()),
        ..DescriptorRule::default()
    });
    let descriptors = below.collect();
    let outer = DescriptorRule { key: "k".repeat(256), descriptors, ..DescriptorRule::default() };
    let tree = DomainRules { domain: "d".to_owned(), descriptors: vec![outer] };
    let domain = compile(&[&tree]).unwrap();
    let names: HashSet<&str> = domain.rules().iter().map(|rule| &*rule.policy).collect();
    assert!(names.len() == 200_000 && names.iter().all(|name| name.len() <= 256));
}

/// Rules below which so many `a` are spread over levels, in every way.
fn splits(rest: usize) -> Vec<DescriptorRule> {
    let split = |first| DescriptorRule {
        key: vec!["a"; first].join("/"),
        rate_limit: (first == rest)
            .then(|| RateLimitRule { unlimited: true, ..RateLimitRule::default() }),
        descriptors: splits(rest - first),
        ..DescriptorRule::default()
    };
    (1..=rest).map(split).collect()
}

#[test]
fn thousands_of_rules_with_the_same_path_get_names() {
    let tree = DomainRules { domain: "d".to_owned(), descriptors: splits(14) };
    let domain = compile(&[&tree]).unwrap();
    let path = ["a"; 14].join("/");
    let names: HashSet<String> =
        domain.rules().iter().map(|rule| rule.policy.to_string()).collect();
    let numbered = (2..=8192).map(|number| format!("{path}~{number}"));
    assert_eq!(names, std::iter::once(path.clone()).chain(numbered).collect());
}

#[test]
fn faults_show_the_beginning_of_long_texts() {
    let long = "v".repeat(1 << 20);
    for text in [
        format!(
            "domain: d\ndescriptors:\n- {{key: k, value: {long}}}\n- {{key: k, value: {long}}}\n"
        ),
        format!("domain: d\ndescriptors:\n- {{key: {long}}}\n- {{key: {long}}}\n"),
        format!("domain: d\ndescriptors:\n- {{key: k, rate_limit: {{unit: {long}}}}}\n"),
        format!("domain: d\n{long}: 1\n"),
    ] {
        let found = fault(text);
        assert!(found.len() < 1000, "{}", found.len());
    }
}

#[test]
fn values_of_a_megabyte_load_and_their_paths_are_bounded() {
    let long = "v".repeat(1 << 20);
    let domain =
        read(format!("domain: d\ndescriptors:\n- {{key: k, value: {long}, {LIMIT}}}\n")).unwrap();
    assert!(domain.find(&descriptor(&format!("k={long}")).entries).is_some());
    assert_eq!(domain.rules()[0].policy.len(), 256);
    let stars = "*".repeat(1 << 20);
    let domain =
        read(format!("domain: d\ndescriptors:\n- {{key: k, value: 'a{stars}b', {LIMIT}}}\n"));
    assert!(domain.unwrap().find(&descriptor("k=axb").entries).is_some());
    // Each path below repeats the long value.
    let below: String =
        (0..50_000).map(|number| format!("  - {{key: k{number}, {LIMIT}}}\n")).collect();
    let text =
        format!("domain: d\ndescriptors:\n- key: k\n  value: {long}\n  descriptors:\n{below}");
    let found = fault(text);
    let expected = "the paths of the rules up to this one have more than 67108864 bytes: shorten";
    assert!(found.contains(expected) && found.lines().count() == 1, "{found}");
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_line() {
    assert_eq!(fault(b"domain: d\nx: \xff\n"), "r.yaml:2: file: is not UTF-8: save it as UTF-8");
    assert!(fault("domain: \"d\\0\"\n").contains("r.yaml:1: domain: holds a NUL byte: remove it"));
    assert!(fault("domain: d\n\0").starts_with("r.yaml:"));
    assert!(fault(b"\xff\xfed\0o\0").starts_with("r.yaml:1: file: is not UTF-8"));
    assert!(fault(vec![b' '; (16 << 20) + 1]).contains("is larger than 16777216 bytes"));
}

#[test]
fn anchors_do_not_multiply() {
    let bomb: String = (0..40).fold("a0: &a0 [x]\n".to_owned(), |text, i| {
        text + &format!("a{}: &a{} [*a{i}, *a{i}, *a{i}]\n", i + 1, i + 1)
    });
    let merged: String = (0..40).fold("a0: &a0 {k0: x}\n".to_owned(), |text, i| {
        text + &format!("a{}: &a{} {{<<: [*a{i}, *a{i}, *a{i}], k{i}: x}}\n", i + 1, i + 1)
    });
    for text in [bomb, merged] {
        let found = fault(format!("domain: d\n{text}"));
        assert!(found.contains("has more than 2000000 values: make it smaller"), "{found}");
    }
    let members: String = (0..2000).map(|number| format!("k{number}: 1, ")).collect();
    let merges = "- {<<: *a}\n".repeat(300);
    let faults = read(format!("a: &a {{{members}}}\ndescriptors:\n{merges}")).unwrap_err();
    assert_eq!(faults.len(), 1001);
    let long = "v".repeat(1 << 20);
    let values = "- {key: k, value: *v}\n".repeat(100);
    let found = fault(format!("domain: &v {long}\ndescriptors:\n{values}"));
    let expected = "has more than 67108864 bytes of text with its aliases: make it smaller";
    assert!(found.contains(expected) && found.lines().count() == 1, "{found}");
    assert!(fault("a: &a [*a]\n").contains("an alias stands inside what it stands for"));
}

#[test]
fn rule_file_is_known_by_its_content() {
    for (text, expected) in [
        ("domain: d\ndescriptors: []\n", true),
        ("{\"descriptors\": [], \"domain\": \"d\"}", true),
        ("domain: d\ndescriptors:\n- key: [\n", true),
        ("descriptors: []\npolicies: []\n", false),
        ("domain: d\n", false),
        ("", false),
        ("kind: Service\nspec:\n  descriptors: []\n", false),
    ] {
        assert_eq!(is_rule_file(text.as_bytes()), expected, "{text}");
    }
    assert!(!is_rule_file(b"\xffdescriptors:\n"));
}
