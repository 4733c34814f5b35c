//! The advisor as a library: its numbers against a plain computation, its estimates and its output.

#![cfg(test)]

mod brute;
mod output;
mod parts;
mod random_logs;
mod sample;
mod scarce;
mod windows;
