//! `quotagate check`: a policy document's faults without Envoy, in the filter's own words.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use quotagate_quota::config::{Config, Fault};
use serde_json::Value;

use crate::standard::{print, tell_line};

/// The flags of `quotagate check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policy document, JSON or YAML; `-` reads standard input
    file: PathBuf,
}

/// What is to be said of a document.
#[derive(Debug, PartialEq, Eq)]
struct Report {
    /// The number of policies in force, or the faults.
    result: Result<usize, Vec<String>>,
    /// What is allowed and misleading.
    warnings: Vec<String>,
}

/// Prints what is wrong with the document, one line a fault, and what is misleading, one line a warning.
///
/// The status is 0 if nothing is wrong, whatever the warnings, and 1 if something is.
///
/// # Errors
/// One sentence on a file that cannot be read.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let name = args.file.display();
    let text = read(&args.file).map_err(|error| format!("cannot read {name}: {error}"))?;
    let Report { result, warnings } = check(&text);
    for warning in warnings {
        tell_line(&format!("{name}: warning: {warning}"));
    }
    match result {
        Ok(policies) => {
            let noun = if policies == 1 { "policy" } else { "policies" };
            print(&format!("{name}: good, with {policies} {noun}\n"))
        }
        Err(faults) => {
            for fault in faults {
                tell_line(&format!("{name}: {fault}"));
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

fn read(file: &Path) -> io::Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        io::stdin().read_to_string(&mut text)?;
        Ok(text)
    } else {
        fs::read_to_string(file)
    }
}

fn check(text: &str) -> Report {
    let unreadable = |fault: String| Report { result: Err(vec![fault]), warnings: Vec::new() };
    // The filter sees JSON; every JSON text is a YAML text.
    let document: Value = match serde_saphyr::from_str(text) {
        Ok(document) => document,
        Err(error) => return unreadable(error.to_string()),
    };
    if document.get("static_resources").is_some() {
        return unreadable(
            "this is a configuration of Envoy: check it with `envoy --mode validate`, or give the document that \
             stands in it under configuration.value of the Wasm filter"
                .to_owned(),
        );
    }
    match Config::parse(document.to_string().as_bytes()) {
        Ok(config) => Report { result: Ok(config.policies.len()), warnings: lines(config.warnings()) },
        Err(faults) => {
            let warnings = lines(faults.warnings());
            Report { result: Err(lines(faults.iter())), warnings }
        }
    }
}

fn lines<'f>(faults: impl IntoIterator<Item = &'f Fault>) -> Vec<String> {
    faults.into_iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "domain: shop\nstore: {cluster: s}\npolicies:\n- {name: a, partition_by: [], quota: 5, window: 1m}\n";

    fn faults(text: &str) -> Vec<String> {
        check(text).result.unwrap_err()
    }

    #[test]
    fn yaml_and_json_are_read() {
        assert_eq!(check(GOOD), Report { result: Ok(1), warnings: Vec::new() });
        assert_eq!(check(r#"{"domain":"d","store":{"cluster":"s"},"policies":[]}"#).result, Ok(0));
    }

    #[test]
    fn all_faults_are_listed_with_their_paths() {
        let found = faults(&GOOD.replace("shop", "Shop!").replace("5", "-5"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("domain: ") && found[1].starts_with("policies[0].quota: "), "{found:?}");
    }

    #[test]
    fn warnings_are_given_of_good_and_of_bad_documents() {
        let misleading = format!("{GOOD}digest_key: short\n");
        for (text, good) in [(misleading.clone(), true), (misleading.replace("shop", "Shop!"), false)] {
            let report = check(&text);
            assert_eq!(report.result.is_ok(), good);
            assert!(matches!(report.warnings.as_slice(), [w] if w.starts_with("digest_key: ")), "{report:?}");
        }
    }

    #[test]
    fn the_shipped_policies_are_good_and_mislead_nobody() {
        let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../envoy/envoy.yaml");
        let envoy: Value = serde_saphyr::from_str(&fs::read_to_string(shipped).unwrap()).unwrap();
        let mut filters = Vec::new();
        documents(&envoy, &mut filters);
        assert!(!filters.is_empty());
        for document in filters {
            let report = check(&document.to_string());
            assert!(report.result.is_ok() && report.warnings.is_empty(), "{report:?}");
        }
    }

    /// All policy documents in a configuration of Envoy.
    fn documents<'v>(value: &'v Value, found: &mut Vec<&'v Value>) {
        match value {
            Value::Object(fields) if fields.contains_key("domain") && fields.contains_key("policies") => {
                found.push(value);
            }
            Value::Object(fields) => fields.values().for_each(|value| documents(value, found)),
            Value::Array(values) => values.iter().for_each(|value| documents(value, found)),
            _ => {}
        }
    }

    #[test]
    fn what_is_no_document_is_told_so() {
        assert!(check("a: [").result.is_err());
        assert!(faults("static_resources: {}")[0].contains("--mode validate"));
        assert!(!faults("").is_empty());
    }
}
