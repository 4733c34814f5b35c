//! Reads the cases in the YAML files of this folder.
//!
//! Each case changes `fixtures/good-small.json` by JSON merge patches (RFC 7396): `document`
//! changes the whole document, then `policy` changes its first policy. Where the text itself is
//! wrong, not the values in it, the case has a `file` of `fixtures/bad` instead of patches.
//!
//! In a patch, `{$times: 3, text: a}` is the text `aaa`. `{$times: 3, item: p}` is a list of three
//! items, each with its index from 0 where the item has `{n}`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

/// A document that the reader refuses.
pub struct Case {
    pub document: Vec<u8>,
    /// The path of each fault, and a part of its message.
    pub faults: Vec<(String, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenCase {
    file: Option<String>,
    document: Option<Value>,
    policy: Option<Value>,
    faults: Vec<BTreeMap<String, String>>,
}

/// All cases by their names.
pub fn all() -> BTreeMap<String, Case> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let good = fs::read(tests.join("fixtures/good-small.json")).unwrap();
    let good: Value = serde_json::from_slice(&good).unwrap();
    let mut cases = BTreeMap::new();
    for entry in fs::read_dir(tests.join("config/faults")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let written: BTreeMap<String, WrittenCase> =
            serde_saphyr::from_str(&fs::read_to_string(&file).unwrap())
                .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        for (name, WrittenCase { file, document, policy, faults }) in written {
            let document = match (file, document, policy) {
                (Some(file), None, None) => {
                    fs::read(tests.join("fixtures/bad").join(file)).unwrap()
                }
                (None, document, policy) => changed(&good, document, policy).to_string().into(),
                _ => panic!("{name}: a file has no patch beside it"),
            };
            let faults: Vec<_> = faults.into_iter().flatten().collect();
            assert!(!faults.is_empty(), "{name}: has no fault");
            let twice = cases.insert(name.clone(), Case { document, faults });
            assert!(twice.is_none(), "{name}: is the name of two cases");
        }
    }
    cases
}

fn changed(good: &Value, document: Option<Value>, policy: Option<Value>) -> Value {
    let mut changed = good.clone();
    if let Some(patch) = document {
        json_patch::merge(&mut changed, &written_out(patch));
    }
    if let Some(patch) = policy {
        json_patch::merge(&mut changed["policies"][0], &written_out(patch));
    }
    changed
}

/// The patch with each `$times` replaced by what it stands for.
fn written_out(patch: Value) -> Value {
    match patch {
        Value::Array(items) => items.into_iter().map(written_out).collect(),
        Value::Object(fields) if fields.contains_key("$times") => {
            let times = usize::try_from(fields["$times"].as_u64().unwrap()).unwrap();
            match (fields.get("text"), fields.get("item")) {
                (Some(text), None) => text.as_str().unwrap().repeat(times).into(),
                (None, Some(item)) => (0..times).map(|n| numbered(item, n)).collect(),
                _ => panic!("$times needs a text or an item: {fields:?}"),
            }
        }
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, written_out(value))).collect()
        }
        value => value,
    }
}

fn numbered(item: &Value, n: usize) -> Value {
    serde_json::from_str(&item.to_string().replace("{n}", &n.to_string())).unwrap()
}
