//! The counts that Envoy and Redis keep.

use anyhow::{Context, Result};
use quotagate_support::resp;

use crate::rig::Running;

/// Counts since the start of a stack; a measurement is the difference between two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that Envoy answered with 2xx.
    pub ok: u64,
    /// Requests that Envoy answered with 4xx.
    pub refused: u64,
    /// Requests that Envoy answered with anything else.
    pub other: u64,
    /// Calls to the store.
    pub calls: u64,
    /// Scripts that Redis ran for the store; the commands within a script are part of it.
    pub scripts: u64,
}

impl Counts {
    /// What a stack has counted so far.
    pub fn of(running: &Running) -> Result<Self> {
        let stats = running.envoy.stats("ingress.downstream_rq_.xx$")?;
        let answers = |class: &str| value(&stats, &format!("http.ingress.downstream_rq_{class}"));
        let calls = match running.store {
            Some(_) => {
                let name = "cluster.quota_store.upstream_rq_total";
                value(&running.envoy.stats("quota_store.upstream_rq_total$")?, name)
                    .with_context(|| format!("Envoy does not count {name}"))?
            }
            None => 0,
        };
        let mut counts = Self {
            ok: answers("2xx").context("Envoy does not count its answers")?,
            refused: answers("4xx").unwrap_or_default(),
            other: ["1xx", "3xx", "5xx"].iter().filter_map(|class| answers(class)).sum(),
            calls,
            scripts: 0,
        };
        for server in &running.redis {
            let info = resp::command(server.port, &["INFO", "commandstats"])?.lines();
            counts.scripts += scripts(&info);
        }
        Ok(counts)
    }

    /// The counts since an earlier time.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            ok: self.ok.saturating_sub(earlier.ok),
            refused: self.refused.saturating_sub(earlier.refused),
            other: self.other.saturating_sub(earlier.other),
            calls: self.calls.saturating_sub(earlier.calls),
            scripts: self.scripts.saturating_sub(earlier.scripts),
        }
    }

    /// All answers.
    pub const fn answers(&self) -> u64 {
        self.ok + self.refused + self.other
    }
}

/// The value of a `name: value` line of Envoy's statistics.
fn value(stats: &str, name: &str) -> Option<u64> {
    let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
    line.trim().parse().ok()
}

/// Scripts run, in the lines of `INFO commandstats`.
fn scripts(info: &str) -> u64 {
    ["eval", "evalsha"].iter().filter_map(|name| command_calls(info, name)).sum()
}

fn command_calls(info: &str, name: &str) -> Option<u64> {
    let calls = |line: &str| {
        let (command, numbers) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        if command == name { numbers.split(',').next()?.parse().ok() } else { None }
    };
    info.lines().find_map(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistic_is_found_by_its_whole_name() {
        let stats = "http.ingress.downstream_rq_2xx: 123\nhttp.ingress.downstream_rq_2xx_more: 5\nx: No recorded values\n";
        assert_eq!(value(stats, "http.ingress.downstream_rq_2xx"), Some(123));
        assert_eq!(value(stats, "http.ingress.downstream_rq_4xx"), None);
        assert_eq!(value(stats, "x"), None);
    }

    #[test]
    fn scripts_are_counted_however_they_are_named() {
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=40,usec=5,usec_per_call=1.00\r\n\
                    cmdstat_eval:calls=2,usec=9\r\ncmdstat_get:calls=42,usec=1\r\n";
        assert_eq!(scripts(info), 42);
        assert_eq!(scripts(""), 0);
    }

    #[test]
    fn measurement_is_the_difference_of_two_counts() {
        let earlier = Counts { ok: 10, refused: 1, other: 0, calls: 5, scripts: 5 };
        let later = Counts { ok: 30, refused: 1, other: 2, calls: 9, scripts: 8 };
        let between = later.since(earlier);
        assert_eq!(between, Counts { ok: 20, refused: 0, other: 2, calls: 4, scripts: 3 });
        assert_eq!(between.answers(), 22);
    }
}
