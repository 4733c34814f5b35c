//! The prose lint.

use anyhow::Result;

/// Checks the prose of the tree.
pub fn run() -> Result<()> {
    Ok(())
}
