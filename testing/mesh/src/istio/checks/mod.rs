//! The checks, in the order in which they run. Each leaves the mesh as it found it.

mod changes;
mod forms;
pub mod identities;
mod limits;
mod reach;
pub mod stores;
mod wrong;

use super::mesh::Mesh;
use crate::checks::Checks;

/// Runs all of them.
pub fn run(mesh: &mut Mesh, checks: &mut Checks) {
    identities::check(mesh, checks);
    changes::check(mesh, checks);
    forms::check(mesh, checks);
    wrong::check(mesh, checks);
    stores::check(mesh, checks);
    limits::check(mesh, checks);
    reach::check(mesh, checks);
}
