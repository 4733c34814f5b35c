//! The checks under istiod: [`envoy/istio`](../../../../envoy/istio) in a mesh of pods that are
//! processes in network namespaces.

#![expect(
    clippy::indexing_slicing,
    reason = "of JSON alone, where what is missing reads as null: all of it comes from files and servers \
              of this run"
)]

mod checks;
pub mod exact;
pub mod mesh;
pub mod network;
pub mod outside;
mod plane;

use anyhow::Result;
use quotagate_workspace::task;

use crate::{binaries::Binaries, checks::Checks};

use mesh::Mesh;

/// Runs them.
///
/// # Errors
/// When a part that they need cannot be started.
pub fn run(binaries: &Binaries, checks: &mut Checks) -> Result<()> {
    task::step("istio: starting istiod, a gateway and two stores");
    let mut mesh = Mesh::start(binaries)?;
    exact::check(&mesh, checks);
    checks::run(&mut mesh, checks);
    Ok(())
}
