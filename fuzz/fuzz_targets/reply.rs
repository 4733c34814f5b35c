//! Reads bytes as requests, store replies and ticks: see `crates/quota/tests/hostile/reply.rs`.

#![no_main]

#[path = "../../crates/quota/tests/hostile/choices.rs"]
mod choices;
#[path = "../../crates/quota/tests/hostile/reply.rs"]
mod reply;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| reply::check(bytes));
