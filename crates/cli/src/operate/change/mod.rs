//! The commands that change something, each with the command that undoes it.

pub(super) mod dial;
pub(super) mod overrides;
pub(super) mod reset;
mod undo;
