//! Dead and frozen stores behind the cluster of the shipped file.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use quotagate_support::http::Request;

use crate::checks::Checks;
use crate::istio::mesh::Verdict;

use super::gateways::{Gateways, PORTS, STORES, ask, by, store, verdicts};
use super::plane::START;

const HOST: &str = "any.example";
/// So many counted requests in a row show that a fault is over.
const IN_A_ROW: usize = 30;

/// Runs the checks.
pub fn check(gateways: &Gateways, checks: &mut Checks) {
    let subject = "kept";
    checks.check("eg.store_frozen", "a frozen store is left out, and no request is lost", || {
        gateways.until_counted(PORTS[0], HOST, IN_A_ROW)?;
        freeze(gateways, true)?;
        let seen = until_counted("frozen");
        freeze(gateways, false)?;
        seen
    });
    checks.check("eg.stores_killed", "without a store, on_failure decides; counts survive", || {
        let request = by(HOST, subject)?;
        let before = remaining(&request)?;
        for store in gateways.stores.borrow_mut().iter_mut() {
            store.kill()?;
        }
        let seen = verdicts(PORTS[0], &requests("killed", IN_A_ROW)?)?;
        ensure!(seen.iter().all(|verdict| *verdict == Verdict::Uncounted), "{seen:?}");
        *gateways.stores.borrow_mut() =
            STORES.iter().map(|address| store(address)).collect::<Result<_>>()?;
        let back = until_counted("back")?;
        let after = remaining(&request)?;
        // Another window may have begun.
        ensure!(after < before || after == QUOTA - 1, "{before}, then {after}");
        Ok(format!("{IN_A_ROW} passed uncounted; after the restart {back}"))
    });
}

/// The quota of the shipped file.
const QUOTA: u32 = 100;

fn freeze(gateways: &Gateways, frozen: bool) -> Result<()> {
    let mut stores = gateways.stores.borrow_mut();
    let store = stores.first_mut().context("no store")?;
    if frozen { store.freeze() } else { store.thaw() }
}

fn remaining(request: &Request) -> Result<u32> {
    let answer = ask(PORTS[0], request)?;
    Ok(answer.header("x-ratelimit-remaining").context("not counted")?.parse()?)
}

/// Requests of as many callers, so that no quota is spent.
fn requests(subject: &str, times: usize) -> Result<Vec<Request>> {
    (0..times).map(|number| by(HOST, &format!("{subject}-{number}"))).collect()
}

/// Sends requests until many in a row are counted. Says how many were not, and fails if one is
/// lost.
fn until_counted(subject: &str) -> Result<String> {
    let (start, mut in_a_row, mut uncounted) = (Instant::now(), 0, 0);
    let mut number = 0;
    while in_a_row < IN_A_ROW {
        ensure!(start.elapsed() < START, "{uncounted} of {number} uncounted, and more");
        number += 1;
        match Verdict::of(&ask(PORTS[0], &by(HOST, &format!("{subject}-{number}"))?)?) {
            Verdict::Counted => in_a_row += 1,
            Verdict::Uncounted => (in_a_row, uncounted) = (0, uncounted + 1),
            refused @ Verdict::Refused(_) => anyhow::bail!("request {number}: {refused:?}"),
        }
    }
    let seconds = start.elapsed().as_secs_f32();
    Ok(format!("all counted after {seconds:.1} s, {uncounted} of {number} passed uncounted"))
}
