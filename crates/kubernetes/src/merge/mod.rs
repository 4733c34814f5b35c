//! One document of a domain, from the objects of all namespaces.
//!
//! Defaults and overrides of the platform come first, then the older one of two objects, then the
//! one whose namespace and name come first. The platform means the namespaces of the Gateways that
//! the domain lists. Each other namespace has a share of the document, so none can push out the
//! rest. An object yields if it comes later, where a bound is reached or a name is taken. One that
//! is not accepted has no effect on any other.

mod candidate;
mod domain;
mod draft;
mod outcome;
mod shape;
mod targets;
mod written;

pub use domain::{Domain, Domains};

use std::collections::BTreeMap;

use serde_json::Value;

use crate::objects::{ObjectName, Objects};
use crate::resource::{PolicyOutcome, Reason};

use self::candidate::Candidate;
use self::draft::Draft;
use self::targets::Scene;

/// The document of a domain, and what became of each object that concerns it.
#[derive(Clone, Debug)]
pub struct MergedDocument {
    /// The document; it has no faults. Or the faults for which it must not be published.
    pub document: Result<Value, Vec<String>>,
    /// An object that concerns other domains alone is left out. In the order of the merge.
    pub outcomes: Vec<PolicyOutcome>,
}

/// Merges the objects that concern a domain into its document.
pub fn merge(objects: &Objects, domain: &Domain) -> MergedDocument {
    let named = targets::named_rules(objects);
    let scene = Scene { objects, domain, named: &named };
    let mut candidates: Vec<Candidate<'_>> = objects
        .policies
        .iter()
        .filter_map(|(name, object)| Candidate::of(name, object, scene))
        .collect();
    // A stable sort: the objects come by namespace and name.
    candidates.sort_by_key(|candidate| {
        let created = candidate.object.metadata.creation_timestamp.as_ref();
        (!candidate.is_of_platform(domain), created.map(|created| created.0))
    });
    let mut draft = Draft::new(domain);
    let mut refused: BTreeMap<ObjectName, (Reason, String)> = BTreeMap::new();
    for candidate in candidates.iter().filter(|candidate| !candidate.traffic.is_empty()) {
        match draft.accept(candidate) {
            Ok(evicted) => refused.extend(evicted),
            Err(why) => _ = refused.insert(candidate.name.clone(), why),
        }
    }
    for candidate in &mut candidates {
        candidate.refused = refused.remove(candidate.name);
    }
    draft.finish(candidates)
}
