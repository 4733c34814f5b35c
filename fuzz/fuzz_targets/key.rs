//! Reads bytes as a policy and requests: see `crates/quota/tests/hostile/keys.rs`.

#![no_main]

#[path = "../../crates/quota/tests/hostile/choices.rs"]
mod choices;
#[path = "../../crates/quota/tests/hostile/keys.rs"]
mod keys;
#[path = "../../crates/quota/tests/hostile/policy.rs"]
mod policy;
#[path = "../../crates/quota/tests/hostile/world.rs"]
mod world;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| keys::check(bytes));
