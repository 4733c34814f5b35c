//! `quotagate check`: validates policy documents without Envoy, with the code of the filter, and
//! rule files of envoyproxy/ratelimit with the code of the rate limit service.

mod chain;
mod diff;
mod documents;
mod report;
mod rule_files;
mod yaml;

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use quotagate_control::FileDocument;
use quotagate_operate::comparison::DocumentVersion;
use quotagate_operate::document::{store_url, unknown_zones};
use quotagate_quota::config::{self, Config, Fault, Reach};
use quotagate_ratelimit::rules::{RuleFile, is_rule_file};
use serde_json::json;

use self::chain::{Needs, program};
use self::documents::{Content, Document};
use self::report::{Finding, Report, Severity, Summary};
use self::yaml::{Node, Position, Tree, Unreadable};
use crate::rules::{SharedArgs, folder};
use crate::standard::{error_line, print, write};

/// The flags of `quotagate check`.
#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// Policy documents, or configurations of Envoy, Istio or Envoy Gateway that contain some, as
    /// JSON or YAML; `-` reads standard input. A file with `descriptors`, and each file of a
    /// folder, is a rule file of envoyproxy/ratelimit
    #[arg(required_unless_present = "diff", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Say what happens to counters, dials and runtime overrides when the documents of NEW replace
    /// those of OLD
    #[arg(
        long,
        num_args = 2,
        value_names = ["OLD", "NEW"],
        conflicts_with_all = ["files", "rules", "merge_domains"]
    )]
    diff: Vec<PathBuf>,
    /// All files are rule files of envoyproxy/ratelimit, whatever they contain
    #[arg(long)]
    rules: bool,
    #[command(flatten)]
    shared: SharedArgs,
    /// Fail on warnings, too
    #[arg(long)]
    strict: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints the faults of the documents, and warnings about likely mistakes, each on a line with its
/// position.
///
/// The status is 0 without faults, 1 with faults or if no file contains a policy document, 2 if a
/// file cannot be read.
///
/// # Errors
/// One sentence when standard output cannot be written.
pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, String> {
    if let [old, new] = args.diff.as_slice() {
        return diff::run(old, new, args.strict, args.json);
    }
    let mut is_readable = true;
    let (mut reports, mut rule_files) = (Vec::new(), Vec::new());
    for file in &args.files {
        let name = file.display().to_string();
        if file.is_dir() {
            match folder(file) {
                Ok(files) if files.is_empty() => reports.push(rule_files::empty_folder(&name)),
                Ok(files) => rule_files.extend(files),
                Err(error) => {
                    is_readable = false;
                    reports.push(Report::unreadable(name, error));
                }
            }
            continue;
        }
        match read(file) {
            Ok(text) if args.rules || is_rule_file(&text) => {
                rule_files.push(RuleFile { name, text });
            }
            Ok(text) => match str::from_utf8(&text) {
                Ok(text) => reports.push(check(&name, text)),
                Err(_) => {
                    is_readable = false;
                    reports.push(Report::unreadable(name, NOT_UTF_8.to_owned()));
                }
            },
            Err(error) => {
                is_readable = false;
                reports.push(Report::unreadable(name, format!("cannot be read: {error}")));
            }
        }
    }
    reports.extend(rule_files::reports(rule_files, args.shared));
    let limit = if args.strict { Severity::Warning } else { Severity::Fault };
    let has_documents = reports.iter().any(|report| !report.is_empty());
    let is_valid = has_documents && !reports.iter().any(|report| report.has(limit));
    if args.json {
        let all = json!({"valid": is_valid, "files": reports});
        let text = serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?;
        print(&(text + "\n"))?;
    } else {
        for report in &reports {
            report.lines().iter().for_each(|line| error_line(line));
            write(&report.to_string())?;
        }
        if reports.iter().all(|report| report.is_empty() && report.findings.is_empty()) {
            error_line(
                "quotagate: no file contains a policy document: it needs the fields domain, store \
                 and policies. For rule files without `descriptors`, add --rules",
            );
        }
    }
    Ok(match (is_readable, is_valid) {
        (false, _) => ExitCode::from(2),
        (true, false) => ExitCode::FAILURE,
        (true, true) => ExitCode::SUCCESS,
    })
}

/// The documents of a file that operators publish, in which `store` may be left out, or the rule
/// file that it is; and a line for each finding.
///
/// # Errors
/// A line for each finding, if the file cannot be read, or has faults or no document.
pub(crate) fn to_publish(file: &Path) -> Result<(Vec<FileDocument>, Vec<String>), Vec<String>> {
    let name = file.display().to_string();
    let text = read(file).map_err(|error| vec![format!("{name}: cannot be read: {error}")])?;
    to_publish_of(&name, text)
}

/// The same of a file with this content.
///
/// # Errors
/// As [`to_publish`].
pub(crate) fn to_publish_of(
    name: &str,
    text: Vec<u8>,
) -> Result<(Vec<FileDocument>, Vec<String>), Vec<String>> {
    let line = |why: String| vec![format!("{name}: {why}")];
    let text = String::from_utf8(text).map_err(|_| line(NOT_UTF_8.to_owned()))?;
    if is_rule_file(text.as_bytes()) {
        return Ok((vec![rule_files::to_publish(name, text)?], Vec::new()));
    }
    let report = check_with(name, &text, StoreField::Optional);
    let lines = report.lines();
    if report.has(Severity::Fault) {
        return Err(lines);
    }
    if report.accepted.is_empty() {
        return Err(line("has no policy document".to_owned()));
    }
    let document = |DocumentVersion { config, value }: DocumentVersion| FileDocument {
        domain: config.domain.to_string(),
        document: value,
    };
    Ok((report.accepted.into_iter().map(document).collect(), lines))
}

