//! The prose lint: words that the style guide replaces, in prose and in identifiers; and widths,
//! spelling and links, which pinned tools check.

mod identifiers;
mod markdown;
mod rust;
#[cfg(test)]
mod types;
mod words;

use std::{env, fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use quotagate_workspace::{paths, task};

use crate::setup::pip::{self, ACTIONLINT, Pinned, RUMDL, TYPOS};

/// Written by tasks, not by people.
const GENERATED: [&str; 4] = [
    "docs/bench/instructions.md",
    "docs/bench/rate-limit-service.md",
    "docs/bench/results.md",
    "docs/reference/policy.md",
];

/// A line that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Fault {
    /// Counted from 1.
    line: usize,
    rule: String,
}

/// Checks every file that Git tracks.
pub fn run() -> Result<()> {
    task::step("prose: words, widths, spelling, links");
    let listed = task::printed(Command::new("git").args(["ls-files"]).current_dir(paths::root()))?;
    let mut found = 0_usize;
    for name in listed.lines().filter(|name| !GENERATED.contains(name)) {
        let check = match name.rsplit_once('.') {
            Some((_, "md")) => |text: &str| Ok(markdown::faults(text)),
            Some((_, "rs")) => rust::faults,
            _ => continue,
        };
        let Ok(text) = fs::read_to_string(paths::root().join(name)) else { continue };
        for Fault { line, rule } in check(&text).with_context(|| format!("{name} is not Rust"))? {
            eprintln!("{name}:{line}: {rule}");
            found += 1;
        }
    }
    spelling()?;
    documents()?;
    workflows()?;
    if found > 0 {
        bail!("{found} lines break a rule of prose; CONTRIBUTING.md explains them");
    }
    Ok(())
}

/// Checks the spelling by the rules of `typos.toml`.
fn spelling() -> Result<()> {
    let Some(tool) = tool(&TYPOS, "spelling is")? else { return Ok(()) };
    task::visibly(Command::new(tool).arg("--format=brief").current_dir(paths::root()))
        .context("misspelt words; `typos.toml` lists exceptions")
}

/// Checks the width and the links of Markdown by the rules of `.rumdl.toml`.
fn documents() -> Result<()> {
    let Some(tool) = tool(&RUMDL, "Markdown is")? else { return Ok(()) };
    task::visibly(Command::new(tool).args(["check", "--quiet", "."]).current_dir(paths::root()))
        .context("wrong Markdown; `.rumdl.toml` has the rules")
}

/// Checks the workflows of the forge.
fn workflows() -> Result<()> {
    task::step("workflows");
    let Some(tool) = tool(&ACTIONLINT, "workflows are")? else { return Ok(()) };
    // Without the optional linters of scripts: workflows call tasks, and hold no logic.
    let plain = ["-no-color", "-shellcheck=", "-pyflakes="];
    task::visibly(Command::new(tool).args(plain).current_dir(paths::root()))
        .context("a workflow in .github/workflows is wrong")
}

/// A pinned program. Without pip, only CI fails.
fn tool(pinned: &Pinned, what: &str) -> Result<Option<PathBuf>> {
    match pip::program(pinned) {
        Ok(tool) => Ok(Some(tool)),
        Err(why) if env::var_os("CI").is_none() => {
            task::note(&format!("{what} not checked: {why:#}"));
            Ok(None)
        }
        Err(why) => Err(why),
    }
}
