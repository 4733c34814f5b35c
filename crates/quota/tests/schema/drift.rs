//! At every path of a document, the reader and the schema accept the same values.

use std::collections::BTreeSet;

use quotagate_quota::config::{Config, Fault};
use serde_json::{Value, json};

use crate::nodes::{self, SchemaNode};

/// No field has this name or a similar one.
const UNKNOWN: &str = "zzzzzzzzzzzz";

#[test]
fn schema_objects_have_the_fields_that_the_reader_knows() {
    for node in nodes::ALL.iter() {
        let unknown = json!({UNKNOWN: 0});
        assert_eq!(known(node, unknown.clone()), node.fields(), "the fields of {:?}", node.path());
        // The reader expects no object that is missing in the schema.
        if !node.has_list() {
            assert_eq!(known(node, json!([unknown])), None, "within a list at {:?}", node.path());
        }
    }
}

/// The fields that the reader suggests for an unknown one in `value` at `node`.
fn known(node: &SchemaNode, value: Value) -> Option<BTreeSet<String>> {
    let faults = faults_at(node, value);
    let unknown = faults
        .iter()
        .find(|f| f.path.ends_with(UNKNOWN) && f.message.starts_with("unknown field"))?;
    let names = unknown.message.strip_prefix("unknown field").expect(&unknown.message);
    // An object without fields has none to suggest.
    let names = names.strip_prefix(": known are ").into_iter().flat_map(|names| names.split(", "));
    Some(names.map(str::to_owned).collect())
}

#[test]
fn schema_accepts_the_values_that_the_reader_accepts() {
    let mut stricter = BTreeSet::new();
    for node in nodes::ALL.iter() {
        let path = node.path();
        let schema = jsonschema::draft202012::new(&node.schema()).unwrap();
        for value in values(node) {
            let read = faults_at(node, value.clone());
            match (read.is_empty(), schema.is_valid(&value)) {
                (false, true) if READER_ALONE.iter().any(|(listed, _)| *listed == path) => {
                    stricter.insert(path.clone());
                }
                (true, false) if is_habit(&value) => {}
                (taken, valid) => assert_eq!(
                    taken, valid,
                    "whether {path} may be {value:.100}: the reader (left) says {read:?}, and the schema"
                ),
            }
        }
    }
    let listed: BTreeSet<_> = READER_ALONE.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(stricter, listed, "the paths at which the reader rejects more than the schema");
}

#[test]
fn schema_bounds_lists_as_the_reader_does() {
    for node in nodes::ALL.iter() {
        let most = node.most_elements();
        let is_too_long = |len: usize| {
            let value = if node.has_list() {
                Value::from(vec![Value::Null; len])
            } else {
                (0..len).map(|i| (format!("n{i}"), Value::Null)).collect()
            };
            let faults = faults_at(node, value);
            faults
                .iter()
                .any(|f| f.path == node.path() && f.message.starts_with("must have at most"))
        };
        match most {
            Some(most) => {
                assert!(!is_too_long(most) && is_too_long(most + 1), "{} of {}", most, node.path())
            }
            None => assert!(!node.has_list(), "{} has no bound", node.path()),
        }
    }
}

/// Whether Envoy may pass a number in this form.
fn is_habit(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
}

/// The paths at which the reader rejects more than a schema can, with the reason.
const READER_ALONE: &[(&str, &str)] = &[
    ("store.timeout", "knows what durations mean"),
    ("policies[0].window", "knows what durations mean"),
    ("policies[0].max_wait", "knows what durations mean, and that it needs in_flight"),
    ("policies[0].lease.ahead", "knows what durations mean"),
    ("response.grpc_pushback", "knows what durations mean"),
    ("policies[0].partition_by", "knows the identities"),
    ("policies[0].partition_by[0]", "knows the identities"),
    ("policies[0].match.path.regex", "compiles expressions"),
    ("policies[0].match.headers[0].regex", "compiles expressions"),
    ("policies[0].match.query.regex", "compiles expressions"),
    ("policies[0].match.client_ip[0]", "computes with addresses"),
    ("policies[0].match.not.path.regex", "compiles expressions"),
    ("policies[0].match.not.headers[0].regex", "compiles expressions"),
    ("policies[0].match.not.query.regex", "compiles expressions"),
    ("policies[0].match.not.client_ip[0]", "computes with addresses"),
    ("policies[0].overrides[0].network", "computes with addresses"),
    ("policies[0].cost.settle[0].usage", "adds weights"),
];

/// Texts, with and without a meaning in some field.
const TEXTS: &str = "a A a-b a.b a..b { \u{e4} / /a /a?b * *.a = a= caller host Host 0s 1ms 50ms 1s 01s 1500ms 60s 61s 1m 2m \
    1h 366d 367d 1w 1 10 10.0.0.0/8 10.0.0.1/8 2001:db8::/32 allow deny local skip shared exact lease all enforce \
    shadow off epoch delta ietf x_ratelimit draft_07 draft_03 uri dns subject string number boolean text/plain a/b;c ( :path";
const NUMBERS: [u64; 15] =
    [0, 1, 2, 64, 99, 100, 128, 129, 399, 400, 599, 600, (1 << 53) - 1, 1 << 53, u64::MAX];
