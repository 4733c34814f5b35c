//! The report as Markdown.

use super::summary::{Group, Row};

/// The memory of a stack's processes at the end.
#[derive(Debug, Clone)]
pub struct Memory {
    /// The stack.
    pub title: String,
    /// Resident memory of Envoy in KiB.
    pub envoy: u64,
    /// Resident memory of the store in KiB.
    pub store: Option<u64>,
}

/// One load as a table.
pub fn group(group: &Group) -> String {
    let (users, connections) = (group.load.users, group.load.connections);
    let mut lines = vec![
        format!("### {}, {}", number(connections, "connection"), number(users, "user")),
        String::new(),
        "| | stack | req/s | ratio to A | p50 ms | above A | p99 ms | ratio to A | Envoy µs | ratio to A | \
         upstream µs | store µs | Redis µs | all µs | ratio to A | calls | scripts |"
            .to_owned(),
        format!("|---|---|{}", "---:|".repeat(15)),
    ];
    lines.extend(group.rows.iter().map(row));
    lines.join("\n") + "\n"
}

fn row(row: &Row) -> String {
    format!(
        "| {} | {} | {:.0} | {} | {:.3} | {:+.3} | {:.2} | {} | {:.0} | {} | {:.0} | {} | {} | {:.0} | {} | {} | {} |",
        row.stack,
        row.stack.title(),
        row.rate.median,
        row.rate_ratio,
        row.p50_ms.median,
        row.p50_added.median,
        row.p99_ms.median,
        row.p99_ratio,
        row.cpu.envoy,
        row.envoy_ratio,
        row.cpu.upstream,
        amount(row.cpu.store, 0),
        amount(row.cpu.redis, 0),
        row.cpu.all(),
        row.all_ratio,
        amount(row.calls.median, 3),
        amount(row.scripts.median, 3),
    )
}

/// The memory of all stacks as a table.
pub fn memory(all: &[Memory]) -> String {
    let mut lines = vec![
        "### Memory at the end".to_owned(),
        String::new(),
        "| stack | Envoy MiB | store MiB |".to_owned(),
        "|---|---:|---:|".to_owned(),
    ];
    let mib = |kib: u64| format!("{:.0}", kib as f64 / 1024.0);
    lines.extend(all.iter().map(|memory| {
        let store = memory.store.map_or("-".to_owned(), mib);
        format!("| {} | {} | {store} |", memory.title, mib(memory.envoy))
    }));
    lines.join("\n") + "\n"
}

/// A missing value is a dash, not a zero.
fn amount(value: f64, digits: usize) -> String {
    if value > 0.0 { format!("{value:.digits$}") } else { "-".to_owned() }
}

/// A number of things.
pub fn number(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::summary::{groups, tests::sample},
        stacks::Stack,
    };

    #[test]
    fn rows_have_as_many_columns_as_the_head() {
        let samples = [sample(Stack::A, 1, 0, 10_000.0), sample(Stack::E, 1, 0, 5_000.0)];
        let text = group(&groups(&samples)[0]);
        assert!(text.starts_with("### 1 connection, 1 user\n\n| | stack |"), "{text}");
        let columns: Vec<usize> =
            text.lines().skip(2).map(|line| line.matches('|').count()).collect();
        assert_eq!(columns, [18, 18, 18, 18], "{text}");
        let last = text.lines().last().unwrap();
        assert!(last.contains("| 5000 | 0.50 (0.50..0.50) | 0.200 | +0.100 |"), "{last}");
        assert!(last.ends_with("| 0.500 | 0.250 |"), "{last}");
    }

    #[test]
    fn missing_value_is_shown_as_a_dash() {
        let all = [Memory { title: "A".into(), envoy: 51_200, store: None }];
        assert!(memory(&all).contains("| A | 50 | - |"));
        assert_eq!(amount(0.0, 3), "-");
        assert_eq!(number(1_000, "user"), "1000 users");
    }
}
