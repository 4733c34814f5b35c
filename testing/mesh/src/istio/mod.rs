//! The checks of this control plane.

use anyhow::Result;

use crate::{binaries::Binaries, checks::Checks};

/// Runs them.
///
/// # Errors
/// When a part that they need cannot be started.
#[expect(clippy::unnecessary_wraps, reason = "the checks come next")]
pub fn run(_binaries: &Binaries, _checks: &mut Checks) -> Result<()> {
    Ok(())
}
