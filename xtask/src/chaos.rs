//! `cargo xtask chaos`: faults under load, through real Envoys, stores and Redis.

use std::ffi::OsString;

use anyhow::Result;

use crate::{build, run, setup};

/// Builds what is broken, and breaks it with these arguments, whatever they are: the package knows them.
pub fn run(arguments: &[OsString]) -> Result<()> {
    setup::run(setup::Redis::Fetch)?;
    build::run()?;
    build::panicking_filter()?;
    run::step("chaos: faults under load");
    let chaos = ["run", "--quiet", "--locked", "--package", "quotagate-chaos", "--"];
    run::visibly(run::cargo().args(chaos).args(arguments))
}
