//! Rule files of envoyproxy/ratelimit: their faults, and the rules that would be in force.

use std::collections::BTreeSet;

use quotagate_control::FileDocument;
use quotagate_ratelimit::http::line;
use quotagate_ratelimit::published::read_published;
use quotagate_ratelimit::rules::{FileFault, RuleDomain, RuleFile, RuleLimit};

use super::report::{Finding, Report, RulesSummary, Severity};
use super::yaml::Position;
use crate::rules::{RuleSet, SharedArgs};

/// The report of a folder without rule files.
pub(super) fn empty_folder(name: &str) -> Report {
    let mut report = Report::new(name);
    let finding = Finding::of_file(None, "holds no rule file, so every request passes");
    report.findings.push(Finding { severity: Severity::Warning, ..finding });
    report
}

/// A report for each of these files, which a service would read together.
pub(super) fn reports(files: Vec<RuleFile>, shared: SharedArgs) -> Vec<Report> {
    let set = RuleSet::of(files, shared);
    let mut reports: Vec<Report> = set.names().map(Report::new).collect();
    match set.rules() {
        Err(faults) => {
            for fault in faults {
                let report = reports.iter_mut().find(|report| report.file == fault.file);
                report.into_iter().for_each(|report| report.findings.push(finding(&fault)));
            }
        }
        Ok(rules) => {
            let mut listed = BTreeSet::new();
            for (report, tree) in reports.iter_mut().zip(set.trees()) {
                let Some(domain) = rules.get(tree.domain.as_str()) else { continue };
                report.rules = Some(summary(domain, listed.insert(tree.domain)));
            }
        }
    }
    reports
}

/// The rule file with this text, as operators publish it.
///
/// # Errors
/// A line for each fault.
pub(super) fn to_publish(name: &str, text: String) -> Result<FileDocument, Vec<String>> {
    let file = RuleFile { name: name.to_owned(), text: text.clone().into_bytes() };
    let faults: Vec<String> =
        reports(vec![file], SharedArgs::default()).iter().flat_map(Report::lines).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    let domain = read_published(&text)?.domain;
    Ok(FileDocument { domain, document: text.into() })
}

fn finding(fault: &FileFault) -> Finding {
    let at = Position { line: fault.line as u64, column: 1 };
    let finding = Finding::of_file(Some(at), fault.fault.text.clone());
    // The service knows the line alone.
    Finding { column: None, path: Some(fault.fault.path.clone()), ..finding }
}

fn summary(domain: &RuleDomain, is_first: bool) -> RulesSummary {
    let rules = domain.rules();
    let mut lines: Vec<String> =
        rules.iter().filter(|_| is_first).map(|rule| line(rule).trim_end().to_owned()).collect();
    lines.sort_unstable();
    RulesSummary {
        domain: domain.name().to_string(),
        rules: rules.len(),
        limited: rules.iter().filter(|rule| rule.limit != RuleLimit::Unlimited).count(),
        lines,
    }
}
