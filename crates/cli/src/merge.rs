//! `quotagate merge`: from Kubernetes objects to the policy documents of their domains, without a
//! cluster.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use quotagate_kubernetes::{
    AncestorOutcome, Domains, MergedDocument, ObjectName, Objects, PolicyOutcome, merge,
};
use serde_json::Value;

use crate::standard::{error_line, write};
use crate::text::clean;

/// Most values in a file: that of a cluster with thousands of routes.
const MAX_VALUES: usize = 5_000_000;

/// The flags of `quotagate merge`.
#[derive(clap::Args)]
pub(crate) struct MergeArgs {
    /// A folder with Kubernetes objects as YAML or JSON, also in folders below it: QuotaPolicies,
    /// and the Gateways, HTTPRoutes, GRPCRoutes, Services and Namespaces that they apply to, as
    /// `kubectl get -o yaml` prints them
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// The domains of the platform: a list `domains` of policy documents, each with its `gateways`
    /// [default: one domain for all Gateways, without identities of the platform]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The domain whose document is printed. Without --config, the name of the only domain
    /// [default: all domains; without --config, `default`]
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
}

/// Prints the documents, and on standard error each object that is not accepted.
///
/// The status is 0 if all are accepted and counted whole, and 1 if not. It is 2, and nothing is
/// printed, if a file cannot be read or a document has faults.
///
/// # Errors
/// Sentences about what cannot be read.
pub(crate) fn run(args: &MergeArgs) -> Result<ExitCode, String> {
    let domains = domains(args.config.as_deref(), args.domain.as_deref())?;
    let (objects, faults) = objects(&args.folder)?;
    if objects.names().next().is_none() && faults.is_empty() {
        return Err(format!("{} holds no QuotaPolicy", args.folder.display()));
    }
    print_documents(&objects, &domains, args.domain.as_deref(), faults)
}

/// The objects of a folder, and the faults of single objects.
///
/// # Errors
/// That the folder or a file of it cannot be read.
pub(crate) fn objects(folder: &Path) -> Result<(Objects, BTreeSet<String>), String> {
    let (mut objects, mut faults) = (Objects::default(), BTreeSet::new());
    for file in files(folder)? {
        for object in read(&file)? {
            if let Err(found) = objects.add(&object) {
                faults.extend(found.iter().map(|fault| format!("{}: {fault}", file.display())));
            }
        }
    }
    Ok((objects, faults))
}

/// Prints the documents of all domains or of one, and on standard error all faults: these, and
/// those of objects that are not accepted.
///
/// The status is 0 if all are accepted and counted whole, 1 if not, and 2, with nothing printed, if
/// a document has faults.
///
/// # Errors
/// That nothing can be printed.
pub(crate) fn print_documents(
    objects: &Objects,
    domains: &Domains,
    only: Option<&str>,
    mut faults: BTreeSet<String>,
) -> Result<ExitCode, String> {
    let mut placed = BTreeSet::new();
    let (mut texts, mut is_whole) = (Vec::new(), true);
    for domain in domains.iter() {
        let MergedDocument { document, outcomes } = merge(objects, domain);
        placed.extend(outcomes.iter().map(|outcome| outcome.object.clone()));
        if only.is_some_and(|wanted| wanted != domain.name()) {
            continue;
        }
        faults.extend(outcomes.iter().flat_map(refusals));
        match document {
            Ok(document) => {
                texts.push(serde_saphyr::to_string(&document).map_err(|error| error.to_string())?);
            }
            Err(found) => {
                is_whole = false;
                let of = |fault: &String| format!("the document of {}: {fault}", domain.name());
                faults.extend(found.iter().map(of));
            }
        }
    }
    faults.extend(unplaced(objects, &placed));
    for fault in &faults {
        error_line(&format!("quotagate: {}", clean(fault)));
    }
    if !is_whole {
        return Err("a document has faults, so nothing is printed".to_owned());
    }
    write(&texts.join("---\n"))?;
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A line for each object that is not among those that a domain has a place for.
pub(crate) fn unplaced(objects: &Objects, placed: &BTreeSet<ObjectName>) -> Vec<String> {
    let unplaced = objects.names().filter(|name| !placed.contains(name));
    let line = |name| {
        format!(
            "QuotaPolicy {name}: no domain has a Gateway that it reaches. Add the Gateway to \
             `gateways` of a domain in --config"
        )
    };
    unplaced.map(line).collect()
}

/// The domains of a configuration. Without one, a domain of this name.
///
/// # Errors
/// What is wrong with the configuration or with the name.
pub(crate) fn domains(config: Option<&Path>, domain: Option<&str>) -> Result<Domains, String> {
    let Some(file) = config else {
        let name = domain.unwrap_or("default");
        return Domains::one(name).map_err(|faults| format!("--domain: {}", faults.join("; ")));
    };
    let config = match <[Value; 1]>::try_from(read(file)?) {
        Ok([config]) => config,
        Err(_) => return Err(format!("{} must be one YAML document", file.display())),
    };
    let domains = Domains::read(&config)
        .map_err(|faults| format!("{}: {}", file.display(), faults.join("; ")))?;
    let names: Vec<&str> = domains.iter().map(|domain| domain.name()).collect();
    match domain {
        Some(wanted) if !names.contains(&wanted) => Err(format!(
            "--domain: {} has no domain {wanted}: it has {}",
            file.display(),
            names.join(", ")
        )),
        _ => Ok(domains),
    }
}

/// A line for each place at which an object is not accepted, or not in force.
pub(crate) fn refusals(outcome: &PolicyOutcome) -> Vec<String> {
    let line = |ancestor: &AncestorOutcome| {
        let verdicts = [Some(&ancestor.accepted), ancestor.programmed.as_ref()];
        let verdict = verdicts.into_iter().flatten().find(|verdict| !verdict.holds)?;
        let at = &ancestor.ancestor;
        Some(format!(
            "QuotaPolicy {} for {} {}/{}: {}: {}",
            outcome.object,
            at.kind,
            at.namespace,
            at.name,
            verdict.reason.name(),
            verdict.message
        ))
    };
    let notes = outcome.notes.iter().map(|note| format!("QuotaPolicy {}: {note}", outcome.object));
    outcome.ancestors.iter().filter_map(line).chain(notes).collect()
}

/// The files with objects in a folder and below it, in the order of their names.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let unreadable = |error| format!("cannot read the folder {}: {error}", folder.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // A link to a folder above would never end.
        entries.push((entry.path(), entry.file_type().map_err(unreadable)?.is_dir()));
    }
    entries.sort();
    let mut files = Vec::new();
    for (path, is_folder) in entries {
        let is_hidden =
            path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if is_folder && !is_hidden {
            files.extend(self::files(&path)?);
        } else if !is_hidden && ["yaml", "yml", "json"].contains(&ending) {
            files.push(path);
        }
    }
    Ok(files)
}

fn read(file: &Path) -> Result<Vec<Value>, String> {
    let name = file.display();
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {name}: {error}"))?;
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_nodes: MAX_VALUES, max_events: 2 * MAX_VALUES },
    };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options)
        .map_err(|error| format!("{name} must be YAML or JSON: {}", error.without_snippet()))?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}
