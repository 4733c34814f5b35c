//! `quotagate check --diff OLD NEW`: what happens to counters when documents replace others.

use std::path::Path;
use std::process::ExitCode;

use quotagate_operate::comparison::compare;
use serde_json::json;

use super::report::{Report, Severity};
use super::{NOT_UTF_8, check, read};
use crate::standard::{error_line, print};
use crate::text::clean;

/// Prints the comparison of the documents of two files, and their findings.
///
/// The status is 0 if both are valid, however they differ; 1 if one has faults, or no policy
/// document; 2 if one cannot be read. `strict` counts warnings of the new file as faults.
///
/// # Errors
/// One sentence when standard output cannot be written.
pub(super) fn run(old: &Path, new: &Path, strict: bool, json: bool) -> Result<ExitCode, String> {
    let ((old, old_is_readable), (new, new_is_readable)) = (report(old), report(new));
    let is_valid = |report: &Report, limit| !report.documents.is_empty() && !report.has(limit);
    let limit = if strict { Severity::Warning } else { Severity::Fault };
    let valid = is_valid(&old, Severity::Fault) && is_valid(&new, limit);
    let can_compare = is_valid(&old, Severity::Fault) && is_valid(&new, Severity::Fault);
    let comparison = can_compare.then(|| compare(&old.accepted, &new.accepted));
    if json {
        let all = json!({"valid": valid, "files": [old, new], "diff": comparison});
        let text = serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?;
        print(&(text + "\n"))?;
    } else {
        for report in [&old, &new] {
            report.lines().iter().for_each(|line| error_line(line));
            if report.is_empty() && report.findings.is_empty() {
                error_line(&clean(&format!("{}: no policy document", report.file)));
            }
        }
        if let Some(comparison) = comparison {
            let text = comparison.to_string();
            let lines = text.lines().map(|line| clean(line) + "\n");
            print(&lines.collect::<String>())?;
        }
    }
    Ok(match (old_is_readable && new_is_readable, valid) {
        (false, _) => ExitCode::from(2),
        (true, false) => ExitCode::FAILURE,
        (true, true) => ExitCode::SUCCESS,
    })
}

/// The report of a file, and whether it can be read.
fn report(file: &Path) -> (Report, bool) {
    let name = file.display().to_string();
    let why = match read(file) {
        Ok(text) => match str::from_utf8(&text) {
            Ok(text) => return (check(&name, text), true),
            Err(_) => NOT_UTF_8.to_owned(),
        },
        Err(error) => format!("cannot be read: {error}"),
    };
    (Report::unreadable(name, why), false)
}
