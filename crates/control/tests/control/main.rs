//! The admin address over HTTP.

#![cfg(test)]

mod addresses;
mod admin;
mod closing;
#[path = "../../../store/tests/store/common.rs"]
mod common;
mod dials;
mod drain;
mod fleet;
#[path = "../../../store/tests/store/http.rs"]
mod http;
mod metrics;
#[path = "../../../operate/tests/operate/operators.rs"]
#[allow(dead_code, reason = "the tests of operating use the rest")]
mod operators;
mod served;
#[path = "../../../operate/tests/operate/slow.rs"]
#[allow(dead_code, reason = "the tests of operating use the rest")]
mod slow;
mod tokens;
mod usage;
