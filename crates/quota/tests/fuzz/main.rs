//! The properties of the fuzz targets over random bytes: what `cargo xtask fuzz` runs where there is no cargo-fuzz,
//! and, with far fewer cases, every run of the tests.

#![cfg(test)]

#[path = "../hostile/choices.rs"]
mod choices;
mod config;
mod reply;

use proptest::collection::vec;
use proptest::prelude::any;
use proptest::test_runner::{Config as Runs, TestRunner};

/// How many cases each property is run over.
const CASES: &str = "QUOTAGATE_FUZZ_CASES";
const FEW: u32 = 500;

fn fuzz(longest: usize, property: fn(&[u8])) {
    let cases = match std::env::var(CASES) {
        Ok(cases) => cases.parse().expect("QUOTAGATE_FUZZ_CASES must be a number"),
        Err(_) => FEW,
    };
    let runs = Runs { cases, failure_persistence: None, ..Runs::default() };
    let bytes = vec(any::<u8>(), 0..longest);
    let outcome = TestRunner::new(runs).run(&bytes, |bytes| {
        property(&bytes);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}

#[test]
fn fuzz_config() {
    fuzz(256, config::check);
}

#[test]
fn fuzz_reply() {
    fuzz(600, reply::check);
}
