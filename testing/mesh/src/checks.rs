//! What was checked, and what was seen.

use std::fmt::Write as _;

use anyhow::Result;
use quotagate_workspace::task;

/// The outcomes of a run, in order.
#[derive(Debug, Default)]
pub struct Checks {
    outcomes: Vec<Outcome>,
    /// How the names of those begin that run.
    only: String,
}

#[derive(Debug)]
struct Outcome {
    name: &'static str,
    claim: &'static str,
    /// What was seen; else what was wrong.
    seen: Result<String, String>,
}

impl Checks {
    /// Runs only those whose names begin like this.
    pub fn only(only: &str) -> Self {
        Self { only: only.to_owned(), ..Self::default() }
    }

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
        if !name.starts_with(&self.only) {
            return;
        }
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
    use std::{fs, path::Path};

    use super::*;
    use anyhow::bail;
    use quotagate_workspace::paths;

    /// The text of all files below a folder whose names end like this.
    fn texts(folder: &Path, end: &str) -> String {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let text = |path: std::path::PathBuf| match path.is_dir() {
            true => texts(&path, end),
            false if path.display().to_string().ends_with(end) => fs::read_to_string(path).unwrap(),
            false => String::new(),
        };
        entries.map(text).collect()
    }

    /// A name stands in brackets, or begins a row of a table.
    #[test]
    fn checks_that_documents_name_exist() {
        let root = paths::root();
        let code = texts(&root.join("testing/mesh/src"), ".rs");
        let pages = texts(&root.join("docs"), ".md");
        let table = fs::read_to_string(root.join("docs/operate/mesh.md")).unwrap();
        let pages = pages + &table.replace("\n| `", "\n(`");
        let named = pages.split("(`").filter_map(|rest| rest.split_once("`"));
        let area = |name: &str| name.split_once('.').map(|(area, _)| area.to_owned());
        let checks: Vec<&str> = named
            .map(|(name, _)| name)
            .filter(|name| matches!(area(name).as_deref(), Some("kubernetes" | "eg" | "istio")))
            .collect();
        assert!(checks.len() > 20, "{checks:?}");
        for check in checks {
            assert!(code.contains(&format!("\"{check}\"")), "no check {check}");
        }
    }

    #[test]
    fn failed_check_is_counted_and_does_not_end_the_run() {
        let mut checks = Checks::default();
        checks.check("a.bad", "it fails", || bail!("no|\nanswer"));
        checks.check("a.good", "it works", || Ok("100 of 300".to_owned()));
        Checks::only("b.").check("a.bad", "it does not run", || bail!("it runs"));
        assert_eq!((checks.all(), checks.failed()), (2, 1));
        let rows = "| `a.bad` | it fails | **FAILED**: no  answer |\n\
                    | `a.good` | it works | 100 of 300 |\n";
        assert!(checks.table().ends_with(rows), "{}", checks.table());
    }
}
