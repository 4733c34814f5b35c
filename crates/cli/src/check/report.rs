//! The result of checking a file.

use std::fmt::{self, Write as _};

use quotagate_operate::comparison::DocumentVersion;
use quotagate_quota::config::Config;
use serde::Serialize;
use serde_json::Value;

use super::yaml::{Node, Position, Tree};
use crate::text::{clean, count};

/// The result of checking a file.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// The file's name.
    pub(super) file: String,
    /// Its policy documents, in the order of the file.
    pub(super) documents: Vec<Summary>,
    /// The rules of a domain, if it is a rule file of envoyproxy/ratelimit without faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rules: Option<RulesSummary>,
    /// All faults and warnings, by line.
    pub(super) findings: Vec<Finding>,
    /// The documents that the filter accepts.
    #[serde(skip)]
    pub(super) accepted: Vec<DocumentVersion>,
}

/// A policy document.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// Its first line.
    pub(super) line: u64,
    /// Its path in the surrounding configuration; empty if the file is the document.
    pub(super) path: String,
    /// Its domain, if it has one.
    pub(super) domain: Option<String>,
    /// The number of its policies.
    pub(super) policies: usize,
}

/// The rules of a domain.
#[derive(Debug, Serialize)]
pub(super) struct RulesSummary {
    /// The domain.
    pub(super) domain: String,
    /// The number of its rules, those of other files included.
    pub(super) rules: usize,
    /// How many of them have a limit.
    pub(super) limited: usize,
    /// The rules as `/rlconfig` lists them; empty if an earlier file of the domain has them.
    pub(super) lines: Vec<String>,
}

/// A fault or a warning.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// Absent if the finding has no position in the file.
    pub(super) line: Option<u64>,
    pub(super) column: Option<u64>,
    /// The number of the policy document, from 1; absent for a finding about the whole file.
    pub(super) document: Option<usize>,
    /// The name of the policy.
    pub(super) policy: Option<String>,
    /// The path in the policy document; in the file, for a finding about what stands around it.
    pub(super) path: Option<String>,
    pub(super) message: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// The filter accepts it, but it is probably a mistake.
    Warning,
    /// The filter rejects the document.
    Fault,
}

impl Finding {
    /// A fault of the whole file.
    pub(super) fn of_file(at: Option<Position>, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Fault,
            line: at.map(|at| at.line),
            column: at.map(|at| at.column),
            document: None,
            policy: None,
            path: None,
            message: message.into(),
        }
    }
}

impl Summary {
    /// The summary of a document with this content that begins at `at`.
    pub(super) fn of(path: &str, at: Position, node: &Node) -> Self {
        let domain = node.value.get("domain").and_then(|domain| domain.value.text());
        let policies = match node.value.get("policies").map(|policies| &policies.value) {
            Some(Tree::List(policies)) => policies.len(),
            _ => 0,
        };
        Self { domain: domain.map(str::to_owned), policies, ..Self::unreadable(path, at) }
    }

    /// The summary of a document that cannot be parsed.
    pub(super) fn unreadable(path: &str, at: Position) -> Self {
        Self { line: at.line, path: path.to_owned(), domain: None, policies: 0 }
    }
}

impl Report {
    /// An empty report.
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            documents: Vec::new(),
            rules: None,
            findings: Vec::new(),
            accepted: Vec::new(),
        }
    }

    /// Adds what was found in a document with this `value`.
    pub(super) fn add(&mut self, found: Vec<Finding>, config: Option<Config>, value: Value) {
        self.findings.extend(found);
        self.accepted.extend(config.map(|config| DocumentVersion { config, value }));
    }

    /// The report of a file that cannot be read, and why.
    pub(super) fn unreadable(file: String, why: String) -> Self {
        Self { findings: vec![Finding::of_file(None, why)], ..Self::new(&file) }
    }

    /// Whether the file has neither a policy document nor rules.
    pub(super) fn is_empty(&self) -> bool {
        self.documents.is_empty() && self.rules.is_none()
    }

    /// Whether any finding is at least this severe.
    pub(super) fn has(&self, severity: Severity) -> bool {
        self.findings.iter().any(|finding| finding.severity >= severity)
    }

    /// The findings, one line each.
    pub(super) fn lines(&self) -> Vec<String> {
        self.findings.iter().map(|finding| self.line(finding)).collect()
    }

    fn line(&self, finding: &Finding) -> String {
        let mut text = self.file.clone();
        for number in [finding.line, finding.column].into_iter().flatten() {
            let _ = write!(text, ":{number}");
        }
        text.push_str(": ");
        if finding.severity == Severity::Warning {
            text.push_str("warning: ");
        }
        if let Some(number) = finding.document.filter(|_| self.documents.len() > 1) {
            let _ = write!(text, "document {number}: ");
        }
        if let Some(path) = &finding.path {
            text.push_str(path);
            if let Some(policy) = &finding.policy {
                let _ = write!(text, " (policy {policy:?})");
            }
            text.push_str(": ");
        }
        text.push_str(&finding.message);
        // Names and messages may contain text of the file.
        clean(&text)
    }
}

/// The documents without faults, one line each.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rules) = &self.rules {
            return write!(f, "{}: {rules}", self.file);
        }
        if self.documents.is_empty() && self.findings.is_empty() {
            return writeln!(f, "{}: no policy document", self.file);
        }
        for (number, document) in (1..).zip(&self.documents) {
            let is_bad = |finding: &&Finding| {
                finding.severity == Severity::Fault && finding.document == Some(number)
            };
            if self.findings.iter().any(|finding| is_bad(&finding)) {
                continue;
            }
            f.write_str(&self.file)?;
            if self.documents.len() > 1 || !document.path.is_empty() {
                write!(f, ":{}", document.line)?;
            }
            let noun = if document.policies == 1 { "policy" } else { "policies" };
            write!(f, ": valid, with {} {noun}", document.policies)?;
            if let Some(domain) = document.domain.as_ref().filter(|_| self.documents.len() > 1) {
                write!(f, " in domain {domain:?}")?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

impl fmt::Display for RulesSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, rules, limited, lines } = self;
        let rules = count(*rules as u64, "rule", "rules");
        writeln!(f, "valid, with {rules} in domain {domain:?}, {limited} of them with a limit")?;
        lines.iter().try_for_each(|line| writeln!(f, "  {}", clean(line)))
    }
}
