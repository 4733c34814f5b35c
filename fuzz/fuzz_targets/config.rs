//! Reads bytes as a configuration: see `crates/quota/tests/hostile/config.rs`.

#![no_main]

#[path = "../../crates/quota/tests/hostile/choices.rs"]
mod choices;
#[path = "../../crates/quota/tests/hostile/config.rs"]
mod config;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| config::check(bytes));
