//! `cargo xtask screenshot`: the picture of the live page in the README.

use std::ffi::OsString;

use anyhow::Result;

use crate::{build, run, setup};

/// Sets up, builds, and takes it; the arguments are those of the example that does so.
pub fn run(arguments: &[OsString]) -> Result<()> {
    setup::run(setup::Redis::Fetch)?;
    setup::chromium()?;
    build::run()?;
    run::step("screenshot: the live page under real traffic");
    let example =
        ["run", "--quiet", "--locked", "--package", "quotagate-page", "--example", "screenshot", "--"];
    run::visibly(run::cargo().args(example).args(arguments))
}
