//! Reads bytes as what a store publishes and answers: see `crates/quota/tests/hostile/take_up.rs`.

#![no_main]

#[path = "../../crates/quota/tests/hostile/choices.rs"]
mod choices;
#[path = "../../crates/quota/tests/hostile/take_up.rs"]
mod take_up;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| take_up::check(bytes));
