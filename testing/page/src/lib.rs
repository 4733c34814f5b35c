//! The live page in a real browser, in front of the real store, Envoy and Redis.
//!
//! [`browser`] is a headless Chromium with its own profile, [`rig`] the system behind the page,
//! with traffic, and [`page`] the actions of a person.

pub mod browser;
pub mod page;
pub mod rig;
