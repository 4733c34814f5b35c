//! The live page in a real browser, in front of the real store, Envoy and Redis.
//!
//! [`browser`] is a headless Chromium with a profile of its own; [`rig`] is all that stands behind
//! the page, with traffic; [`page`] is what a person does with it.

pub mod browser;
pub mod page;
pub mod rig;
