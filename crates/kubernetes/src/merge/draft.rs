//! A document that is being made, one object after another.

use std::collections::{BTreeMap, BTreeSet};

use quotagate_quota::config::member_path;
use serde_json::Value;

use super::MergedDocument;
use super::candidate::{Candidate, MAX_ROUTES, Precedence, Replaced};
use super::domain::Domain;
use super::shape::is_label;
use super::targets::Traffic;
use super::written::{self, DocumentIdentities, Placement};
use crate::objects::ObjectName;
use crate::resource::{AncestorRef, DocumentPolicy, DocumentPolicyState, PolicyRule, Reason};

/// The most policies of one namespace in a document.
const MAX_NAMESPACE_POLICIES: usize = 32;
/// The most identities that one namespace adds to a document.
const MAX_NAMESPACE_IDENTITIES: usize = 8;
/// The most bytes that one namespace adds to a document, without the routes of Gateways.
const MAX_NAMESPACE_BYTES: usize = 128 * 1024;
/// The most bytes of a document that can be published.
const MAX_DOCUMENT_BYTES: usize = quotagate_protocol::dials::MAX_DOCUMENT;
/// The bytes of what a default has around the routes that it leaves out.
const EXCEPTION_BYTES: usize = r#""match":{"not":{"routes":[]}},"#.len();
/// The most policies of a document.
const MAX_POLICIES: usize = quotagate_quota::config::MAX_POLICIES;

/// Why an object is not accepted.
type Refusal = (Reason, String);

/// A document that is being made.
pub(super) struct Draft<'a> {
    domain: &'a Domain,
    identities: DocumentIdentities,
    policies: Vec<Drafted<'a>>,
    /// What each namespace has, but the platform.
    shares: BTreeMap<&'a str, Share>,
    bytes: usize,
}

/// What a namespace has of a document.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    policies: usize,
    identities: usize,
    bytes: usize,
}

/// An accepted policy.
struct Drafted<'a> {
    object: &'a ObjectName,
    targets: Vec<AncestorRef>,
    traffic: Traffic,
    precedence: Precedence,
    /// Whether it is in the namespace of a Gateway that the domain lists.
    is_of_platform: bool,
    rule: &'a PolicyRule,
    own: BTreeMap<String, String>,
    placement: Placement,
    /// Of a default: Envoy's routes on which it is replaced.
    replaced: BTreeSet<String>,
    /// The objects that replace it.
    by: BTreeSet<&'a ObjectName>,
}

impl<'a> Drafted<'a> {
    /// Envoy's routes on which `other` replaces this policy.
    fn replaced_by(&self, other: &Drafted<'_>) -> BTreeSet<String> {
        let Precedence::Default(by) = self.precedence else { return BTreeSet::new() };
        let is_of_route = other.targets.iter().all(|target| target.kind != "Gateway");
        let replaces = by == Replaced::ByAny || other.rule.name == self.rule.name;
        if other.precedence != Precedence::Plain || !is_of_route || !replaces {
            return BTreeSet::new();
        }
        let common = other.traffic.iter().flat_map(|(gateway, routes)| {
            let below = self.traffic.get(gateway);
            routes.iter().filter(move |route| below.is_some_and(|below| below.contains(*route)))
        });
        common.cloned().collect()
    }

    /// Whether this override takes its name from `other`, because it has traffic of it. Only the
    /// platform does so in other namespaces: an override caps the traffic in any case.
    fn caps(&self, other: &Drafted<'_>) -> bool {
        self.precedence == Precedence::Override
            && other.precedence == Precedence::Plain
            && self.rule.name == other.rule.name
            && (self.is_of_platform || self.object.namespace == other.object.namespace)
            && other.traffic.iter().any(|(gateway, routes)| {
                let own = self.traffic.get(gateway);
                own.is_some_and(|own| self.placement.routes.is_none() || !own.is_disjoint(routes))
            })
    }
}

impl<'a> Draft<'a> {
    pub(super) fn new(domain: &'a Domain) -> Self {
        Self {
            domain,
            identities: DocumentIdentities::of(&domain.base),
            policies: Vec::new(),
            shares: BTreeMap::new(),
            bytes: Value::Object(domain.base.clone()).to_string().len()
                + r#","identities":{}"#.len(),
        }
    }

