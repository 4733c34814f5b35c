//! The report of the services alone, as Markdown.

use std::time::Duration;

use super::parts::Subject;
use super::{LOADS, SECONDS, SPENT, ServiceSample};
use crate::{
    report::{stats::Spread, table::number},
    session::QUIET,
};

/// What a lone decision may take beside its exchange with Redis, in ms.
const SLACK_MS: f64 = 0.15;

/// A line for a measurement.
pub fn line(sample: &ServiceSample) -> String {
    let ServiceSample { subject, seen, service, redis, .. } = sample;
    format!(
        "round {}, {}: {}: {:.0} decisions/s, {service:.0} + {redis:.0} µs each",
        sample.round + 1,
        title(sample.load),
        subject.title(),
        seen.rate
    )
}

fn title(load: usize) -> String {
    let (connections, keys, value) = LOADS.get(load).copied().unwrap_or_default();
    let spent = if value == SPENT { ", used up" } else { "" };
    format!("{}, {}{spent}", number(connections, "connection"), number(keys, "key"))
}

/// The tables of all loads.
pub fn tables(samples: &[ServiceSample], pings: &[Duration]) -> String {
    let tables = (0..LOADS.len()).map(|load| table(samples, load));
    let disturbed = samples.iter().filter(|sample| sample.foreign > QUIET).count();
    let ping = Spread::of(pings.iter().map(|ping| ping.as_secs_f64() * 1e3));
    let ping = ping.map_or(0.0, |ping| ping.median);
    format!(
        "A client of its own sends gRPC calls, and each connection waits for its answer. Every \
         figure is the median of the rounds, of {SECONDS} s each; ratios are to \
         envoyproxy/ratelimit of the same round, and in brackets is their range. Client, service \
         and Redis share the machine. In {disturbed} of {} measurements other programs used more \
         than {:.0} % of it.\n\nOne PING to Redis took {ping:.3} ms: a lone decision that Redis \
         counts should take at most {:.3} ms.\n\n{}",
        samples.len(),
        QUIET * 100.0,
        ping + SLACK_MS,
        tables.collect::<Vec<_>>().join("\n"),
    )
}

fn table(samples: &[ServiceSample], load: usize) -> String {
    let mut lines = vec![
        format!("### {}", title(load)),
        String::new(),
        "| service | decisions/s | ratio | p50 ms | p99 ms | service µs | Redis µs | both µs | ratio |"
            .to_owned(),
        format!("|---|{}", "---:|".repeat(8)),
    ];
    let of = |subject| {
        let is_of = move |it: &&ServiceSample| (it.subject, it.load) == (subject, load);
        samples.iter().filter(is_of)
    };
    for subject in [Subject::Exact, Subject::Lease, Subject::Original] {
        let median = |value: &dyn Fn(&ServiceSample) -> f64| {
            Spread::of(of(subject).map(value)).map(|spread| spread.median)
        };
        let ratio = |value: &dyn Fn(&ServiceSample) -> f64| {
            let pairs = of(subject).filter_map(|sample| {
                let base = of(Subject::Original).find(|base| base.round == sample.round)?;
                Some(value(sample) / value(base))
            });
            Spread::of(pairs).map_or_else(|| "-".to_owned(), |spread| spread.to_string())
        };
        let both = |sample: &ServiceSample| sample.service + sample.redis;
        let Some(rate) = median(&|it| it.seen.rate) else { continue };
        let figure = |value: &dyn Fn(&ServiceSample) -> f64| median(value).unwrap_or_default();
        lines.push(format!(
            "| {} | {rate:.0} | {} | {:.3} | {:.2} | {:.1} | {:.1} | {:.1} | {} |",
            subject.title(),
            ratio(&|it| it.seen.rate),
            figure(&|it| it.seen.p50_ms),
            figure(&|it| it.seen.p99_ms),
            figure(&|it| it.service),
            figure(&|it| it.redis),
            figure(&both),
            ratio(&both),
        ));
    }
    lines.join("\n") + "\n"
}

/// The table of instructions: of each service over many connections, and over one.
pub fn instructions(rows: &[(Subject, Vec<(f64, f64)>)]) -> String {
    let mut lines = vec![
        "| service | 32 connections | allocations | 1 connection | allocations |".to_owned(),
        format!("|---|{}", "---:|".repeat(4)),
    ];
    for (subject, counted) in rows {
        let cells = counted.iter().map(|(instructions, allocations)| {
            format!("{:.1} k | {allocations:.1}", instructions / 1e3)
        });
        lines.push(format!("| {} | {} |", subject.title(), cells.collect::<Vec<_>>().join(" | ")));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::load::Seen;

    #[test]
    fn ratios_are_of_the_same_round() {
        let seen =
            |rate| Seen { rate, p50_ms: 0.2, p99_ms: 1.0, requests: 1, refused: 0, broken: 0 };
        let sample = |subject, round, rate, service| ServiceSample {
            subject,
            load: 0,
            round,
            seen: seen(rate),
            service,
            redis: 5.0,
            foreign: 0.0,
        };
        let samples = [
            sample(Subject::Exact, 0, 9000.0, 20.0),
            sample(Subject::Original, 0, 3000.0, 95.0),
            sample(Subject::Exact, 1, 8000.0, 20.0),
            sample(Subject::Original, 1, 4000.0, 95.0),
        ];
        let text = tables(&samples, &[Duration::from_micros(50)]);
        let row = "| quotagate ratelimit, exact | 8500 | 2.50 (2.00..3.00) | 0.200 | 1.00 | 20.0 | \
                   5.0 | 25.0 | 0.25 (0.25..0.25) |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("at most 0.200 ms"), "{text}");
        let alone = tables(samples.get(..1).unwrap(), &[]);
        assert!(alone.contains("| 9000 | - | 0.200 |"), "{alone}");
    }
}
