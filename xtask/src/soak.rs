//! `cargo xtask soak MINUTES`: mixed load under rolling restarts.

use std::ffi::OsString;

use anyhow::Result;

use crate::{build, run, setup};

/// Builds what is put under load, and does so with these arguments, whatever they are: the package knows them.
pub fn run(arguments: &[OsString]) -> Result<()> {
    setup::run(setup::Redis::Fetch)?;
    build::run()?;
    run::step("soak: mixed load under rolling restarts");
    let soak = ["run", "--quiet", "--locked", "--package", "quotagate-chaos", "--bin", "soak", "--"];
    run::visibly(run::cargo().args(soak).args(arguments))
}