    fn own_policies(&self) -> &'a [Value] {
        let own = self.domain.base.get("policies").and_then(Value::as_array);
        own.map(Vec::as_slice).unwrap_or_default()
    }

    /// Takes an object with all its policies, or none of them. Returns the objects that yield to
    /// its overrides.
    pub(super) fn accept(
        &mut self,
        candidate: &Candidate<'a>,
    ) -> Result<Vec<(ObjectName, Refusal)>, Refusal> {
        let invalid = |why: String| (Reason::Invalid, why);
        let routes = routes_of(candidate)?;
        let mut identities = self.identities.clone();
        let used = candidate.used_identities();
        let own = identities.add(&used).map_err(|why| invalid(format!("spec.{why}")))?;
        let (mut drafted, mut faults) = (Vec::new(), Vec::new());
        let (mut written, mut paths, mut names) = (Vec::new(), Vec::new(), BTreeSet::new());
        for (precedence, path, rule) in candidate.rules() {
            if !names.insert(&rule.name) {
                faults.push(format!("{path}.name: an earlier policy has the name {}", rule.name));
            }
            if !is_label(&rule.name, 40) {
                faults
                    .push(format!("{path}.name: has small letters, digits and - only, 40 at most"));
                continue;
            }
            let placement = Placement {
                name: written::document_name(candidate.name, &rule.name),
                routes: routes.clone(),
                ..Placement::default()
            };
            if self.own_policies().iter().any(|own| own["name"] == *placement.name) {
                faults.push(format!("{path}.name: the platform has a policy {}", placement.name));
            }
            match written::policy(rule, &placement, &identities, &own) {
                Ok(policy) => {
                    written.push(policy);
                    paths.push(path);
                }
                Err(why) => faults.push(format!("{path}.{why}")),
            }
            drafted.push(Drafted {
                object: candidate.name,
                targets: candidate.targets.clone(),
                traffic: candidate.traffic.clone(),
                precedence,
                is_of_platform: self.domain.lists(&candidate.name.namespace),
                rule,
                own: own.clone(),
                placement,
                replaced: BTreeSet::new(),
                by: BTreeSet::new(),
            });
        }
        let mut bytes: usize = written.iter().map(|policy| policy.to_string().len() + 1).sum();
        bytes += identities.json().to_string().len() - self.identities.json().to_string().len();
        let mut alone = self.domain.base.clone();
        // With those that no policy uses: they may be wrong as well.
        let mut all = identities.clone();
        let own = all.add(&candidate.spec.identities).unwrap_or(own);
        alone.insert("identities".to_owned(), all.json());
        alone.insert("policies".to_owned(), written.into());
        let found = written::check(&alone);
        faults.extend(
            found
                .iter()
                .map(|fault| format!("{}: {}", path_of(&fault.path, &paths, &own), fault.message)),
        );
        if !faults.is_empty() {
            return Err(invalid(faults.join("; ")));
        }
        self.conflicts(&drafted)?;
        let mut evicted = self.evicted(&drafted);
        let found = self.replacements(&mut drafted, &mut evicted).map_err(invalid)?;
        let new = found.iter().filter_map(|(index, routes)| {
            Some(routes.difference(&self.policies.get(*index)?.replaced))
        });
        let new: usize = new.flatten().map(|name| name.len() + 3).sum();
        let old = drafted.iter().flat_map(|default| &default.replaced);
        let old: usize = old.map(|name| name.len() + 3).sum();
        let is_default = |new: &&Drafted<'_>| matches!(new.precedence, Precedence::Default(_));
        let old = old + EXCEPTION_BYTES * drafted.iter().filter(is_default).count();
        bytes += new;
        self.take_share(candidate, &drafted, &identities, bytes, old).map_err(invalid)?;
        bytes += old;
        for (index, routes) in found {
            if let Some(default) = self.policies.get_mut(index) {
                default.replaced.extend(routes);
                default.by.insert(candidate.name);
            }
        }
        self.bytes += bytes;
        self.identities = identities;
        self.policies.extend(drafted);
        if !evicted.is_empty() {
            self.policies.retain(|policy| evicted.iter().all(|(name, _)| name != policy.object));
            self.replace_again();
        }
        Ok(evicted)
    }

    /// Counts what an object adds toward the bounds of its namespace and of the document. The bytes
    /// of what others replace in its defaults count in the document alone.
    fn take_share(
        &mut self,
        candidate: &Candidate<'a>,
        drafted: &[Drafted<'_>],
        identities: &DocumentIdentities,
        bytes: usize,
        replaced: usize,
    ) -> Result<(), String> {
        let all = self.own_policies().len() + self.policies.len() + drafted.len();
        if all > MAX_POLICIES {
            return Err(format!(
                "the document would have {all} policies, and may have {MAX_POLICIES}: the platform \
                 can give some Gateways a domain of their own"
            ));
        }
        if self.bytes + bytes + replaced > MAX_DOCUMENT_BYTES {
            return Err(format!(
                "the document would be larger than {MAX_DOCUMENT_BYTES} bytes: the platform can \
                 give some Gateways a domain of their own"
            ));
        }
        if candidate.is_of_platform(self.domain) {
            return Ok(());
        }
        // Other teams add routes to a Gateway.
        let is_of_routes = candidate.targets.iter().all(|target| target.kind != "Gateway");
        let of_routes: usize = drafted
            .iter()
            .flat_map(|policy| policy.placement.routes.iter().flatten())
            .filter(|name| candidate.of_others.contains(*name))
            .map(|name| name.len() + 3)
            .sum();
        let bytes = if is_of_routes { bytes } else { bytes.saturating_sub(of_routes) };
        let share = self.shares.entry(&candidate.name.namespace).or_default();
        let new = Share {
            policies: share.policies + drafted.len(),
            identities: share.identities + identities.len() - self.identities.len(),
            bytes: share.bytes + bytes,
        };
        for (count, most, what) in [
            (new.policies, MAX_NAMESPACE_POLICIES, "policies"),
            (new.identities, MAX_NAMESPACE_IDENTITIES, "identities that nobody else has"),
            (new.bytes, MAX_NAMESPACE_BYTES, "bytes"),
        ] {
            if count > most {
                return Err(format!(
                    "namespace {} would have {count} {what} in the document, and may have {most}: \
                     remove some of this object or of an earlier one",
                    candidate.name.namespace
                ));
            }
        }
        *share = new;
        Ok(())
    }

    /// Names that others have already.
    fn conflicts(&self, drafted: &[Drafted<'_>]) -> Result<(), Refusal> {
        for new in drafted {
            for old in self.policies.iter().filter(|old| old.rule.name == new.rule.name) {
                let kind = |precedence| std::mem::discriminant(&precedence);
                let same = kind(old.precedence) == kind(new.precedence)
                    && old.targets.iter().any(|target| new.targets.contains(target));
                if same {
                    let why = format!(
                        "{} has a policy {} on the same target already: choose another name",
                        old.object, new.rule.name
                    );
                    return Err((Reason::Conflicted, why));
                }
                if old.caps(new) {
                    return Err(capped(&new.rule.name, old.object));
                }
            }
        }
        Ok(())
    }

    /// Objects that were accepted, and have the name of one of these overrides.
    fn evicted(&self, drafted: &[Drafted<'_>]) -> Vec<(ObjectName, Refusal)> {
        let mut evicted = BTreeMap::new();
        for new in drafted {
            for old in self.policies.iter().filter(|old| new.caps(old)) {
                evicted.insert(old.object.clone(), capped(&new.rule.name, new.object));
            }
        }
        evicted.into_iter().collect()
    }

    /// The routes on which the policies of an object replace defaults that are accepted, by the
    /// index of the default. Notes in the object's own defaults which routes replace them. Where
    /// these are too many, the objects that came later yield.
    fn replacements(
        &self,
        drafted: &mut [Drafted<'a>],
        evicted: &mut Vec<(ObjectName, Refusal)>,
    ) -> Result<BTreeMap<usize, BTreeSet<String>>, String> {
        let too_many = |name: &str| {
            format!(
                "more than {MAX_ROUTES} routes would replace the default {name}: choose other \
                 names, or remove some routes"
            )
        };
        let mut found: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for (index, default) in self.policies.iter().enumerate() {
            let routes: BTreeSet<String> =
                drafted.iter().flat_map(|policy| default.replaced_by(policy)).collect();
            if routes.is_empty() {
                continue;
            }
            let all = default.replaced.union(&routes).count();
            if default.placement.routes.is_none() && all > MAX_ROUTES {
                return Err(too_many(&default.placement.name));
            }
            found.insert(index, routes);
        }
        for default in drafted.iter_mut() {
            for policy in &self.policies {
                let routes = default.replaced_by(policy);
                let is_evicted = evicted.iter().any(|(name, _)| name == policy.object);
                if routes.is_empty() || is_evicted {
                    continue;
                }
                let all = default.replaced.union(&routes).count();
                if default.placement.routes.is_none() && all > MAX_ROUTES {
                    let why = too_many(&default.placement.name);
                    evicted.push((policy.object.clone(), (Reason::Invalid, why)));
                    continue;
                }
                default.replaced.extend(routes);
                default.by.insert(policy.object);
            }
        }
        Ok(found)
    }

    /// Notes anew which routes replace defaults, after an object has gone.
    fn replace_again(&mut self) {
        let replaced = |default: &Drafted<'a>| {
            let (mut routes, mut by) = (BTreeSet::new(), BTreeSet::new());
            for policy in &self.policies {
                let found = default.replaced_by(policy);
                if !found.is_empty() {
                    by.insert(policy.object);
                }
                routes.extend(found);
            }
            (routes, by)
        };
        let all: Vec<_> = self.policies.iter().map(replaced).collect();
        for (policy, (routes, by)) in self.policies.iter_mut().zip(all) {
            policy.replaced = routes;
            policy.by = by;
        }
    }

    pub(super) fn finish(mut self, mut candidates: Vec<Candidate<'a>>) -> MergedDocument {
        let states: Vec<DocumentPolicy> = self.policies.iter_mut().map(narrow).collect();
        let mut document = self.domain.base.clone();
        let mut written = self.own_policies().to_vec();
        let mut faults = Vec::new();
        for (policy, state) in self.policies.iter().zip(&states) {
            if state.state == DocumentPolicyState::Overridden {
                continue;
            }
            match written::policy(policy.rule, &policy.placement, &self.identities, &policy.own) {
                Ok(policy) => written.push(policy),
                Err(why) => faults.push(format!("{}: {why}", policy.placement.name)),
            }
        }
        document.insert("identities".to_owned(), self.identities.json());
        document.insert("policies".to_owned(), written.into());
        faults.extend(written::check(&document).iter().map(ToString::to_string));
        let document = if faults.is_empty() { Ok(Value::Object(document)) } else { Err(faults) };
        for (policy, state) in self.policies.iter().zip(states) {
            if let Some(of) = candidates.iter_mut().find(|of| of.name == policy.object) {
                of.policies.push(state);
            }
        }
        let domain = self.domain.name();
        let outcomes = candidates
            .into_iter()
            .map(|candidate| candidate.outcome(domain, document.is_ok()))
            .collect();
        MergedDocument { document, outcomes }
    }
}

/// The routes that the policies of an object name. `None`: they apply to all traffic of the domain.
fn routes_of(candidate: &Candidate<'_>) -> Result<Option<Vec<String>>, Refusal> {
    if candidate.is_of_all {
        return Ok(None);
    }
    let routes: Vec<String> = candidate.routes().into_iter().cloned().collect();
    if routes.is_empty() {
        let why = "no route is attached to the target, so it has no traffic yet".to_owned();
        return Err((Reason::TargetNotFound, why));
    }
    if routes.len() > MAX_ROUTES {
        let why = format!(
            "the target has {} routes in Envoy, and a policy names {MAX_ROUTES} at most: write a \
             QuotaPolicy for each part of the routes",
            routes.len()
        );
        return Err((Reason::Invalid, why));
    }
    Ok(Some(routes))
}

fn capped(name: &str, by: &ObjectName) -> Refusal {
    let why = format!(
        "{name} is the name of an override of {by}, which nobody replaces: choose another name"
    );
    (Reason::Conflicted, why)
}

/// Leaves out the routes on which a default is replaced.
fn narrow(policy: &mut Drafted<'_>) -> DocumentPolicy {
    let replaced = std::mem::take(&mut policy.replaced);
    let by = (!policy.by.is_empty())
        .then(|| policy.by.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    let state = match &mut policy.placement.routes {
        _ if replaced.is_empty() => DocumentPolicyState::Programmed,
        None => {
            policy.placement.not_routes = replaced.into_iter().collect();
            DocumentPolicyState::PartiallyOverridden
        }
        Some(routes) => {
            routes.retain(|route| !replaced.contains(route));
            if routes.is_empty() {
                DocumentPolicyState::Overridden
            } else {
                DocumentPolicyState::PartiallyOverridden
            }
        }
    };
    DocumentPolicy { document_name: policy.placement.name.clone(), state, by }
}

/// The path in the object for one in a document with its policies alone.
fn path_of(path: &str, paths: &[String], own: &BTreeMap<String, String>) -> String {
    let inner = path.strip_prefix("policies[").and_then(|rest| rest.split_once(']'));
    if let Some((index, inner)) = inner
        && let Some(outer) = index.parse().ok().and_then(|index: usize| paths.get(index))
    {
        return format!("{outer}{}", written::path_in_object(inner));
    }
    for (name, in_document) in own {
        // A name with a dot or a space is in brackets.
        let found = member_path("identities", in_document);
        if let Some(inner) = path.strip_prefix(&found)
            && (inner.is_empty() || inner.starts_with(['.', '[']))
        {
            let name = member_path("spec.identities", name);
            return format!("{name}{}", written::path_in_object(inner));
        }
    }
    format!("spec.{path}")
}
