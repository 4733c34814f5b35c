//! The adapter against a host of a few maps: which host functions the filter calls, on which
//! context, and how often.
//!
//! The real SDK and the real adapter run natively, with one host per thread. The end-to-end tests
//! cover the real Envoy, and those of `crates/quota` what the driver decides. These tests cover how
//! the adapter translates one into the other, what Envoy does rarely, and calls that only a host
//! can count.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod cases;
#[cfg(test)]
mod costs;
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
mod mark;
#[cfg(test)]
mod operators;
#[cfg(test)]
mod redirects;
#[cfg(test)]
mod settle;
#[cfg(test)]
mod wrong_documents;
