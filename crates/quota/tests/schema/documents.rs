//! Whole documents: the schema accepts what the reader accepts, and rejects what the reader rejects
//! for its shape.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use jsonschema::Validator;
use quotagate_quota::config::Config;
use serde_json::Value;

use crate::cases;
use crate::nodes::{self, SchemaNode};
use crate::workspace;

fn validator() -> Validator {
    jsonschema::draft202012::new(&nodes::ROOT).unwrap()
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// The paths at which the schema rejects a document.
fn refused(document: &Value) -> Vec<String> {
    validator().iter_errors(document).map(|error| error.instance_path().to_string()).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn name(file: &Path) -> String {
    file.file_stem().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn every_good_document_is_accepted() {
    let good: Vec<_> = files(&fixtures()).into_iter().filter(|file| file.is_file()).collect();
    assert!(!good.is_empty());
    for file in good {
        let document: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let habits: Vec<_> =
            HABITS.iter().filter(|(n, _)| *n == name(&file)).map(|(_, at)| *at).collect();
        assert_eq!(refused(&document), habits, "{}", file.display());
    }
}

/// Values in good documents that no person writes: large integers as strings of digits, as Envoy
/// passes them.
const HABITS: &[(&str, &str)] = &[
    ("good", "/policies/0/quota_from/max"),
    ("good", "/policies/0/tiers/quotas/premium"),
    ("good", "/policies/5/quota"),
];

/// `tests/hostile` changes these documents, so they must contain every field.
#[test]
fn good_documents_have_every_field() {
    let good = ["good.json", "good-redis.json"].map(|name| -> Value {
        serde_json::from_slice(&fs::read(fixtures().join(name)).unwrap()).unwrap()
    });
    // Verified sources are the same everywhere, so one use of each in `identities` is enough.
    // Conditions are the same within `not`.
    let elsewhere = |path: &str| {
        [".quota_from.", ".tiers.source.", ".match.not."].iter().any(|within| path.contains(within))
    };
    let missing = nodes::ALL
        .iter()
        .filter(|node| !good.iter().any(|good| node.is_in(good)))
        .map(SchemaNode::path);
    let missing: Vec<_> = missing.filter(|path| !elsewhere(path)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn schema_rejects_bad_documents_except_the_listed_ones() {
    let mut taken = BTreeSet::new();
    for (name, case) in cases::all() {
        // A schema cannot judge text that is not JSON.
        let Ok(document) = serde_json::from_slice::<Value>(&case.document) else {
            continue;
        };
        if refused(&document).is_empty() {
            taken.insert(name);
        }
    }
    let listed = READER_ALONE.iter().flat_map(|(_, names)| *names);
    let listed: BTreeSet<_> = listed.map(|name| (*name).to_owned()).collect();
    let new: Vec<_> = taken.difference(&listed).collect();
    let gone: Vec<_> = listed.difference(&taken).collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "the schema accepts {new:?}: fix it, or list them with a reason; it rejects {gone:?}, which are listed"
    );
}

/// The bad documents that the schema accepts: the reason that it cannot know better, and their
/// names.
const READER_ALONE: &[(&str, &[&str])] = &[
    (
        "what does not go with in_flight",
        &[
            "in-flight-with-count",
            "in-flight-with-count-denied",
            "in-flight-with-fields-of-windows",
            "in-flight-with-lease",
            "in-flight-with-precision-and-lease",
            "in-flight-with-settle",
            "max-wait-without-in-flight",
            "max-wait-long",
        ],
    ),
    ("what a reader of JSON does with two fields of one name", &["field-twice"]),
    ("what is named elsewhere", &["partition-by-unknown", "policy-name-twice"]),
    (
        "what durations mean",
        &["response-grpc-pushback", "timeout-long", "window-fraction", "window-long"],
    ),
    ("what a regular expression is", &["match-path-regex", "match-path-regex-huge"]),
    ("how a path is resolved", &["match-path-dots"]),
    ("what names time zones can have", &["window-calendar-zone"]),
    ("that case does not matter in names of headers", &["denied-header-twice"]),
    (
        "what is JSON, and for which content types",
        &["denied-body-empty", "denied-body-json", "denied-content-type-alone"],
    ),
    (
        "what another field says",
        &[
            "cost-header-default",
            "count-denied-lease",
            "count-denied-status",
            "lease-exact",
            "lease-exact-said",
            "quota-from-boolean",
            "reserve-default",
            "settle-count-denied",
            "settle-lease",
            "sliding-calendar",
            "sliding-lease",
            "sliding-stagger",
            "stagger-calendar",
            "tiers-boolean",
            "tiers-number",
        ],
    ),
    (
        "what partitions and networks there are",
        &[
            "override-address",
            "override-encoded",
            "override-network",
            "override-network-nobody",
            "override-secret",
            "override-spelling",
            "override-twice",
            "overrides-everybody",
        ],
    ),
];

#[test]
fn every_shipped_document_is_accepted() {
    let mut found = 0;
    for file in shipped() {
        let text = fs::read_to_string(&file).unwrap();
        for document in documents(&file, &text) {
            found += 1;
            assert_eq!(refused(&document), Vec::<String>::new(), "{}: {document}", file.display());
            if let Err(faults) = Config::parse(document.to_string().as_bytes()) {
                panic!("{}: {faults}", file.display());
            }
        }
    }
    assert!(
        found >= 4,
        "envoy/envoy.yaml, docker/envoy.yaml, README and docs/ each hold one, found {found}"
    );
}

/// The files that people copy from: all YAML under `envoy` and `docker`, the README and `docs`.
fn shipped() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        ["envoy", "docker", "docs"].map(|folder| workspace().join(folder)).into();
    let mut shipped = vec![workspace().join("README.md")];
    while let Some(folder) = folders.pop() {
        for file in files(&folder) {
            match file.extension().and_then(|extension| extension.to_str()) {
                _ if file.is_dir() => folders.push(file),
                Some("yaml" | "yml" | "md") => shipped.push(file),
                _ => {}
            }
        }
    }
    shipped
}

/// The policy documents in a file: objects with the required fields.
fn documents(file: &Path, text: &str) -> Vec<Value> {
    let yaml: Vec<String> = if file.extension().is_some_and(|extension| extension == "md") {
        let blocks = text.split("```yaml\n").skip(1);
        blocks.map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
    } else {
        vec![text.to_owned()]
    };
    let mut nodes: Vec<Value> = Vec::new();
    for yaml in yaml {
        let parts: Vec<Value> = serde_saphyr::from_multiple(&yaml)
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        nodes.extend(parts);
    }
    let mut documents = Vec::new();
    while let Some(node) = nodes.pop() {
        match node {
            Value::Object(fields)
                if ["domain", "store", "policies"].iter().all(|f| fields.contains_key(*f)) =>
            {
                documents.push(Value::Object(fields));
            }
            Value::Object(fields) => nodes.extend(fields.into_iter().map(|(_, value)| value)),
            Value::Array(values) => nodes.extend(values),
            _ => {}
        }
    }
    documents
}
