//! What was checked, and what was seen.

use std::fmt::Write as _;

use anyhow::Result;
use quotagate_workspace::task;

/// The outcomes of a run, in order.
#[derive(Debug, Default)]
pub struct Checks {
    outcomes: Vec<Outcome>,
}

#[derive(Debug)]
struct Outcome {
    name: &'static str,
    claim: &'static str,
    /// What was seen; else what was wrong.
    seen: Result<String, String>,
}

impl Checks {
    /// Runs one check, and notes its outcome. A failed check does not end the run.
    ///
    /// `name` is what documents call it, such as `eg.exact`. `claim` is what they promise, in a
    /// few words. The check returns what it saw, such as `100 of 300 admitted`.
    pub fn check(
        &mut self,
        name: &'static str,
        claim: &'static str,
        check: impl FnOnce() -> Result<String>,
    ) {
        let seen = check().map_err(|error| format!("{error:#}"));
        match &seen {
            Ok(seen) => task::note(&format!("ok     {name}: {seen}")),
            Err(fault) => task::note(&format!("FAILED {name} ({claim}): {fault}")),
        }
        self.outcomes.push(Outcome { name, claim, seen });
    }

    /// How many checks ran.
    pub fn all(&self) -> usize {
        self.outcomes.len()
    }

    /// How many of them failed.
    pub fn failed(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.seen.is_err()).count()
    }

    /// All outcomes, as a Markdown table.
    pub fn table(&self) -> String {
        let mut table = String::from("| check | claim | seen |\n| --- | --- | --- |\n");
        for Outcome { name, claim, seen } in &self.outcomes {
            let seen = match seen {
                Ok(seen) => seen.clone(),
                Err(fault) => format!("**FAILED**: {}", fault.replace(['\n', '|'], " ")),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(table, "| `{name}` | {claim} | {seen} |");
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn failed_check_is_counted_and_does_not_end_the_run() {
        let mut checks = Checks::default();
        checks.check("a.bad", "it fails", || bail!("no|\nanswer"));
        checks.check("a.good", "it works", || Ok("100 of 300".to_owned()));
        assert_eq!((checks.all(), checks.failed()), (2, 1));
        let rows = "| `a.bad` | it fails | **FAILED**: no  answer |\n\
                    | `a.good` | it works | 100 of 300 |\n";
        assert!(checks.table().ends_with(rows), "{}", checks.table());
    }
}