/// Lengths at the bounds of texts, and one beyond all bounds.
const LENGTHS: [usize; 10] = [64, 65, 128, 129, 1024, 1025, 4096, 4097, 65_536, 65_537];
/// Values of every kind, many of them at a bound. Long ones only where they may be valid.
fn values(node: &SchemaNode) -> Vec<Value> {
    let mut values: Vec<Value> = TEXTS.split_whitespace().map(Value::from).collect();
    values.extend(["", "a b", " a", "a\n", "\0"].map(Value::from));
    values.extend(NUMBERS.map(Value::from));
    if node.has_text() {
        values.extend(LENGTHS.map(|length| "a".repeat(length).into()));
    }
    values.extend([
        json!(-1),
        json!(0.1),
        json!(1.0),
        json!(1.5),
        json!(true),
        json!(false),
        json!(null),
    ]);
    values.extend([json!([]), json!({}), json!([[]]), json!(["a", "a"]), json!(["ietf", "ietf"])]);
    values.extend([json!(["ietf", "draft_07"]), json!(["draft_03", "draft_07"])]);
    values.extend([
        json!(["n"]),
        json!([100]),
        json!([100, 100]),
        json!({"n": "v"}),
        json!({"n": 1}),
    ]);
    values
}

/// The reader's faults for `value` at `node` or below.
fn faults_at(node: &SchemaNode, value: Value) -> Vec<Fault> {
    let document = node.set(base(node), value);
    let Err(faults) = Config::parse(document.to_string().as_bytes()) else { return Vec::new() };
    let path = node.path();
    let within = |fault: &&Fault| {
        fault
            .path
            .strip_prefix(&path)
            .is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
    };
    faults.iter().filter(within).cloned().collect()
}

/// A document in which a value at `node` cannot cause other faults.
fn base(node: &SchemaNode) -> Value {
    let path = node.path();
    let raw = path.ends_with(".value");
    let cost = if path.ends_with(".if_missing") {
        json!({"reserve": 1, "settle": [{"usage": "total"}]})
    } else if path.contains(".cost.settle") {
        json!({"reserve": 1})
    } else {
        json!(1)
    };
    let inside = ["store.redis", "store.password_file", "store.prefix"].contains(&path.as_str());
    json!({
        "domain": "d",
        "store": if inside { json!({"redis": "redis://h"}) } else { json!({"cluster": "c"}) },
        "identities": {"caller": [if raw { json!({"header": {"name": "a"}}) } else { json!({"client_ip": {}}) }]},
        "policies": [{
            "name": "p",
            "partition_by": ["caller"],
            "quota": 1,
            "window": "1s",
            "cost": cost,
            "precision": if path.contains(".lease") { "lease" } else { "exact" },
        }],
        "response": {"denied": {"body": "{}"}},
    })
}

#[test]
fn left_out_fields_read_like_their_defaults_in_the_schema() {
    let mut compared = 0;
    for node in nodes::ALL.iter() {
        let Some(default) = node.default() else { continue };
        let path = node.path();
        let mut document = base(node);
        if path == "identities" {
            document["policies"][0]["partition_by"] = json!([]);
        }
        let around = PARENTS.iter().filter(|(parent, _)| path.starts_with(&format!("{parent}.")));
        if let Some((parent, value)) = around.max_by_key(|(parent, _)| parent.len()) {
            let parent = nodes::ALL.iter().find(|node| node.path() == *parent).unwrap();
            document = parent.set(document, serde_json::from_str(value).unwrap());
        }
        let read = |document: Value| match Config::parse(document.to_string().as_bytes()) {
            // Without the warnings: they may be about fields that are written, whatever they mean.
            Ok(Config { domain, store, policies, response, access_log, .. }) => {
                format!("{domain} {store:?} {policies:?} {response:?} {access_log:?}")
            }
            Err(faults) => panic!("{path}: {document}: {faults}"),
        };
        let written = node.set(document.clone(), default.clone());
        assert_eq!(read(node.without(document)), read(written), "the default of {path}");
        compared += 1;
    }
    assert!(compared > 20, "only {compared} defaults");
}

/// Objects that are valid without the fields that have defaults.
const PARENTS: &[(&str, &str)] = &[
    ("policies[0].quota_from", r#"{"jwt": {"claim": "a"}}"#),
    ("policies[0].quota_from.jwt", r#"{"claim": "a"}"#),
    ("policies[0].quota_from.metadata", r#"{"filter": "a", "path": ["b"]}"#),
    ("policies[0].tiers", r#"{"source": {"jwt": {"claim": "a"}}, "quotas": {"a": 1}}"#),
    ("policies[0].cost.header", r#"{"name": "a"}"#),
    ("policies[0].cost", r#"{"reserve": 1, "settle": [{"usage": "total"}]}"#),
    ("policies[0].cost.reserve.header", r#"{"name": "a"}"#),
    ("policies[0].cost.settle[0].usage", r#"{"input": 1, "output": 1}"#),
    ("policies[0].count", r#"{"status": [401]}"#),
    ("policies[0].window", r#"{"calendar": "day"}"#),
    ("policies[0].lease", "{}"),
    ("identities.any-name[0].jwt", r#"{"claim": "a"}"#),
    ("identities.any-name[0].header", r#"{"name": "a"}"#),
    ("identities.any-name[0].cookie", r#"{"name": "a"}"#),
    ("identities.any-name[0].query", r#"{"name": "a"}"#),
    ("identities.any-name[0].client_ip", "{}"),
    ("identities.any-name[0].metadata", r#"{"filter": "a", "path": ["b"]}"#),
];
