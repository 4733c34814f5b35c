//! The service over a store in memory: what it answers, and what it counts.

#![cfg(test)]

mod answers;
mod background;
mod bench;
mod cases;
mod charges;
mod credits;
mod gate;
mod health;
mod histories;
mod hostile_rules;
mod matching;
mod modes;
mod precision;
mod published;
mod readme;
mod refunds;
mod resources;
mod running;
mod tls;
mod units;
mod wrong_rules;
mod xds;
