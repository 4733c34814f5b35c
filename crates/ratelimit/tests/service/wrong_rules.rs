//! Wrong rule files: each fault is named with its file, line, path and remedy.

use quotagate_ratelimit::rules::{RuleFile, SharedDomains, read_files};

fn faults(files: &[(&str, &[u8])], shared: SharedDomains) -> Vec<String> {
    let file =
        |(name, text): &(&str, &[u8])| RuleFile { name: (*name).to_owned(), text: text.to_vec() };
    let files: Vec<RuleFile> = files.iter().map(file).collect();
    let faults = read_files(&files, shared).err().unwrap_or_default();
    faults.iter().map(ToString::to_string).collect()
}

fn of(text: &str) -> Vec<String> {
    faults(&[("r.yaml", text.as_bytes())], SharedDomains::Refuse)
}

/// The rules of a domain whose first descriptor has these lines.
fn descriptor(lines: &str) -> String {
    format!("domain: d\ndescriptors:\n- key: k\n{lines}")
}

#[test]
fn each_wrong_field_has_its_line_path_and_remedy() {
    let limit = |fields: &str| descriptor(&format!("  rate_limit:\n{fields}"));
    for (text, expected) in [
        (String::new(), "r.yaml:1: file: is empty"),
        ("# nothing\n".to_owned(), "r.yaml:1: file: is empty"),
        ("domain: [\n".to_owned(), "file: must be YAML"),
        ("a: b: c\n".to_owned(), "file: must be YAML"),
        ("domain: d\n  x: 1\n".to_owned(), "file: must be YAML"),
        ("a: *unknown\n".to_owned(), "file: must be YAML"),
        ("{a: 1\n".to_owned(), "file: must be YAML"),
        ("text\n".to_owned(), "r.yaml:1: domain: must not be empty"),
        ("- domain: d\n".to_owned(), "domain: must not be empty"),
        ("descriptors: []\n".to_owned(), "domain: must not be empty: name the domain"),
        ("domain: ''\n".to_owned(), "r.yaml:1: domain: must not be empty"),
        ("domain: null\n".to_owned(), "r.yaml:1: domain: must not be empty"),
        ("domain: {a: 1}\n".to_owned(), "r.yaml:1: domain: must be a text"),
        ("domain: [d]\n".to_owned(), "domain[0]: must be a mapping"),
        (
            "domain: d\ndescriptor: []\n".to_owned(),
            "r.yaml:2: descriptor: unknown field: did you mean \"descriptors\"?",
        ),
        (
            "domain: d\nrules: []\n".to_owned(),
            "r.yaml:2: rules: unknown field: use one of domain, key",
        ),
        ("domain: d\ndescriptors: k\n".to_owned(), "r.yaml:2: descriptors: must be a list"),
        ("domain: d\ndescriptors: {key: k}\n".to_owned(), "r.yaml:2: descriptors: must be a list"),
        (
            "domain: d\ndescriptors:\n- k\n".to_owned(),
            "r.yaml:3: descriptors[0]: must be a mapping",
        ),
        (
            "domain: d\ndescriptors:\n- - key: k\n".to_owned(),
            "r.yaml:3: descriptors[0]: must be a mapping",
        ),
        (
            "domain: d\ndescriptors:\n- value: v\n".to_owned(),
            "r.yaml:3: descriptors[0].key: must not be empty",
        ),
        (
            "domain: d\ndescriptors:\n- key: ''\n".to_owned(),
            "r.yaml:3: descriptors[0].key: must not be empty",
        ),
        ("domain: d\ndescriptors:\n- key: ~\n".to_owned(), "descriptors[0].key: must not be empty"),
        ("domain: d\ndescriptors:\n- key: [a]\n".to_owned(), "r.yaml:3: descriptors[0].key"),
        (
            "domain: d\ndescriptors:\n- key: {a: b}\n".to_owned(),
            "r.yaml:3: descriptors[0].key: must be a text",
        ),
        (
            "domain: d\ndescriptors:\n- key: \"a\\0b\"\n".to_owned(),
            "r.yaml:3: descriptors[0].key: holds a NUL byte",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n- key: k\n".to_owned(),
            "r.yaml:4: descriptors[1]: the key \"k\" without a value occurs twice",
        ),
        (
            "domain: d\ndescriptors:\n- {key: k, value: v}\n- {key: k, value: v}\n".to_owned(),
            "r.yaml:4: descriptors[1]: the key \"k\" with the value \"v\" occurs twice",
        ),
        (
            "domain: d\ndescriptors:\n- {key: k, value: 'v*'}\n- {key: k, value: 'v*'}\n"
                .to_owned(),
            "r.yaml:4: descriptors[1]: the key \"k\" with the value \"v*\" occurs twice",
        ),
        (descriptor("  value: {a: 1}\n"), "r.yaml:4: descriptors[0].value: must be a text"),
        (
            descriptor("  valuee: v\n"),
            "r.yaml:4: descriptors[0].valuee: unknown field: did you mean \"value\"?",
        ),
        (
            descriptor("  descriptors:\n  - key: ''\n"),
            "r.yaml:5: descriptors[0].descriptors[0].key: must not be empty",
        ),
        (
            descriptor("  descriptors:\n  - {key: a}\n  - {key: a}\n"),
            "r.yaml:6: descriptors[0].descriptors[1]: the key \"a\"",
        ),
        (descriptor("  descriptors: 1\n"), "r.yaml:4: descriptors[0].descriptors: must be a list"),
        (
            descriptor("  shadow_mode: maybe\n"),
            "r.yaml:4: descriptors[0].shadow_mode: must be true or false",
        ),
        (
            descriptor("  shadow_mode: 'true'\n"),
            "r.yaml:4: descriptors[0].shadow_mode: must be true or false, without quotes",
        ),
        (descriptor("  shadow_mode: 1\n"), "descriptors[0].shadow_mode: must be true or false"),
        (
            descriptor("  quota_mode: []\n"),
            "r.yaml:4: descriptors[0].quota_mode: must be true or false",
        ),
        (
            descriptor("  detailed_metric: {a: 1}\n"),
            "descriptors[0].detailed_metric: must be true or false",
        ),
        (
            descriptor("  value_to_metric: of\n"),
            "descriptors[0].value_to_metric: must be true or false",
        ),
        (
            descriptor("  share_threshold: True1\n"),
            "descriptors[0].share_threshold: must be true or false",
        ),
        (
            descriptor("  share_threshold: true\n"),
            "r.yaml:4: descriptors[0].share_threshold: needs a `*` in value",
        ),
        (
            descriptor("  value: v\n  share_threshold: yes\n"),
            "r.yaml:5: descriptors[0].share_threshold: needs a `*`",
        ),
        (descriptor("  metadata: text\n"), "r.yaml:4: descriptors[0].metadata: must be a mapping"),
        (descriptor("  metadata: [1]\n"), "r.yaml:4: descriptors[0].metadata: must be a mapping"),
        (descriptor("  rate_limit: 5\n"), "r.yaml:4: descriptors[0].rate_limit: must be a mapping"),
        (descriptor("  rate_limit: [1]\n"), "r.yaml:4: descriptors[0].rate_limit"),
        (descriptor("  rate_limit: {}\n"), "descriptors[0].rate_limit.unit: is required"),
        (
            limit("    requests_per_unit: 1\n"),
            "descriptors[0].rate_limit.unit: is required: second, minute",
        ),
        (
            limit("    unit: dya\n    requests_per_unit: 1\n"),
            "r.yaml:5: descriptors[0].rate_limit.unit: \"dya\" is no unit: did you mean \"day\"?",
        ),
        (
            limit("    unit: fortnight\n    requests_per_unit: 1\n"),
            "is no unit: use one of second, minute, hour, day, week, month, year",
        ),
        (limit("    unit: unknown\n    requests_per_unit: 1\n"), "descriptors[0].rate_limit.unit"),
        (
            limit("    unit: {a: 1}\n    requests_per_unit: 1\n"),
            "r.yaml:5: descriptors[0].rate_limit.unit: must be a text",
        ),
        (
            limit("    unit: day\n    requests_per_unit: -1\n"),
            "r.yaml:6: descriptors[0].rate_limit.requests_per_unit: must be a whole number from 0 to 4294967295",
        ),
        (
            limit("    unit: day\n    requests_per_unit: 4294967296\n"),
            "requests_per_unit: must be a whole number",
        ),
        (
            limit("    unit: day\n    requests_per_unit: 1.5\n"),
            "requests_per_unit: must be a whole number",
        ),
        (
            limit("    unit: day\n    requests_per_unit: many\n"),
            "requests_per_unit: must be a whole number",
        ),
        (
            limit("    unit: day\n    requests_per_unit: '5'\n"),
            "requests_per_unit: must be a whole number from 0 to 4294967295, without quotes",
        ),
        (
            limit("    unit: day\n    requests_per_unit: .inf\n"),
            "requests_per_unit: must be a whole number",
        ),
        (limit("    unit: day\n    requests_per_unit: [1]\n"), "rate_limit.requests_per_unit"),
        (
            limit("    unit: day\n    unlimited: true\n"),
            "r.yaml:5: descriptors[0].rate_limit.unit: stands beside `unlimited`",
        ),
        (limit("    unlimited: perhaps\n"), "rate_limit.unlimited: must be true or false"),
        (
            limit("    unit: day\n    requests_per_unit: 1\n    name: {a: 1}\n"),
            "r.yaml:7: descriptors[0].rate_limit.name: must be a text",
        ),
        (
            limit("    unit: day\n    requests_per_unit: 1\n    replaces: other\n"),
            "r.yaml:7: descriptors[0].rate_limit.replaces: must be a list",
        ),
        (
            limit("    unit: day\n    requests_per_unit: 1\n    replaces: [other]\n"),
            "descriptors[0].rate_limit.replaces[0]: must be a mapping",
        ),
        (
            limit("    unit: day\n    requests_per_unit: 1\n    replaces: [{name: ''}]\n"),
            "rate_limit.replaces[0].name: must not be empty",
        ),
        (
            limit("    unit: day\n    requests_per_unit: 1\n    replaces: [{}]\n"),
            "rate_limit.replaces[0].name: must not be empty",
        ),
        (
            limit(
                "    unit: day\n    requests_per_unit: 1\n    name: me\n    replaces: [{name: me}]\n",
            ),
            "rate_limit.replaces[0].name: names this rule itself",
        ),
        (
            limit("    unit: day\n    requests_per_unt: 1\n"),
            "r.yaml:6: descriptors[0].rate_limit.requests_per_unt: unknown field: did you mean \"requests_per_unit\"?",
        ),
    ] {
        let found = of(&text);
        assert!(found.iter().any(|line| line.contains(expected)), "{text}\n{expected}\n{found:#?}");
        assert!(found.iter().all(|line| line.starts_with("r.yaml:")), "{found:#?}");
    }
}

