//! Invariants 1, 2 and 4 against hostile bytes in configurations, requests, replies of the store
//! and bodies.
//!
//! Each module named in `fuzz` has a `check` that builds a case from plain bytes, through the
//! public interface only. These tests feed it random bytes. The targets in `fuzz/` of the source
//! tree let cargo-fuzz search for better ones. `cargo xtask fuzz` runs either for longer.

#![cfg(test)]

mod choices;
mod config;
mod continuity;
mod keys;
mod policy;
mod reply;
mod take_up;
mod usage;
mod world;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config as Runs, TestRunner};
use quotagate_quota::config::Config;

/// The environment variable with the number of cases for each test.
const CASES: &str = "QUOTAGATE_FUZZ_CASES";
const FEW: u32 = 1000;

/// Feeds random bytes, fewer than `longest`, to `check`.
fn fuzz(longest: usize, check: fn(&[u8])) {
    let cases = std::env::var(CASES).map_or(FEW, |cases| cases.parse().expect("a number of cases"));
    let runs = Runs { cases, failure_persistence: None, ..Runs::default() };
    let outcome = TestRunner::new(runs).run(&vec(any::<u8>(), 0..longest), |bytes| {
        check(&bytes);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn fuzz_config_invariant_4_no_configuration_and_no_request_panics() {
    fuzz(300, config::check);
}

#[test]
fn fuzz_key_invariant_4_keys_are_injective_and_read_back() {
    fuzz(1500, keys::check);
}

#[test]
fn fuzz_continuity_counter_that_goes_on_has_one_key_and_window_under_both_documents() {
    fuzz(1500, continuity::check);
}

#[test]
fn fuzz_reply_invariants_1_and_2_hold_for_every_store_answer() {
    fuzz(600, reply::check);
}

#[test]
fn fuzz_take_up_invariant_4_store_that_lies_changes_no_document() {
    fuzz(80, take_up::check);
}

#[test]
fn fuzz_usage_is_the_same_for_every_way_to_cut_a_body() {
    fuzz(400, usage::check);
}

#[test]
fn partition_too_long_for_a_message_is_a_digest() {
    let names: Vec<String> = (0..16).map(|i| format!("x-{i}-{}", "*".repeat(120))).collect();
    let sources = names
        .iter()
        .enumerate()
        .map(|(i, name)| (format!("i{i}"), serde_json::json!([{"header": {"name": name}}])));
    let identities: serde_json::Map<_, _> = sources.collect();
    let by: Vec<_> = identities.keys().cloned().collect();
    let document = serde_json::json!({
        "domain": "d", "store": {"cluster": "s"}, "identities": identities,
        "policies": [{"name": "p", "quota": 1, "window": "1s", "partition_by": by}],
    });
    let config = Config::parse(document.to_string().as_bytes()).unwrap();
    let facts: Vec<_> = names.into_iter().map(world::Fact::Header).collect();
    let mut world = world::World::choose(&facts, &mut choices::Choices::new(&[]));
    let mut keys = std::collections::BTreeSet::new();
    for changed in &facts {
        world.facts.insert(changed.clone(), vec![b"other".to_vec()]);
        let key = keys::key(&config, &world.write(&mut choices::Choices::new(&[]))).unwrap();
        keys::well_formed(&key);
        assert_eq!(key.len(), "d:p:{~}".len() + 32, "{key}");
        keys.insert(key);
    }
    assert_eq!(keys.len(), facts.len());
}
