//! The checks under istiod: [`envoy/istio`](../../../../envoy/istio) in a mesh of pods that are
//! processes in network namespaces.

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
