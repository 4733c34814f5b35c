//! `quotagate convert`: from rules of the rate limit service to a policy document of the filter.
//!
//! | part | does |
//! | --- | --- |
//! | `envoy` | finds the descriptors that a configuration of Envoy sends |
//! | `action` | what one action adds to a descriptor |
//! | `conditions` | conditions on requests, and how a document says them |
//! | `policies` | makes policies of rules and descriptors |
//! | `document` | writes the text |

mod action;
mod conditions;
mod document;
mod envoy;
mod message;
mod policies;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use quotagate_ratelimit::files::RulesByDomain;
use quotagate_ratelimit::rules::{DescriptorRule, DomainRules};
use serde_json::Value;

use self::action::{SentEntry, SentValue};
use self::conditions::{Conditions, ValueSource};
use self::document::WrittenDocument;
use self::envoy::{EnvoyDescriptors, SentCost, SentForm, SentRoutes};
use self::policies::Policies;
use crate::rules::{RuleSet, SharedArgs};
use crate::standard::{error_line, print};
use crate::text::{clean, count};

/// Most values in a configuration of Envoy that is YAML.
const MAX_VALUES: usize = 5_000_000;

/// The flags of `quotagate convert`.
#[derive(clap::Args)]
pub(crate) struct ConvertArgs {
    /// Rule files of envoyproxy/ratelimit, or folders with such files
    #[arg(required = true, value_name = "RULES")]
    rules: Vec<PathBuf>,
    /// The configuration of the Envoy that sends the descriptors, as YAML or JSON [default: each
    /// key of a rule is taken for a header of that name]
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    #[command(flatten)]
    shared: SharedArgs,
}

/// Prints the policy document, and on standard error what it does not say.
///
/// The status is 0 if the document says all that the rules say, 1 if it does not or if rules have
/// faults, 2 if a file cannot be read.
///
/// # Errors
/// One sentence about a file that cannot be read.
pub(crate) fn run(args: &ConvertArgs) -> Result<ExitCode, String> {
    let set = RuleSet::read(&args.rules, &args.shared)?;
    if set.names().next().is_none() {
        return Err(
            "the folder holds no rule file: name the files or the folder of the service's \
                    rules"
                .to_owned(),
        );
    }
    let rules = match set.rules() {
        Ok(rules) => rules,
        Err(faults) => {
            faults.iter().for_each(|fault| error_line(&clean(&fault.to_string())));
            return Ok(ExitCode::FAILURE);
        }
    };
    let envoy = args.envoy.as_deref().map(documents).transpose()?;
    let converted = match &envoy {
        Some((name, documents)) => {
            let sent = envoy::read(documents).map_err(|error| format!("{name} {error}"))?;
            convert(&rules, sent, Some(name))
        }
        None => convert(&rules, assumed(&set.trees()), None),
    };
    print(&converted.text)?;
    let gaps = converted.gaps;
    if args.envoy.is_none() {
        error_line(
            "quotagate: without --envoy, the values of the rules are taken for headers: look at \
             `identities` and `match`",
        );
    }
    if gaps == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    error_line(&format!(
        "quotagate: the document does not say {}: look for \"{}\" in it",
        count(gaps as u64, "thing that the service does", "things that the service does"),
        document::GAP.trim_end(),
    ));
    Ok(ExitCode::FAILURE)
}

fn documents(file: &Path) -> Result<(String, Vec<Value>), String> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {name}: {error}"))?;
    // A dump is JSON, and that of a mesh has more values than the YAML reader takes by default.
    if let Ok(document) = serde_json::from_str(&text) {
        return Ok((name, vec![document]));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_VALUES, max_events: 2 * MAX_VALUES },
    };
    let documents = serde_saphyr::from_multiple_with_options(&text, options)
        .map_err(|error| format!("{name} must be YAML or JSON: {}", error.without_snippet()))?;
    Ok((name, documents))
}

/// A written document.
struct Converted {
    text: String,
    /// How many comments say what it does not.
    gaps: usize,
}

