//! The page of a soak: a paragraph, a table, the picture.

use std::fmt::Write as _;

use super::clients::LOST;
use super::curves::Point;
use super::document::{FAILED, Way};
use super::{SLOWEST, Soaked, clients, events};
use crate::document::TIMEOUT;

/// The whole page.
#[must_use]
pub fn page(soaked: &Soaked, seed: u64) -> String {
    let minutes = soaked.length.as_secs_f64() / 60.0;
    let verdict = soaked.seen.windows.judge(&events::excused(&soaked.events));
    let requests: u64 = soaked.seen.statuses.values().sum();
    let lost = soaked.seen.statuses.iter().filter(|((_, status), _)| *status == LOST);
    let lost: u64 = lost.map(|(_, count)| count).sum();
    let of = |what: &str| soaked.events.iter().filter(|event| event.what.contains(what)).count();
    format!(
        "# A soak\n\nWritten by `cargo xtask soak MINUTES`: two Envoys with two workers each, two stores, a Redis Cluster of \
         six nodes, and {rate} requests a second of five kinds (a quota by header, the same with units held ahead, by \
         secret key, by token with plans, and failed log-ins by address), all under a shadow policy too. Some carry \
         headers that nobody should send, and one in fifty clients leaves before its answer. Meanwhile stores and Envoys \
         are restarted in turn, and primaries of the cluster die.\n\n\
         This run took {minutes:.0} minutes (seed {seed}): {requests} requests, {lost} of them lost with their connection; {left} clients that left, {stores} restarts of \
         stores, {envoys} of Envoys, {failovers} failovers. **{windows} windows** were held to their quotas, of which \
         {full} used them up: **{excess} units over quota**, and {excused} more in windows that a failover met (a replica \
         may lack the primary's last writes). {silent} unanswered for 20 s, {stuck} under way at the end, \
         {reloads} crashes of the filter; the slowest answer took {slowest:.2} s. The filter waits {timeout} ms for quota; \
         what is slower met a restart or a failover, whose processes start on the machine of the load, or a machine that \
         was busy otherwise. A run fails where an answer takes more than {most} s, or has a status that is not named here.\n\n{table}\n{held}\n\
         ![Memory and descriptors of every process](soak.svg)\n",
        rate = clients::RATE,
        left = soaked.seen.left,
        stores = of("store"),
        envoys = of("Envoy"),
        failovers = of("primary"),
        windows = verdict.windows,
        full = verdict.full,
        excess = verdict.excess,
        excused = verdict.excused,
        silent = soaked.seen.silent,
        stuck = soaked.stuck,
        reloads = soaked.reloads,
        timeout = TIMEOUT.as_millis(),
        most = SLOWEST.as_secs(),
        slowest = soaked.seen.slowest.as_secs_f64(),
        table = seen(soaked),
        held = held(soaked),
    )
}

/// What clients saw, by way.
fn seen(soaked: &Soaked) -> String {
    let mut table = format!(
        "What clients saw. 503 is the filter's while the store fails, or Envoy's; - is a connection that ended with its \
         Envoy. {FAILED} of `logins` is a failed log-in that was let through; of `tiers`, Envoy's, for a token that a \
         second header spoiled.\n\n| policy | answers |\n| --- | --- |\n"
    );
    for way in Way::ALL {
        let of = soaked.seen.statuses.iter().filter(|((known, _), _)| *known == way);
        let status = |status: u16| if status == LOST { "-".to_owned() } else { status.to_string() };
        let cells: Vec<String> = of.map(|((_, s), count)| format!("{count} x {}", status(*s))).collect();
        // Writing into a String cannot fail.
        let _ = writeln!(table, "| `{}` | {} |", way.policy(), cells.join(", "));
    }
    table
}

/// What processes held.
fn held(soaked: &Soaked) -> String {
    let mut table =
        "| process | MiB at the start, most, at the end | descriptors |\n| --- | --- | --- |\n".to_owned();
    for (part, points) in &soaked.curves {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
        let most = |value: fn(&Point) -> f64| points.iter().map(value).fold(0.0, f64::max);
        let _ = writeln!(
            table,
            "| {part} | {:.1}, {:.1}, {:.1} | {}, {}, {} |",
            first.mib,
            most(|point| point.mib),
            last.mib,
            first.descriptors,
            most(|point| point.descriptors as f64),
            last.descriptors
        );
    }
    table
}
