//! `cargo xtask scale`: a fleet in virtual time, and what it costs its Redis.

use std::ffi::OsString;

use anyhow::Result;

use crate::run;

/// Runs the simulation with these arguments, whatever they are: it knows them.
pub fn run(arguments: &[OsString]) -> Result<()> {
    run::step("scale: a fleet in virtual time");
    let scale = ["run", "--quiet", "--locked", "--release", "--package", "quotagate-scale", "--"];
    run::visibly(run::cargo().args(scale).args(arguments))
}
