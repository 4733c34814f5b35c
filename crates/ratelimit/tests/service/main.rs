//! The service over a store in memory: what it answers, and what it counts.

#![cfg(test)]

mod answers;
mod bench;
mod cases;
mod hostile_rules;
mod matching;
mod modes;
mod precision;
mod refunds;
mod units;
mod wrong_rules;