#[test]
fn all_faults_of_all_files_are_named_at_once() {
    let one = b"domain: a\ndescriptors:\n- key: ''\n- key: k\n  rate_limit: {unit: x, requests_per_unit: -1}\n";
    let found =
        faults(&[("2.yaml", one), ("1.yaml", b"domain: 'a'\nfoo: 1\n")], SharedDomains::Refuse);
    let begins: Vec<&str> = found.iter().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(begins, ["1.yaml:2", "2.yaml:5", "2.yaml:5", "2.yaml:1", "2.yaml:3"], "{found:#?}");
    assert!(found[3].contains("the domain \"a\" is also in 1.yaml"), "{found:#?}");
}

#[test]
fn text_that_is_no_text_is_named_with_its_line() {
    let found = faults(&[("r.yaml", b"domain: d\n\xff\n")], SharedDomains::Refuse);
    assert_eq!(found, ["r.yaml:2: file: is not UTF-8: save it as UTF-8"]);
    let bomb: String = (0..40).fold("a0: &a0 [x]\n".to_owned(), |text, i| {
        text + &format!("a{}: &a{} [*a{i}, *a{i}, *a{i}]\n", i + 1, i + 1)
    });
    for text in [bomb, "[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000)] {
        assert_eq!(of(&text).len(), 1);
    }
    let deep = "domain: d\ndescriptors:\n".to_owned()
        + &(0..80)
            .map(|i| format!("{0}- key: k\n{0}  descriptors:\n", "  ".repeat(i)))
            .collect::<String>();
    assert!(of(&deep).iter().any(|line| line.contains("nested deeper than 64 levels")));
}

