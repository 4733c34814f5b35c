//! Reads bytes as bodies with token usage: see `crates/quota/tests/hostile/usage.rs`.

#![no_main]

#[path = "../../crates/quota/tests/hostile/choices.rs"]
mod choices;
#[path = "../../crates/quota/tests/hostile/usage.rs"]
mod usage;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| usage::check(bytes));
