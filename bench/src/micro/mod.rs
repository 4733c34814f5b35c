//! `cargo xtask bench --micro`: the pure core beside its budgets, and the script in Redis.

mod divan;
mod script;

use anyhow::Result;

use quotagate_workspace::task;

/// A bench and its budget.
#[derive(Debug, Clone, PartialEq)]
struct Timed {
    name: String,
    /// The median in ns.
    median: f64,
    /// In ns.
    budget: f64,
}

/// Runs all benches. A bench above its budget is marked, but is no error, because machines differ.
pub fn run() -> Result<()> {
    task::step("bench: the pure core");
    let bench = ["bench", "--locked", "--package", "quotagate-bench-core", "--bench", "request"];
    let printed = task::printed(task::cargo().args(bench).args(["--", "--color", "never"]))?;
    println!("{}", table(&divan::parse(&printed)?));
    task::step("bench: the script in Redis");
    println!("{}", script::table(&script::run()?));
    Ok(())
}

fn table(benches: &[Timed]) -> String {
    let mut lines = vec![
        "| pure core, native | median ns | budget ns | |".to_owned(),
        "|---|---:|---:|---|".to_owned(),
    ];
    lines.extend(benches.iter().map(|Timed { name, median, budget }| {
        let verdict = if median <= budget { "" } else { "above its budget" };
        format!("| {name} | {median:.0} | {budget:.0} | {verdict} |")
    }));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_above_its_budget_is_marked() {
        let timed = |median| Timed { name: "x".into(), median, budget: 100.0 };
        assert!(table(&[timed(100.0)]).ends_with("| x | 100 | 100 |  |\n"));
        assert!(table(&[timed(101.0)]).ends_with("| x | 101 | 100 | above its budget |\n"));
    }
}