#[test]
fn yaml_is_read_as_the_original_reads_it() {
    let text = "
base: &base {unit: DAY, requests_per_unit: 0x10}
";
    assert!(of(text).iter().any(|line| line.contains("base: unknown field")));
    let good = "
# A comment before everything.
domain: d # and one behind a value
descriptors:
# between fields
- key: a # behind a key
  # inside an entry
  shadow_mode: on
  rate_limit: &limit {unit: DAY, requests_per_unit: 1_000}
- key: 7
  value: yes
  shadow_mode: No
  rate_limit: {<<: *limit, requests_per_unit: 020}
- key: blocked
  rate_limit: {unit: second}
- key: b
  key: c
  domain: ignored
  value:
  descriptors:
---
second: document
";
    assert_eq!(of(good), [""; 0]);
    let file = RuleFile { name: "r".to_owned(), text: good.into() };
    let domains = read_files(&[file], SharedDomains::Refuse).unwrap();
    let rules = domains["d"].rules();
    let limits: Vec<String> = rules
        .iter()
        .map(|rule| format!("{} {:?} {}", rule.policy, rule.limit, rule.shadow_mode))
        .collect();
    assert_eq!(
        limits,
        ["a Hits(1000, Day) true", "7=yes Hits(16, Day) false", "blocked Hits(0, Second) false"]
    );
}

#[test]
fn files_of_one_domain_merge_in_the_order_of_their_names_if_that_is_wanted() {
    let files: [(&str, &[u8]); 2] = [
        (
            "b.yaml",
            b"domain: d\ndescriptors:\n- {key: b, rate_limit: {unit: day, requests_per_unit: 2}}\n",
        ),
        (
            "a.yaml",
            b"domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n",
        ),
    ];
    assert_eq!(faults(&files, SharedDomains::Merge), [""; 0]);
    let found = faults(&files, SharedDomains::Refuse);
    assert!(
        found[0].starts_with("b.yaml:1: domain: the domain \"d\" is also in a.yaml"),
        "{found:?}"
    );
    let twice = [files[0], ("c.yaml", files[0].1)];
    let found = faults(&twice, SharedDomains::Merge);
    assert!(found[0].starts_with("c.yaml:3: descriptors[0]: the key \"b\""), "{found:?}");
}
