//! What was checked, and what was seen.

use std::fmt::Write as _;

use anyhow::Result;
use quotagate_workspace::task;

/// The outcomes of a run, in order.
#[derive(Debug, Default)]
pub struct Checks {
    outcomes: Vec<Outcome>,
    only: Choice,
}

/// Which checks run.
#[derive(Debug, Default)]
enum Choice {
    #[default]
    All,
    /// The one of this name.
    One(String),
    /// Those whose names begin like this.
    Beginning(String),
}

#[derive(Debug)]
struct Outcome {
    name: &'static str,
    claim: &'static str,
    /// What was seen; else what was wrong.
    seen: Result<String, String>,
}

impl Checks {
    /// Runs only the check of this name, which a row of this page begins with; or if none has this
    /// name, those whose names begin like this.
    pub fn only(only: &str, page: &str) -> Self {
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        let is_name = rows.flat_map(|row| row.split('`')).any(|name| name == only);
        let only = only.to_owned();
        let only = if is_name { Choice::One(only) } else { Choice::Beginning(only) };
        Self { only, ..Self::default() }
    }

    /// Whether a check of this area can be among those that run. The names of its checks begin with
    /// its own name and a dot.
    pub fn may_run(&self, area: &str) -> bool {
        let begins = format!("{area}.");
        match &self.only {
            Choice::All => true,
            Choice::One(only) => only.starts_with(&begins),
            Choice::Beginning(only) => only.starts_with(&begins) || begins.starts_with(only),
        }
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
        let runs = match &self.only {
            Choice::All => true,
            Choice::One(only) => name == only,
            Choice::Beginning(only) => name.starts_with(only),
        };
        if !runs {
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
        assert_eq!((checks.all(), checks.failed()), (2, 1));
        let rows = "| `a.bad` | it fails | **FAILED**: no  answer |\n\
                    | `a.good` | it works | 100 of 300 |\n";
        assert!(checks.table().ends_with(rows), "{}", checks.table());
    }

    #[test]
    fn choice_takes_one_check_by_its_name_and_several_by_how_they_begin() {
        let page = "(`a.on`)\n| `a.one`, `a.other` | works |\n| `a.one_more` | so does `b` |\n";
        for (only, expected, areas) in [
            ("a.one", &["a.one"][..], ["a"].as_slice()),
            ("a.o", &["a.one", "a.one_more"], &["a"]),
            ("a", &["a.one", "a.one_more"], &["a", "ab"]),
            ("a.none", &[], &["a"]),
            ("b", &["b.two"], &["b"]),
        ] {
            let mut checks = Checks::only(only, page);
            for name in ["a.one", "a.one_more", "b.two"] {
                checks.check(name, "it runs", || Ok(String::new()));
            }
            let ran: Vec<&str> = checks.outcomes.iter().map(|outcome| outcome.name).collect();
            assert_eq!(ran, expected, "{only}");
            let started: Vec<&str> =
                ["a", "ab", "b"].into_iter().filter(|area| checks.may_run(area)).collect();
            assert_eq!(started, areas, "{only}");
        }
        assert!(Checks::default().may_run("a"));
    }
}
