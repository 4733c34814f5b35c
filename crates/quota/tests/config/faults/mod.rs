//! Rejected configurations: at least one for each rule, with all their faults.

mod counting;
mod document;
mod identities;
mod matching;
mod overrides;
mod policies;
mod quotas;
mod response;

use std::collections::BTreeSet;

use super::{fixtures, parse};

/// The path of a fault, and a part of its message.
type Expected = (&'static str, &'static str);

/// All faults of each file under `bad`.
fn bad() -> impl Iterator<Item = &'static (&'static str, &'static [Expected])> {
    [
        counting::BAD,
        document::BAD,
        identities::BAD,
        matching::BAD,
        overrides::BAD,
        policies::BAD,
        quotas::BAD,
        response::BAD,
    ]
    .into_iter()
    .flatten()
}

#[test]
fn every_fault_is_reported_with_its_path() {
    for (name, expected) in bad() {
        let faults = parse(&format!("bad/{name}")).map(|_| ()).expect_err(name);
        let found: Vec<_> = faults.iter().map(|f| (f.path.as_str(), f.message.as_str())).collect();
        assert_eq!(found.len(), expected.len(), "{name}:\n{faults}");
        for (path, message) in *expected {
            assert!(
                found.iter().any(|(p, m)| p == path && m.contains(message)),
                "{name}: expected {path}: {message}, found\n{faults}"
            );
        }
        assert_eq!(faults.to_string().lines().count(), expected.len(), "{name}:\n{faults}");
    }
}

#[test]
fn every_bad_fixture_is_listed() {
    let files: BTreeSet<String> = std::fs::read_dir(fixtures().join("bad"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let expected: BTreeSet<String> = bad().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, expected);
}
