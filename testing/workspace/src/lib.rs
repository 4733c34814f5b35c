//! What every task and test needs to know about this machine and this source tree: [`paths`] of
//! what is built, [`tools`] that are installed, its mirror of [`debian`], and how a [`task`] runs other programs.

pub mod debian;
pub mod paths;
pub mod task;
pub mod tools;
