//! From samples to the report: medians over the rounds, and each round compared with its own A.

use super::stats::Spread;
use crate::{
    measure::{
        load::Load,
        sample::{Cpu, Sample},
    },
    stacks::Stack,
};

/// One stack under one load.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Which stack.
    pub stack: Stack,
    /// Requests a second.
    pub rate: Spread,
    /// The same, as a ratio to A of the same round.
    pub rate_ratio: Spread,
    /// Median time to an answer in ms.
    pub p50_ms: Spread,
    /// How much longer than that of A.
    pub p50_added: Spread,
    /// The response time of 99 of 100 answers at most, in ms.
    pub p99_ms: Spread,
    /// The same, as a ratio to A of the same round.
    pub p99_ratio: Spread,
    /// Processor time per request: the median of each part.
    pub cpu: Cpu,
    /// Envoy's processor time, as a ratio to that of A of the same round.
    pub envoy_ratio: Spread,
    /// The same for all parts together.
    pub all_ratio: Spread,
    /// Calls to the store a request.
    pub calls: Spread,
    /// Scripts in Redis a request.
    pub scripts: Spread,
}

/// All stacks under one load.
#[derive(Debug, Clone)]
pub struct Group {
    /// The load.
    pub load: Load,
    /// The stacks, in the order they were measured in.
    pub rows: Vec<Row>,
}

/// The groups, in the order they were measured in. A round counts only where its A was measured.
pub fn groups(samples: &[Sample]) -> Vec<Group> {
    let mut loads: Vec<Load> = Vec::new();
    let mut stacks: Vec<Stack> = Vec::new();
    for sample in samples {
        if !loads.contains(&sample.load) {
            loads.push(sample.load);
        }
        if !stacks.contains(&sample.stack) {
            stacks.push(sample.stack);
        }
    }
    let group = |load: Load| Group {
        load,
        rows: stacks.iter().filter_map(|&stack| row(samples, load, stack)).collect(),
    };
    loads.into_iter().map(group).collect()
}

fn row(samples: &[Sample], load: Load, stack: Stack) -> Option<Row> {
    let of =
        |stack| samples.iter().filter(move |sample| sample.load == load && sample.stack == stack);
    let pairs: Vec<(&Sample, &Sample)> = of(stack)
        .filter_map(|sample| {
            of(Stack::A).find(|base| base.round == sample.round).map(|base| (sample, base))
        })
        .collect();
    let spread = |value: &dyn Fn(&Sample, &Sample) -> f64| {
        Spread::of(pairs.iter().map(|&(sample, base)| value(sample, base)))
    };
    let median =
        |value: &dyn Fn(&Cpu) -> f64| Some(spread(&|sample, _| value(&sample.cpu))?.median);
    Some(Row {
        stack,
        rate: spread(&|s, _| s.seen.rate)?,
        rate_ratio: spread(&|s, base| s.seen.rate / base.seen.rate)?,
        p50_ms: spread(&|s, _| s.seen.p50_ms)?,
        p50_added: spread(&|s, base| s.seen.p50_ms - base.seen.p50_ms)?,
        p99_ms: spread(&|s, _| s.seen.p99_ms)?,
        p99_ratio: spread(&|s, base| s.seen.p99_ms / base.seen.p99_ms)?,
        cpu: Cpu {
            envoy: median(&|cpu| cpu.envoy)?,
            upstream: median(&|cpu| cpu.upstream)?,
            store: median(&|cpu| cpu.store)?,
            redis: median(&|cpu| cpu.redis)?,
        },
        envoy_ratio: spread(&|s, base| s.cpu.envoy / base.cpu.envoy)?,
        all_ratio: spread(&|s, base| s.cpu.all() / base.cpu.all())?,
        calls: spread(&|s, _| s.calls)?,
        scripts: spread(&|s, _| s.scripts)?,
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::measure::load::Seen;

    /// A sample with this rate, from which the other values follow.
    pub fn sample(stack: Stack, connections: u32, round: u32, rate: f64) -> Sample {
        let seen = Seen {
            rate,
            p50_ms: 1e3 / rate,
            p99_ms: 4e3 / rate,
            requests: 1000,
            refused: 0,
            broken: 0,
        };
        let cpu = Cpu { envoy: 5e5 / rate, upstream: 20.0, store: 10.0, redis: 5.0 };
        let load = Load { connections, users: 1, seconds: 1 };
        Sample { stack, load, round, seen, cpu, calls: 0.5, scripts: 0.25, foreign: 0.01 }
    }

    #[test]
    fn each_round_is_compared_with_its_own_base() {
        let samples = [
            sample(Stack::A, 8, 0, 10_000.0),
            sample(Stack::E, 8, 0, 5_000.0),
            sample(Stack::A, 8, 1, 1_000.0),
            sample(Stack::E, 8, 1, 600.0),
            sample(Stack::A, 8, 2, 10_000.0),
            sample(Stack::E, 8, 2, 7_000.0),
            // Nothing was measured for A in this round.
            sample(Stack::E, 8, 3, 9_000.0),
        ];
        let groups = groups(&samples);
        assert_eq!(groups.len(), 1);
        let row = groups[0].rows[1];
        assert_eq!(row.stack, Stack::E);
        assert_eq!(format!("{}", row.rate_ratio), "0.60 (0.50..0.70)");
        assert!((row.rate.median - 5_000.0).abs() < 1e-9);
        assert!((groups[0].rows[0].rate_ratio.median - 1.0).abs() < 1e-9);
        assert!((row.p50_added.least - (1e3 / 7e3 - 0.1)).abs() < 1e-9);
        // Envoy's time is 5e5 us by the rate, and all other parts take 35 us.
        assert_eq!(format!("{}", row.envoy_ratio), "1.67 (1.43..2.00)");
        assert_eq!(format!("{}", row.all_ratio), "1.59 (1.25..1.62)");
    }

    #[test]
    fn loads_stay_apart_and_in_order() {
        let samples = [
            sample(Stack::A, 32, 0, 10.0),
            sample(Stack::A, 1, 0, 20.0),
            sample(Stack::B, 1, 0, 10.0),
        ];
        let groups = groups(&samples);
        let seen: Vec<(u32, usize)> =
            groups.iter().map(|g| (g.load.connections, g.rows.len())).collect();
        assert_eq!(seen, [(32, 1), (1, 2)]);
    }
}
