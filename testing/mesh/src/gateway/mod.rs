//! The checks under Envoy Gateway: [`envoy/gateway`](../../../../envoy/gateway) unchanged, once for
//! each form of the filter, and `quotagate ratelimit` in the place of its rate limit service.

mod cases;
mod changes;
mod exact;
mod gateways;
mod plane;
mod rate_limits;
mod stores;
mod wrong;

use anyhow::Result;
use quotagate_support::envoy::Form;
use quotagate_workspace::task;

use crate::{binaries::Binaries, checks::Checks, istio::network::PodNetwork};

use gateways::Gateways;

/// Runs them.
///
/// # Errors
/// When a part that they need cannot be started.
pub fn run(binaries: &Binaries, checks: &mut Checks) -> Result<()> {
    // Servers listen on the usual ports there, whatever else runs on this machine.
    let network = PodNetwork::new()?;
    network.hub.within(|| {
        for form in [Form::Wasm, Form::Native] {
            task::step(&format!("eg: starting Envoy Gateway for the {form:?} form"));
            let gateways = Gateways::start(binaries, &network, form)?;
            exact::check(&gateways, checks);
            if form == Form::Wasm {
                cases::check(&gateways, checks);
                changes::check(&gateways, checks);
                stores::check(&gateways, checks);
                rate_limits::check(&gateways, &network, checks);
            }
            wrong::check(&gateways, checks);
        }
        Ok(())
    })
}
