//! Every artefact of `dist/release`, installed and tried: images over a registry, the package and
//! the archive in Debian.
//!
//! `cargo xtask test --release` runs these tests, and `cargo xtask ci` does. They need root, and
//! programs that `cargo xtask setup --release` finds.

#![cfg(test)]

mod archive;
mod artifacts;
mod deb;
mod debian;
mod fetchers;
mod programs;
mod ratelimit_image;
mod registry;
mod store;
mod store_image;
mod unpacked;
