//! `cargo xtask test`: everything that a release needs.

use anyhow::Result;
use quotagate_workspace::task;

use crate::{
    build,
    setup::{self, Consent, Part},
};

/// Sets up, builds, and runs every test.
pub fn run(consent: Consent) -> Result<()> {
    setup::run(Part::ALL, consent)?;
    build::tests()?;
    task::step("test: everything");
    task::visibly(task::cargo().args(["test", "--workspace", "--locked"]))
}
