//! The options of `cargo xtask bench`, and the measurements that follow from them.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use quotagate_support::paths;

use crate::{measure::load::Load, stacks::Stack};

/// wrk's longest warm-up before each measurement, in seconds.
pub const WARM_UP: u32 = 1;

/// The rate limit services behind Envoy, and the native module to compare with.
const SERVICES: [Stack; 5] = [Stack::M, Stack::N, Stack::T, Stack::U, Stack::V];

/// How to measure.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// About three minutes: two rounds, few loads; the report goes to target/bench
    #[arg(long)]
    quick: bool,
    /// The benches of the pure core, and the script in Redis, instead
    #[arg(long, conflicts_with_all = ["quick", "only", "connections", "users", "rounds", "seconds", "patience", "out"])]
    pub micro: bool,
    /// Instructions instead of times, counted by callgrind, also of the pure core: under five
    /// minutes
    #[arg(long, conflicts_with_all = ["quick", "micro", "connections", "users", "rounds", "seconds", "patience"])]
    pub instructions: bool,
    /// With --instructions: compare the native stacks and the core with bench/budgets.json, and
    /// write no report; with RENEW=1 in the environment, set the budgets
    #[arg(long, requires = "instructions", conflicts_with_all = ["only", "out"])]
    pub budgets: bool,
    /// The rate limit service alone, and then behind Envoy, instead: twelve minutes; the report
    /// goes to rate-limit-service.md in docs/bench. With --instructions: only the service's
    /// instructions
    #[arg(long, conflicts_with_all = ["quick", "micro", "budgets", "only", "connections", "users", "rounds", "seconds"])]
    pub service: bool,
    /// The program of envoyproxy/ratelimit, to measure it beside the service
    #[arg(long, value_name = "PATH")]
    pub original: Option<PathBuf>,
    /// Only these stacks, such as A,E,G; A is always among them
    #[arg(long, value_delimiter = ',', ignore_case = true)]
    only: Vec<Stack>,
    /// Numbers of connections [default: 1,8,32,128]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=512))]
    connections: Vec<u32>,
    /// Numbers of users [default: 1,1000]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000))]
    users: Vec<u32>,
    /// Rounds, each of every stack under every load [default: 5]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Seconds of each measurement [default: 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: Option<u32>,
    /// Minutes to wait in all for others to leave the machine alone [default: 10]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=1440))]
    patience: Option<u32>,
    /// The directory of the report [default: docs/bench, or target/bench where not all is measured]
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The measurements of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The stacks, A first.
    pub stacks: Vec<Stack>,
    /// The loads.
    pub loads: Vec<Load>,
    /// The number of rounds.
    pub rounds: u32,
    /// How long to wait in all for a quiet machine.
    pub patience: Duration,
    /// The directory of the report.
    pub out: PathBuf,
}

impl BenchArgs {
    /// The plan of these options.
    pub fn plan(&self) -> Result<Plan> {
        let (connections, users, rounds, seconds) = if self.service {
            (&[1, 32][..], &[1, 1_000][..], 3, 2)
        } else if self.quick {
            (&[1, 32][..], &[1_000][..], 2, 2)
        } else {
            (&[1, 8, 32, 128][..], &[1, 1_000][..], 5, 4)
        };
        let or = |given: &[u32], default: &[u32]| {
            if given.is_empty() { default.to_vec() } else { given.to_vec() }
        };
        let (connections, users) = (or(&self.connections, connections), or(&self.users, users));
        let seconds = self.seconds.unwrap_or(seconds);
        let mut loads = Vec::new();
        for &users in &users {
            for &connections in &connections {
                let load = Load { connections, users, seconds };
                if loads.contains(&load) {
                    bail!("{connections} connections or {users} users are given twice");
                }
                loads.push(load);
            }
        }
        let narrowed = self.quick
            || self.selects_stacks()
            || !(self.connections.is_empty() && self.users.is_empty());
        Ok(Plan {
            stacks: self.stacks(),
            loads,
            rounds: self.rounds.unwrap_or(rounds),
            patience: Duration::from_secs(60 * u64::from(self.patience.unwrap_or(10))),
            out: self.report(narrowed),
        })
    }

    /// The stacks to measure.
    pub fn stacks(&self) -> Vec<Stack> {
        let all = if self.instructions { Stack::value_variants().to_vec() } else { Stack::timed() };
        let all = if self.service { SERVICES.to_vec() } else { all };
        let mut stacks = if self.only.is_empty() { all } else { self.only.clone() };
        if self.only.is_empty() && self.original.is_none() {
            stacks.retain(|stack| *stack != Stack::V);
        }
        stacks.push(Stack::A);
        stacks.sort_unstable();
        stacks.dedup();
        stacks
    }

    /// The directory of the report. `narrowed`: it shows a part of what is measured by default.
    pub fn report(&self, narrowed: bool) -> PathBuf {
        let out = paths::root().join(if narrowed { "target/bench" } else { "docs/bench" });
        self.out.clone().unwrap_or(out)
    }

    /// Whether only some of the stacks are measured.
    pub fn selects_stacks(&self) -> bool {
        !self.only.is_empty()
    }
}

impl Plan {
    /// How many measurements.
    pub fn len(&self) -> usize {
        self.stacks.len() * self.loads.len() * self.rounds as usize
    }

    /// How long they take, if none is repeated.
    pub fn time(&self) -> Duration {
        let round: u32 = self.loads.iter().map(|load| load.seconds + WARM_UP).sum();
        Duration::from_secs(self.stacks.len() as u64 * u64::from(round * self.rounds))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn plan(arguments: &[&str]) -> Result<Plan> {
        Line::try_parse_from([&["bench"], arguments].concat())?.bench.plan()
    }

    #[test]
    fn quick_plan_takes_about_three_minutes() {
        let seconds = plan(&["--quick"]).unwrap().time().as_secs();
        assert!((120..=220).contains(&seconds), "{seconds}");
        assert_eq!(plan(&["--quick"]).unwrap().out, paths::root().join("target/bench"));
    }

    #[test]
    fn full_plan_has_every_stack_under_every_load() {
        let full = plan(&[]).unwrap();
        assert_eq!((full.stacks.len(), full.loads.len(), full.rounds), (18, 8, 5));
        assert_eq!(full.len(), 720);
        assert_eq!(full.out, paths::root().join("docs/bench"));
    }

    #[test]
    fn narrowed_plans_keep_what_they_are_compared_with() {
        let narrow =
            plan(&["--only", "G,e", "--connections", "32,1", "--users", "7", "--rounds", "3"])
                .unwrap();
        assert_eq!(narrow.stacks, [Stack::A, Stack::E, Stack::G]);
        assert_eq!(narrow.loads.iter().map(|load| load.connections).collect::<Vec<_>>(), [32, 1]);
        assert_eq!(
            narrow.out,
            paths::root().join("target/bench"),
            "the published report is of everything"
        );
        assert!(plan(&["--connections", "8,8"]).is_err());
        assert!(plan(&["--only", "Z"]).is_err());
        assert!(plan(&["--micro", "--quick"]).is_err());
    }

    #[test]
    fn original_is_measured_if_it_is_given() {
        let stacks = |arguments: &[&str]| plan(arguments).unwrap().stacks;
        let service = [Stack::A, Stack::M, Stack::N, Stack::T, Stack::U, Stack::V];
        assert_eq!(stacks(&["--service"]), service[..5]);
        assert_eq!(stacks(&["--service", "--original", "/x"]), service);
        assert!(stacks(&["--original", "/x"]).contains(&Stack::V));
        assert!(plan(&["--service", "--quick"]).is_err());
    }
}
