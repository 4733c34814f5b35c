//! An object that concerns a domain, with the traffic that it reaches there.

use std::collections::{BTreeMap, BTreeSet};

use super::domain::Domain;
use super::shape::shape;
use super::targets::{self, AttachedRoute, Scene, Target, Traffic};
use crate::objects::ObjectName;
use crate::resource::{
    AncestorRef, DefaultStrategy, DocumentPolicy, IdentitySources, PolicyRule, QuotaPolicy,
    QuotaPolicySpec, Reason,
};

/// The most names of Envoy's routes in one condition.
pub(super) const MAX_ROUTES: usize = 1024;
/// The most bytes of them in all policies of an object on Gateways.
const MAX_ROUTE_BYTES: usize = 64 * 1024;

/// An object that concerns a domain.
pub(super) struct Candidate<'a> {
    pub(super) name: &'a ObjectName,
    pub(super) object: &'a QuotaPolicy,
    pub(super) spec: &'a QuotaPolicySpec,
    /// All traffic of its targets, by Gateway.
    pub(super) traffic: Traffic,
    /// Its targets, for conflicts.
    pub(super) targets: Vec<AncestorRef>,
    /// Whether it applies to all traffic of the domain: that of its one Gateway.
    pub(super) is_of_all: bool,
    /// What is not counted, or counts beside the traffic, and why.
    pub(super) notes: Vec<String>,
    /// Routes of Gateways that are not counted, and why.
    pub(super) left_out: Vec<String>,
    /// Names of routes of Gateways that are in other namespaces.
    pub(super) of_others: BTreeSet<String>,
    /// Targets without traffic.
    pub(super) nothing: Vec<(AncestorRef, Reason, String)>,
    pub(super) refused: Option<(Reason, String)>,
    pub(super) policies: Vec<DocumentPolicy>,
}

/// Whether a policy yields to those of routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precedence {
    Plain,
    Default(Replaced),
    Override,
}

/// What replaces a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Replaced {
    ByName,
    ByAny,
}

impl<'a> Candidate<'a> {
    /// `None` if it concerns other domains alone.
    pub(super) fn of(
        name: &'a ObjectName,
        object: &'a QuotaPolicy,
        scene: Scene<'_>,
    ) -> Option<Self> {
        let spec = &object.spec;
        let mut candidate = Self {
            name,
            object,
            spec,
            traffic: Traffic::new(),
            targets: Vec::new(),
            is_of_all: false,
            notes: Vec::new(),
            left_out: Vec::new(),
            of_others: BTreeSet::new(),
            nothing: Vec::new(),
            refused: None,
            policies: Vec::new(),
        };
        if let Err(why) = shape(name, spec) {
            let at = spec.target_refs.first().cloned().unwrap_or_default();
            let at = targets::ancestor(&at, &name.namespace);
            candidate.nothing.push((at, Reason::Invalid, why));
            return Some(candidate);
        }
        let mut attached = Vec::new();
        for target in &spec.target_refs {
            let at = targets::ancestor(target, &name.namespace);
            match targets::find(target, &name.namespace, scene) {
                Target::Elsewhere => continue,
                Target::Nothing(reason, why) => {
                    candidate.nothing.push((at, reason, why));
                    continue;
                }
                Target::Gateway(found) => {
                    candidate.is_of_all |= !found.is_listener && scene.has_one_gateway();
                    candidate.notes.extend(found.notes);
                    candidate.left_out.extend(found.left_out);
                    candidate.traffic.entry(found.gateway.clone()).or_default();
                    let routes = found.routes.into_iter();
                    attached.extend(routes.map(|route| (route, found.gateway.clone())));
                }
                Target::Routes(traffic, notes) => {
                    candidate.notes.extend(notes);
                    for (gateway, routes) in traffic {
                        candidate.traffic.entry(gateway).or_default().extend(routes);
                    }
                }
            }
            candidate.targets.push(at);
        }
        candidate.attach(attached);
        (!candidate.targets.is_empty() || !candidate.nothing.is_empty()).then_some(candidate)
    }

