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
        "\
# Soak

Written by `cargo xtask soak MINUTES`. The system is two Envoys with two workers each, two stores
and a six-node Redis Cluster. Meanwhile stores and Envoys restart in turn, and primaries of the
cluster die.

The load is {rate} requests per second under five policies: a quota by header, the same with leases,
by secret key, by token with tiers, and failed log-ins by address. A shadow policy counts all of
them too. Some requests carry hostile headers, and one client in fifty leaves before its response.

- **Length**: {minutes:.0} minutes, seed {seed}, {requests} requests.
- **Faults**: {stores} restarts of stores, {envoys} of Envoys, {failovers} failovers.
- **Quotas**: {windows} windows, {full} of them used up. **{excess} units over quota**, and
  {excused} in windows that a failover met, where a replica may lack the primary's last writes.
- **Clients**: {lost} requests lost with their connection, {left} clients that left early,
  {silent} requests without an answer for 20 s.
- **At the end**: {stuck} requests in flight, {reloads} crashes of the filter.
- **Slowest answer**: {slowest:.2} s. The filter waits {timeout} ms for the store; slower answers met a
  restart, a failover or a busy machine, because all processes share one.

A run fails if an answer takes more than {most} s, or has a status that is not listed below.

{table}
{held}
![Memory and descriptors of every process](soak.svg)
",
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
        "\
## What clients saw

503 is the answer of the filter while the store fails, or of Envoy itself. `-` is a connection
that ended with its Envoy. {FAILED} of `logins` is an admitted log-in that failed; {FAILED} of
`tiers` is Envoy's answer to a token that a second header spoiled.

| Policy | Answers |
| --- | --- |
"
    );
    for way in Way::ALL {
        let of = soaked.seen.statuses.iter().filter(|((known, _), _)| *known == way);
        let status = |status: u16| if status == LOST { "-".to_owned() } else { status.to_string() };
        let cells: Vec<String> =
            of.map(|((_, s), count)| format!("{count} x {}", status(*s))).collect();
        // Writing into a String cannot fail.
        let _ = writeln!(table, "| `{}` | {} |", way.policy(), cells.join(", "));
    }
    table
}

/// What processes held.
fn held(soaked: &Soaked) -> String {
    let mut table =
        "## What processes held\n\n| Process | MiB at the start, most, at the end | Descriptors |\n| --- | --- | --- |\n"
            .to_owned();
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
