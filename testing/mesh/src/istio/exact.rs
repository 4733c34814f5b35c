//! Quotas are exact, whatever form the filter has.

use std::thread;

use anyhow::{Result, anyhow, ensure};

use quotagate_support::wait;

use crate::checks::Checks;

use crate::istio::mesh::{Mesh, PUSH, QUOTA, Verdict, Verdicts, by, get};
use crate::istio::plane::pods::Pod;

/// How many requests a check of a quota sends.
pub const SENT: usize = 300;

/// Runs the checks.
pub fn check(mesh: &Mesh, checks: &mut Checks) {
    checks.check("istio.exact", "WasmPlugin with an image from a registry: exact quota", || {
        counted(mesh)?;
        exact(&mesh.burst(&by("exact")?, SENT)?)
    });
    checks.check("istio.shared", "two gateways share one quota", || {
        let mut second = mesh.another_gateway("second")?;
        second.wait_until_ready()?;
        counted_at(mesh, &second)?;
        let (request, second) = (by("shared")?, &second);
        let (one, other) = thread::scope(|scope| {
            let other = scope.spawn(|| mesh.burst_to(second, &request, SENT / 2));
            (mesh.burst(&request, SENT / 2), other.join())
        });
        let mut all = one?;
        for (verdict, count) in other.map_err(|_| anyhow!("a client has panicked"))?? {
            *all.entry(verdict).or_default() += count;
        }
        exact(&all)
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

/// Waits until the gateway counts, whichever of its threads gets a request.
pub fn counted(mesh: &Mesh) -> Result<()> {
    counted_at(mesh, &mesh.gateway)
}

fn counted_at(mesh: &Mesh, gateway: &Pod) -> Result<()> {
    const IN_A_ROW: usize = 20;
    wait::until_true("counted requests", PUSH, || {
        for _ in 0..IN_A_ROW {
            let answer = mesh.connect_to(gateway)?.send(&get("/"))?;
            if !matches!(Verdict::of(&answer), Verdict::Counted | Verdict::Refused(429)) {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// That the whole quota was admitted, and nothing else. A busy machine may keep a call from the
/// store for longer than `store.timeout`, and the shipped document lets such a request pass: so two
/// in a hundred may be uncounted. The outcome says how many were.
pub fn exact(verdicts: &Verdicts) -> Result<String> {
    exactly(QUOTA, verdicts)
}

/// The same of another quota.
pub fn exactly(quota: usize, verdicts: &Verdicts) -> Result<String> {
    let of = |verdict: Verdict| verdicts.get(&verdict).copied().unwrap_or_default();
    let (counted, uncounted) = (of(Verdict::Counted), of(Verdict::Uncounted));
    let all: usize = verdicts.values().sum();
    let refused = of(Verdict::Refused(429));
    // The store may have counted a request whose answer came too late.
    let whole = counted <= quota && counted + uncounted >= quota;
    let known = counted + uncounted + refused == all;
    ensure!(whole && known && uncounted <= all / 50, "{verdicts:?}");
    Ok(match uncounted {
        0 => format!("{counted} of {all} admitted"),
        _ => format!("{counted} of {all} admitted, {uncounted} more uncounted"),
    })
}