    /// Whether the platform wrote it: defaults or overrides, in the namespace of a Gateway that the
    /// domain lists.
    pub(super) fn is_of_platform(&self, domain: &Domain) -> bool {
        self.spec.policies.is_none() && domain.lists(&self.name.namespace)
    }

    /// Adds the routes of Gateways. The policies of an object can name so many and no more. Each
    /// namespace has an equal share of the names, and what is left goes to the older routes. So no
    /// team can push out the routes of another one, or make the policy of a Gateway fail.
    fn attach(&mut self, mut attached: Vec<(AttachedRoute, ObjectName)>) {
        if self.is_of_all {
            // It names no route. What cannot be named is counted as well.
            self.notes.clear();
            self.left_out.clear();
        }
        attached.sort();
        let most = MAX_ROUTE_BYTES / self.rules().count().max(1);
        let namespaces: BTreeSet<String> =
            attached.iter().map(|(route, _)| route.namespace.clone()).collect();
        let count = namespaces.len().max(1);
        // Names and their bytes, of each namespace and of all.
        let (mut shares, mut all) = (BTreeMap::<String, (usize, usize)>::new(), (0, 0));
        let mut taken = BTreeSet::new();
        for is_share in [true, false] {
            for (route, _) in &attached {
                for name in &route.names {
                    let share = shares.entry(route.namespace.clone()).or_default();
                    let bytes = name.len() + 3;
                    let is_full = if is_share {
                        share.0 + 1 > MAX_ROUTES / count || share.1 + bytes > most / count
                    } else {
                        all.0 + 1 > MAX_ROUTES || all.1 + bytes > most
                    };
                    if taken.contains(name) || (is_full && !self.is_of_all) {
                        continue;
                    }
                    taken.insert(name.clone());
                    *share = (share.0 + 1, share.1 + bytes);
                    all = (all.0 + 1, all.1 + bytes);
                }
            }
        }
        for (route, gateway) in attached {
            let missing = route.names.difference(&taken).count();
            if missing > 0 {
                self.left_out.push(format!(
                    "{} is not counted: {missing} of its {} names in Envoy have no room, as the \
                     policies of an object may name {MAX_ROUTES} in {MAX_ROUTE_BYTES} bytes. Give \
                     the Gateway a domain of its own, where its policies name no routes",
                    route.label,
                    route.names.len()
                ));
            }
            let names = route.names.intersection(&taken).cloned();
            if route.namespace != self.name.namespace {
                self.of_others.extend(names.clone());
            }
            self.traffic.entry(gateway).or_default().extend(names);
        }
        self.notes.splice(0..0, self.left_out.iter().cloned());
    }

    pub(super) fn rules(
        &self,
    ) -> impl Iterator<Item = (Precedence, String, &'a PolicyRule)> + use<'a> {
        let spec = self.spec;
        let replaced = match spec.defaults.as_ref().map(|defaults| defaults.strategy) {
            Some(DefaultStrategy::Atomic) => Replaced::ByAny,
            _ => Replaced::ByName,
        };
        let lists = [
            (Precedence::Plain, "policies", spec.policies.as_ref()),
            (
                Precedence::Default(replaced),
                "defaults.policies",
                spec.defaults.as_ref().map(|defaults| &defaults.policies),
            ),
            (
                Precedence::Override,
                "overrides.policies",
                spec.overrides.as_ref().map(|overrides| &overrides.policies),
            ),
        ];
        lists.into_iter().flat_map(|(precedence, list, rules)| {
            let rules = rules.map(|rules| rules.0.as_slice()).unwrap_or_default();
            let at = move |index: usize| format!("spec.{list}[{index}]");
            rules.iter().enumerate().map(move |(index, rule)| (precedence, at(index), rule))
        })
    }

    /// The identities that its policies name.
    pub(super) fn used_identities(&self) -> BTreeMap<String, IdentitySources> {
        let names: BTreeSet<&String> =
            self.rules().flat_map(|(_, _, rule)| &rule.partition_by).collect();
        let own = self.spec.identities.iter().filter(|(name, _)| names.contains(name));
        own.map(|(name, sources)| (name.clone(), sources.clone())).collect()
    }

    pub(super) fn routes(&self) -> BTreeSet<&String> {
        self.traffic.values().flatten().collect()
    }
}
