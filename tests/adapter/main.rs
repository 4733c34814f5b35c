//! The adapter against a host that is a few maps: what the filter calls, on which context, and how
//! often.
//!
//! The real SDK and the real adapter run natively, one host a thread. What the real Envoy does is
//! shown by the end-to-end tests; here is what it does rarely, and what can only be counted from
//! within.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod dials;
#[cfg(test)]
mod document;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod held;
#[cfg(test)]
mod host;
#[cfg(test)]
mod imports;
#[cfg(test)]
mod operators;
#[cfg(test)]
mod redirects;
