//! Quotas are exact, whatever form the filter has.

use anyhow::{Result, ensure};

use crate::checks::Checks;

use super::mesh::{Mesh, QUOTA, Statuses, by, get};

/// How many requests a check of a quota sends.
pub const SENT: usize = 300;

/// Runs the checks.
pub fn check(mesh: &Mesh, checks: &mut Checks) {
    checks.check("istio.exact", "WasmPlugin with an image from a registry: exact quota", || {
        counted(mesh)?;
        exact(&mesh.burst(&by("exact")?, SENT)?)
    });
    checks.check("istio.headers", "answers say what is left, refusals say when to retry", || {
        let request = by("headers")?;
        let admitted = mesh.ask(&request)?;
        let header = |name: &str| admitted.header(name).map(ToOwned::to_owned);
        let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
        ensure!(names.iter().all(|name| header(name).is_some()), "{admitted:?}");
        mesh.burst(&request, SENT)?;
        let refused = mesh.ask(&request)?;
        ensure!(refused.status == 429, "{refused:?}");
        let retry = refused.header("retry-after");
        Ok(format!("{:?}, then retry-after {retry:?}", names.map(header)))
    });
}

/// Waits until the gateway counts.
pub fn counted(mesh: &Mesh) -> Result<()> {
    let counts = |response: &quotagate_support::http::Response| {
        response.header("x-ratelimit-remaining").is_some()
    };
    mesh.until("a counted request", &get("/"), counts).map(drop)
}

/// That the whole quota was admitted, and nothing else.
pub fn exact(statuses: &Statuses) -> Result<String> {
    let admitted = statuses.get(&200).copied().unwrap_or_default();
    let refused = statuses.get(&429).copied().unwrap_or_default();
    let all: usize = statuses.values().sum();
    ensure!(admitted == QUOTA && admitted + refused == all, "{statuses:?}");
    Ok(format!("{admitted} of {all} admitted"))
}
