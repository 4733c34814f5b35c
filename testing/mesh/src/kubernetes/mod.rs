//! kube-apiserver and Helm: the chart's lifecycle.

pub mod api_server;

use anyhow::Result;

use crate::{binaries::Binaries, checks::Checks};
use api_server::ApiServer;

/// Runs the checks of the chart.
///
/// # Errors
/// When the API server or Helm cannot be started.
pub fn run(binaries: &Binaries, checks: &mut Checks) -> Result<()> {
    let api = ApiServer::start(binaries)?;
    checks.check("kubernetes.ready", "the API server answers", || {
        api.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}")?;
        let found = api.get(&["namespace", "shop"])?;
        Ok(format!("{} at {}", found["kind"], api.address()))
    });
    Ok(())
}
