//! `quotagate check`: a policy document's faults without Envoy, in the filter's own words.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use quotagate_quota::config::Config;
use serde_json::Value;

/// The flags of `quotagate check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The policy document, JSON or YAML; `-` reads standard input
    file: PathBuf,
}

/// Prints what is wrong with the document, one line a fault.
///
/// The status is 0 if nothing is, 1 if something is.
///
/// # Errors
/// One sentence on a file that cannot be read.
pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let name = args.file.display();
    let text = read(&args.file).map_err(|error| format!("cannot read {name}: {error}"))?;
    match faults(&text) {
        Ok(policies) => {
            println!("{name}: good, with {policies} {}", if policies == 1 { "policy" } else { "policies" });
            Ok(ExitCode::SUCCESS)
        }
        Err(faults) => {
            for fault in faults {
                eprintln!("{name}: {fault}");
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

/// The number of policies in force, or the faults.
fn faults(text: &str) -> Result<usize, Vec<String>> {
    // The filter sees JSON; every JSON text is a YAML text.
    let document: Value = serde_saphyr::from_str(text).map_err(|error| vec![error.to_string()])?;
    if document.get("static_resources").is_some() {
        return Err(vec![
            "this is a configuration of Envoy: check it with `envoy --mode validate`, or give the document that \
             stands in it under configuration.value of the Wasm filter"
                .to_owned(),
        ]);
    }
    match Config::parse(document.to_string().as_bytes()) {
        Ok(config) => Ok(config.policies.len()),
        Err(faults) => Err(faults.iter().map(ToString::to_string).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "domain: shop\nstore: {cluster: s}\npolicies:\n- {name: a, quota: 5, window: 1m}\n";

    #[test]
    fn yaml_and_json_are_read() {
        assert_eq!(faults(GOOD), Ok(1));
        assert_eq!(faults(r#"{"domain":"d","store":{"cluster":"s"},"policies":[]}"#), Ok(0));
    }

    #[test]
    fn all_faults_are_listed_with_their_paths() {
        let found = faults(&GOOD.replace("shop", "Shop!").replace("5", "-5")).unwrap_err();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("domain: ") && found[1].starts_with("policies[0].quota: "), "{found:?}");
    }

    #[test]
    fn what_is_no_document_is_told_so() {
        assert!(faults("a: [").is_err());
        assert!(faults("static_resources: {}").unwrap_err()[0].contains("--mode validate"));
        assert!(!faults("").unwrap_err().is_empty());
    }
}