/// Whether a document must say how the filter reaches the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreField {
    Required,
    /// A published document need not.
    Optional,
}

/// Why a file with other bytes is no document.
const NOT_UTF_8: &str = "cannot be read: it is not UTF-8";

fn read(file: &Path) -> io::Result<Vec<u8>> {
    if file.as_os_str() == "-" {
        let mut text = Vec::new();
        io::stdin().read_to_end(&mut text)?;
        Ok(text)
    } else {
        fs::read(file)
    }
}

/// Checks a file with this text.
fn check(name: &str, text: &str) -> Report {
    check_with(name, text, StoreField::Required)
}

fn check_with(name: &str, text: &str, store: StoreField) -> Report {
    let mut report = Report::new(name);
    let roots = match yaml::read(text) {
        Ok(roots) => roots,
        Err(Unreadable { at, message }) => {
            report.findings.push(Finding::of_file(at, message));
            return report;
        }
    };
    for root in &roots {
        let documents = documents::find(root, text);
        let mut needs: Vec<(&str, Needs)> = Vec::new();
        for document in &documents {
            let Some(needed) = check_document(document, store, &mut report) else { continue };
            let number = report.documents.len();
            report.findings.extend(program::fault(root, &document.path, &needed, number));
            needs.push((&document.path, needed));
        }
        report.findings.extend(chain::warnings(root, needs));
    }
    report.findings.sort_by_key(|finding| (finding.line, finding.column));
    report
}

/// Checks a document and adds the findings to the report. Returns what it needs of the
/// configuration around it, if it can be read.
fn check_document(
    document: &Document<'_>,
    store: StoreField,
    report: &mut Report,
) -> Option<Needs> {
    let number = report.documents.len() + 1;
    let Document { path, content } = document;
    match content {
        Content::Plain(node) => {
            let mut value = node.value.json();
            if let (StoreField::Optional, Some(members)) = (store, value.as_object_mut()) {
                members.entry("store").or_insert_with(|| json!({"cluster": "any"}));
            }
            let text = value.to_string();
            report.documents.push(Summary::of(path, node.referenced.into(), node));
            let (found, config) = findings(&text, node, number, |at| at);
            report.add(found, config, value);
            Some(Needs::of(node))
        }
        Content::Text(embedded) => match embedded.read() {
            Ok(node) => {
                report.documents.push(Summary::of(path, embedded.start(), &node));
                let (found, config) =
                    findings(embedded.text(), &node, number, |at| embedded.position(at));
                report.add(found, config, node.value.json());
                Some(Needs::of(&node))
            }
            Err(Unreadable { at, message }) => {
                report.documents.push(Summary::unreadable(path, embedded.start()));
                report
                    .findings
                    .push(Finding { document: Some(number), ..Finding::of_file(at, message) });
                None
            }
        },
    }
}

/// The findings of the parser of the filter, and of the store inside it; and the configuration,
/// unless the parser finds faults. `text` is the JSON of the
/// document, and `node` is the same with positions. `in_file` converts these to positions in the
/// file.
fn findings(
    text: &str,
    node: &Node,
    number: usize,
    in_file: impl Fn(Position) -> Position,
) -> (Vec<Finding>, Option<Config>) {
    let finding = |fault: &Fault, severity| {
        let at = in_file(locate(node, &fault.path));
        Finding {
            severity,
            document: Some(number),
            policy: policy(node, &fault.path).map(str::to_owned),
            path: Some(fault.path.clone()),
            ..Finding::of_file(Some(at), fault.message.clone())
        }
    };
    let (faults, warnings, config) = match Config::parse(text.as_bytes()) {
        Ok(config) => (wrong_in_store(&config), config.warnings().to_vec(), Some(config)),
        Err(faults) => (faults.iter().cloned().collect(), faults.warnings().to_vec(), None),
    };
    let faults = faults.iter().map(|fault| finding(fault, Severity::Fault));
    let warnings = warnings.iter().map(|warning| finding(warning, Severity::Warning));
    (faults.chain(warnings).collect(), config)
}

/// What the store's library finds wrong: a store inside the filter, or a time zone.
fn wrong_in_store(config: &Config) -> Vec<Fault> {
    let store = match &config.store.reach {
        Reach::Cluster(_) | Reach::Nowhere => None,
        Reach::Redis(store) => store_url(store).err(),
    };
    store.into_iter().chain(unknown_zones(config)).collect()
}

/// The position of the value at this path, or of the nearest value around it.
fn locate(root: &Node, path: &str) -> Position {
    let (mut node, mut here, mut at) = (root, String::new(), root.referenced);
    let leads = |inner: &str| {
        path.strip_prefix(inner).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    loop {
        let next = match &node.value {
            Tree::Scalar(_) => None,
            Tree::List(elements) => elements.iter().enumerate().find_map(|(i, element)| {
                let inner = config::element_path(&here, i);
                leads(&inner).then_some((element, inner, element.referenced))
            }),
            Tree::Map(members) => members.iter().find_map(|(name, value)| {
                let inner = config::member_path(&here, &name.value);
                leads(&inner).then_some((value, inner, name.referenced))
            }),
        };
        match next {
            Some(next) => (node, here, at) = next,
            None => return at.into(),
        }
    }
}

/// The name of the policy that a path belongs to.
fn policy<'n>(root: &'n Node, path: &str) -> Option<&'n str> {
    let (number, _) = path.strip_prefix("policies[")?.split_once(']')?;
    let Tree::List(policies) = &root.value.get("policies")?.value else { return None };
    policies.get(number.parse::<usize>().ok()?)?.value.get("name")?.value.text()
}

#[cfg(test)]
mod tests;
