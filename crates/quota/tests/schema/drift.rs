//! At every place of a document the reader and the schema want the same.

use std::collections::BTreeSet;

use quotagate_quota::config::{Config, Fault};
use serde_json::{Value, json};

use crate::places::{self, Place};

/// No field is named so, nor nearly so.
const UNKNOWN: &str = "zzzzzzzzzzzz";

#[test]
fn every_object_has_the_fields_that_the_reader_knows() {
    for place in places::all() {
        let unknown = json!({UNKNOWN: 0});
        assert_eq!(known(&place, unknown.clone()), place.fields(), "the fields of {:?}", place.path());
        // Nor are there objects that the schema does not know of.
        let inner = place.set(json!(null), json!([unknown]));
        if !places::all().iter().any(|p| p.path() == format!("{}[0]", place.path())) {
            assert_eq!(known(&place, json!([{UNKNOWN: 0}])), None, "{}: {inner}", place.path());
        }
    }
}

/// The fields that the reader lists when it finds an unknown one in `value` at `place`.
fn known(place: &Place, value: Value) -> Option<BTreeSet<String>> {
    let faults = faults_at(place, value);
    let unknown =
        faults.iter().find(|f| f.path.ends_with(UNKNOWN) && f.message.starts_with("unknown field"))?;
    let names = unknown.message.strip_prefix("unknown field: known are ").expect(&unknown.message);
    Some(names.split(", ").map(str::to_owned).collect())
}

#[test]
fn every_place_takes_the_values_that_the_reader_takes() {
    let mut found = BTreeSet::new();
    for place in places::all() {
        let schema = jsonschema::draft202012::new(&place.schema()).unwrap();
        for value in values() {
            let read = faults_at(&place, value.clone()).is_empty();
            if read != schema.is_valid(&value) {
                let shown: String = value.to_string().chars().take(30).collect();
                found.insert(format!("{} {} {shown}", place.path(), if read { "takes" } else { "refuses" }));
            }
        }
    }
    let listed: BTreeSet<String> = READER_ALONE.iter().map(|line| (*line).to_owned()).collect();
    let new: Vec<_> = found.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&found).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "the reader, other than the schema: {new:#?}\nno longer so: {gone:#?}"
    );
}

/// Where the reader judges otherwise than the schema, and is meant to.
const READER_ALONE: &[&str] = &[];

/// Values of every kind, many of them at some bound.
fn values() -> Vec<Value> {
    let texts = [
        "",
        "a",
        "A",
        "a-b",
        "a.b",
        "a..b",
        "a b",
        " a",
        "a\u{e4}",
        "a\n",
        "\0",
        "{",
        "é",
        "/",
        "/a",
        "/a?b",
        "*",
        "*.a",
        "=",
        "a=",
        "caller",
        "host",
        "0s",
        "1ms",
        "50ms",
        "1s",
        "01s",
        "1500ms",
        "60s",
        "61s",
        "1m",
        "2m",
        "1h",
        "366d",
        "367d",
        "1w",
        "1",
        "10",
        "10.0.0.0/8",
        "10.0.0.1/8",
        "2001:db8::/32",
        "allow",
        "deny",
        "local",
        "skip",
        "shared",
        "exact",
        "lease",
        "all",
        "enforce",
        "shadow",
        "off",
        "epoch",
        "delta",
        "ietf",
        "x_ratelimit",
        "uri",
        "dns",
        "string",
        "number",
        "boolean",
        "text/plain",
        "(",
        ":path",
    ];
    let numbers = [0, 1, 2, 64, 99, 100, 128, 129, 399, 400, 599, 600, (1_u64 << 53) - 1, 1 << 53, u64::MAX];
    let lengths = [64, 65, 128, 129, 1024, 1025, 4096, 4097, 65_536, 65_537];
    let lists = [1, 2, 3, 8, 9, 16, 17, 32, 33, 64, 65, 256, 257, 1024, 1025];
    let mut values: Vec<Value> = texts.into_iter().map(Value::from).collect();
    values.extend(numbers.into_iter().map(Value::from));
    values.extend(lengths.map(|n| "a".repeat(n).into()));
    values.extend([
        json!(-1),
        json!(0.1),
        json!(0.5),
        json!(1.0),
        json!(1.5),
        json!(true),
        json!(false),
        json!(null),
    ]);
    values.extend([json!([]), json!({}), json!([[]]), json!(["a", "a"]), json!(["ietf", "ietf"])]);
    for n in lists {
        // Elements of no type that anything takes, and good ones.
        values.push((0..n).map(|i| format!("n{i}")).collect());
        values.push((0..n).map(|i| 100 + i).collect());
        values.push((0..n).map(|i| (format!("n{i}"), json!("v"))).collect());
    }
    values
}

/// The reader's faults of `value` at `place`, or within it.
fn faults_at(place: &Place, value: Value) -> Vec<Fault> {
    let document = place.set(base(place), value);
    let Err(faults) = Config::parse(document.to_string().as_bytes()) else { return Vec::new() };
    let path = place.path();
    let within = |fault: &&Fault| {
        fault
            .path
            .strip_prefix(&path)
            .is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
    };
    faults.iter().filter(within).cloned().collect()
}

/// A document in which nothing speaks against a value at `place`.
fn base(place: &Place) -> Value {
    let leased = place.path().contains(".lease");
    json!({
        "domain": "d",
        "store": {"cluster": "c"},
        "identities": {"caller": [{"client_ip": {}}]},
        "policies": [{
            "name": "p",
            "partition_by": ["caller"],
            "quota": 1,
            "window": "1s",
            "precision": if leased { "lease" } else { "exact" },
        }],
    })
}

#[test]
fn what_is_left_out_is_what_the_schema_says() {
    for place in places::all() {
        let Some(default) = place.default() else { continue };
        let path = place.path();
        let mut document = base(&place);
        for (parent, value) in PARENTS.iter().filter(|(parent, _)| path.starts_with(&format!("{parent}."))) {
            let parent = places::all().into_iter().find(|p| p.path() == *parent).expect(parent);
            document = parent.set(document, serde_json::from_str(value).unwrap());
        }
        let read = |document: Value| match Config::parse(document.to_string().as_bytes()) {
            Ok(config) => format!("{config:?}"),
            Err(faults) => panic!("{path}: {document}: {faults}"),
        };
        let said = place.set(document.clone(), default.clone());
        assert_eq!(read(place.without(&document)), read(said), "the default of {path}");
    }
}

/// Objects that are good without the fields which have defaults.
const PARENTS: &[(&str, &str)] = &[
    ("identities.any-name[0].jwt", r#"{"claim": "a"}"#),
    ("identities.any-name[0].header", r#"{"name": "a"}"#),
    ("identities.any-name[0].cookie", r#"{"name": "a"}"#),
    ("identities.any-name[0].query", r#"{"name": "a"}"#),
    ("identities.any-name[0].client_ip", "{}"),
    ("identities.any-name[0].metadata", r#"{"filter": "a", "path": ["b"]}"#),
];