/// The document for these rules and what Envoy sends. `envoy` is the name of its configuration.
fn convert(rules: &RulesByDomain, sent: EnvoyDescriptors<'_>, envoy: Option<&str>) -> Converted {
    // The domain of the first filter, or else the first one.
    let of_filter = sent.forms.iter().find_map(|(form, _)| rules.get_key_value(&*form.domain));
    let main = of_filter.or_else(|| rules.first_key_value());
    let main = main.map_or_else(|| Arc::from("rules"), |(name, _)| Arc::clone(name));
    let EnvoyDescriptors { forms, gaps, routes, filter } = sent;
    let mut policies = Policies::new(rules, Arc::clone(&main), &routes);
    gaps.into_iter().for_each(|gap| policies.gap(gap));
    for (form, on) in &forms {
        policies.form(form, on);
    }
    policies.finish();
    let domain = domain_name(&main);
    let mut head = vec![match envoy {
        Some(envoy) => format!("The limits of the rate limit service and {envoy} as policies."),
        None => "The limits of the rate limit service as policies.".to_owned(),
    }];
    head.push(
        "Validate it with `quotagate check`. Its counters begin with zero, beside those of the \
         service."
            .to_owned(),
    );
    if *domain != *main {
        head.push(format!("The domain of the rules is {main:?}, which no document can have."));
    }
    if envoy.is_some() {
        head.push(
            "A policy without `routes` counts all requests, also those that no route takes."
                .to_owned(),
        );
    }
    let mut remarks = Vec::new();
    if envoy.is_none() {
        remarks.push(
            "ASSUMED: each key is a header of that name. Write the source that the actions of your \
             Envoy name, or convert with --envoy."
                .to_owned(),
        );
    }
    let written = WrittenDocument {
        head,
        domain: &domain,
        filter,
        identities: policies.written_identities(),
        remarks,
        items: &policies.items,
    };
    let gaps = policies.items.iter().map(|item| item.gaps.len()).sum();
    Converted { text: written.text(), gaps }
}

/// A name that the domain of a document can have.
fn domain_name(domain: &str) -> String {
    let plain = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_alphanumeric() || "._-".contains(c) => c,
        _ => '-',
    };
    let name: String = domain.chars().map(plain).take(64).collect();
    if name.is_empty() { "rules".to_owned() } else { name }
}

/// What an Envoy may send for these rules: a descriptor for each path of keys that has a limit,
/// whose values are those of headers.
fn assumed(trees: &[DomainRules]) -> EnvoyDescriptors<'static> {
    let mut sent = EnvoyDescriptors::default();
    let mut known = BTreeSet::new();
    for DomainRules { domain, descriptors } in trees {
        let mut paths = Vec::new();
        keys(descriptors, &mut Vec::new(), &mut paths);
        for path in paths {
            if !known.insert((domain.clone(), path.clone())) {
                continue;
            }
            let entry = |key: String| {
                let value = SentValue::From(assumed_source(&key));
                SentEntry { key, value }
            };
            let entries = path.into_iter().map(entry).collect();
            let conditions = Conditions::default();
            let cost = SentCost::Units(1);
            let form = SentForm { domain: domain.clone(), entries, conditions, cost };
            sent.forms.push((form, SentRoutes::default()));
        }
    }
    sent
}

fn keys(descriptors: &[DescriptorRule], above: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    for DescriptorRule { key, rate_limit, descriptors, .. } in descriptors {
        above.push(key.clone());
        // A pattern over keys stands for no key.
        if rate_limit.is_some() && above.iter().all(|key| !key.contains('*')) {
            paths.push(above.clone());
        }
        keys(descriptors, above, paths);
        above.pop();
    }
}

fn assumed_source(key: &str) -> ValueSource {
    match key {
        "remote_address" => ValueSource::Address { ipv4: 32, ipv6: 128, is_network: false },
        "masked_remote_address" => ValueSource::Address { ipv4: 32, ipv6: 128, is_network: true },
        "path" | "method" => ValueSource::header(&format!(":{key}")),
        "authority" | "host" => ValueSource::Host,
        key => {
            let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
            ValueSource::Header(key.to_ascii_lowercase().chars().map(plain).take(128).collect())
        }
    }
}
