//! Rejected configurations: at least one for each rule, with all their faults.

mod cases;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use quotagate_quota::config::Config;

use super::fixtures;

#[test]
fn every_fault_is_reported_with_its_path() {
    let cases = cases::all();
    assert!(!cases.is_empty());
    for (name, case) in cases {
        let faults = Config::parse(&case.document).map(|_| ()).expect_err(&name);
        let found: Vec<_> = faults.iter().map(|f| (f.path.as_str(), f.message.as_str())).collect();
        assert_eq!(found.len(), case.faults.len(), "{name}:\n{faults}");
        for (path, message) in &case.faults {
            assert!(
                found.iter().any(|(p, m)| p == path && m.contains(message)),
                "{name}: expected {path}: {message}, found\n{faults}"
            );
        }
        assert_eq!(faults.to_string().lines().count(), case.faults.len(), "{name}:\n{faults}");
    }
}

#[test]
fn every_bad_fixture_is_listed() {
    let cases = cases::all();
    let documents: BTreeSet<_> = cases.values().map(|case| &case.document).collect();
    for entry in fs::read_dir(fixtures().join("bad")).unwrap() {
        let file = entry.unwrap().path();
        assert!(documents.contains(&fs::read(&file).unwrap()), "{}", file.display());
    }
}

/// `cargo xtask fuzz` begins its search with these documents.
#[test]
#[ignore = "writes into the folder that QUOTAGATE_SEEDS names"]
fn write_seeds() {
    let folder = std::env::var_os("QUOTAGATE_SEEDS").expect("QUOTAGATE_SEEDS names a folder");
    for (name, case) in cases::all() {
        fs::write(Path::new(&folder).join(format!("{name}.json")), case.document).unwrap();
    }
}
