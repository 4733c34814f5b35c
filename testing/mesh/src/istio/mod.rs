//! The checks under istiod: [`envoy/istio`](../../../../envoy/istio) in a mesh of pods that are
//! processes in network namespaces.

mod api;
mod changes;
mod container;
pub mod exact;
mod forms;
mod identities;
pub mod mesh;
pub mod network;
pub mod outside;
mod plane;
mod pods;
mod stores;
mod wrong;

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
    if std::env::var("ONLY").is_ok() { exact::check(&mesh, checks); wrong::check(&mesh, checks); return Ok(()) }
    exact::check(&mesh, checks);
    identities::check(&mesh, checks);
    changes::check(&mesh, checks);
    forms::check(&mesh, checks);
    wrong::check(&mesh, checks);
    stores::check(&mut mesh, checks);
    Ok(())
}
