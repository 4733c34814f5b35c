//! The `quotagate` command: every test starts the real process.

#![cfg(test)]

mod advise;
mod check;
mod health;
mod memory;
mod merge;
mod operate;
mod ports;
mod rate_limits;
mod readiness;
mod schema;
mod secrets;
mod serve;
mod tls;
