//! Which traffic a target is: the Gateways of a domain that it reaches, and what Envoy calls its
//! routes there.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;

use super::domain::Domain;
use crate::objects::{
    Listener, ObjectName, Objects, ParentRef, Route, RouteKind, RouteParent, RouteRule,
};
use crate::resource::TargetRef;
use crate::resource::{AncestorRef, Reason};

/// The label that names the waypoint of a Service or a Namespace.
const WAYPOINT: &str = "istio.io/use-waypoint";
/// The label that names the namespace of that waypoint.
const WAYPOINT_NAMESPACE: &str = "istio.io/use-waypoint-namespace";

/// The traffic of a target, by Gateway of the domain.
pub(crate) type Traffic = BTreeMap<ObjectName, BTreeSet<String>>;

/// What a target is in a domain.
#[derive(Debug)]
pub(crate) enum Target {
    /// The traffic of a Gateway, or of a listener.
    Gateway(GatewayTraffic),
    /// These of Envoy's routes, and notes on what is not counted or counts beside them.
    Routes(Traffic, Vec<String>),
    /// Traffic of other domains.
    Elsewhere,
    /// No traffic, and why.
    Nothing(Reason, String),
}

/// The traffic of a Gateway, or of a listener.
#[derive(Debug)]
pub(crate) struct GatewayTraffic {
    pub(crate) gateway: ObjectName,
    /// Whether it is one listener.
    pub(crate) is_listener: bool,
    pub(crate) routes: Vec<AttachedRoute>,
    /// What is not counted, and why.
    pub(crate) left_out: Vec<String>,
    /// What counts beside it.
    pub(crate) notes: Vec<String>,
}

/// A route of a Gateway. Older ones come first, then those of the first name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttachedRoute {
    pub(crate) created: Option<Timestamp>,
    /// Its kind and name.
    pub(crate) label: String,
    pub(crate) namespace: String,
    /// What Envoy calls it.
    pub(crate) names: BTreeSet<String>,
}

/// Rules that have a name, by that name: under Istio it is what Envoy calls their routes.
pub(crate) type NamedRules = BTreeMap<String, String>;

/// All of them.
pub(crate) fn named_rules(objects: &Objects) -> NamedRules {
    let mut named = NamedRules::new();
    for ((kind, name), route) in &objects.routes {
        for rule in route.spec.rules.iter().filter_map(|rule| rule.name.clone()) {
            named.entry(rule).or_insert_with(|| format!("{} {name}", kind.name()));
        }
    }
    named
}

/// Who generates the names of Envoy's routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ControlPlane {
    EnvoyGateway,
    Istio,
}

/// What a target is.
pub(crate) fn find(target: &TargetRef, namespace: &str, scene: Scene<'_>) -> Target {
    let name = ObjectName::new(namespace, &target.name);
    let section = target.section_name.as_deref();
    let found = match (target.kind.as_str(), RouteKind::of(&target.kind)) {
        ("Gateway", _) => scene.gateway(&name, section),
        ("Service", _) => scene.service(&name),
        (_, Some(kind)) => scene.route(kind, &name, section),
        (kind, None) => Err((Reason::Invalid, format!("{kind} is no target"))),
    };
    match found {
        Ok(target) => target,
        Err((reason, why)) => Target::Nothing(reason, why),
    }
}

/// A target as an ancestor in a status.
pub(crate) fn ancestor(target: &TargetRef, namespace: &str) -> AncestorRef {
    AncestorRef {
        group: target.group.clone(),
        kind: target.kind.clone(),
        namespace: namespace.to_owned(),
        name: target.name.clone(),
        section_name: target.section_name.clone(),
    }
}

type Found = Result<Target, (Reason, String)>;

fn missing(why: String) -> (Reason, String) {
    (Reason::TargetNotFound, why)
}

/// The objects that a domain is about.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) domain: &'a Domain,
    pub(crate) named: &'a NamedRules,
}

impl Scene<'_> {
    /// Whether all traffic of the domain is that of one Gateway. Then a policy of the Gateway need
    /// not name its routes, and also counts requests that no route takes.
    pub(crate) fn has_one_gateway(self) -> bool {
        self.objects.gateways.keys().filter(|name| self.domain.has(name)).count() == 1
    }

    fn gateway(self, name: &ObjectName, section: Option<&str>) -> Found {
        let Some(gateway) = self.objects.gateways.get(name) else {
            return Err(missing(format!("there is no Gateway {name}")));
        };
        if !self.domain.has(name) {
            return Ok(Target::Elsewhere);
        }
        if let Some(section) = section
            && !gateway.listeners.iter().any(|listener| listener.name == section)
        {
            let listeners: Vec<&str> =
                gateway.listeners.iter().map(|listener| listener.name.as_str()).collect();
            return Err(missing(format!(
                "Gateway {name} has no listener {section}. It has {}",
                listeners.join(", ")
            )));
        }
        let (mut routes, mut left_out, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for ((kind, route_name), route) in &self.objects.routes {
            let label = format!("{} {route_name}", kind.name());
            let mut names = BTreeSet::new();
            for parent in self.parents(route_name, route).filter(|parent| parent.of == *name) {
                let choice = RuleChoice { listener: section, rule: None };
                match self.names(*kind, route_name, route, &parent, choice) {
                    Ok(found) => {
                        let why = found.left_out.iter();
                        left_out.extend(why.map(|why| format!("{label} is not counted: {why}")));
                        notes.extend(found.doubles);
                        names.extend(found.names);
                    }
                    Err(why) => left_out.push(format!("{label} is not counted: {why}")),
                }
            }
            if !names.is_empty() {
                let (created, namespace) = (route.created(), route_name.namespace.clone());
                routes.push(AttachedRoute { created, label, namespace, names });
            }
        }
        let gateway = name.clone();
        let is_listener = section.is_some();
        Ok(Target::Gateway(GatewayTraffic { gateway, is_listener, routes, left_out, notes }))
    }

    fn route(self, kind: RouteKind, name: &ObjectName, section: Option<&str>) -> Found {
        let word = kind.name();
        let Some(route) = self.objects.routes.get(&(kind, name.clone())) else {
            return Err(missing(format!("there is no {word} {name}")));
        };
        if let Some(section) = section
            && !route.spec.rules.iter().any(|rule| rule.name.as_deref() == Some(section))
        {
            return Err(missing(format!("{word} {name} has no rule of the name {section}")));
        }
        if !route.status.parents.iter().any(RouteParent::is_accepted) {
            return Err(missing(format!(
                "no Gateway has accepted {word} {name}: look at its status.parents"
            )));
        }
        let (mut traffic, mut is_elsewhere) = (Traffic::new(), false);
        let (mut notes, mut faults) = (Vec::new(), Vec::new());
        for parent in self.parents(name, route) {
            if !self.domain.has(&parent.of) {
                is_elsewhere = true;
                continue;
            }
            let choice = RuleChoice { rule: section, ..RuleChoice::default() };
            match self.names(kind, name, route, &parent, choice) {
                // The team can mend its own route, and a part of it would surprise.
                Ok(RouteNames { left_out, .. }) if !left_out.is_empty() => {
                    let why = format!("{word} {name}: {}", left_out.join("; "));
                    return Err((Reason::Invalid, why));
                }
                Ok(found) => {
                    notes.extend(found.doubles);
                    traffic.entry(parent.of).or_default().extend(found.names);
                }
                Err(why) => faults.push(format!("{word} {name}: {why}")),
            }
        }
        traffic.retain(|_, names| !names.is_empty());
        match (traffic.is_empty(), is_elsewhere) {
            (false, _) => {
                notes.extend(faults);
                Ok(Target::Routes(traffic, notes))
            }
            (true, _) if !faults.is_empty() => Err((Reason::Invalid, faults.join("; "))),
            (true, true) => Ok(Target::Elsewhere),
            (true, false) => Err(missing(format!(
                "{word} {name} reaches no Gateway that is known: its parents are no Gateways, or \
                 Services without a waypoint"
            ))),
        }
    }

    /// A waypoint calls the routes of all Services without routes of their own alike, and any
    /// client can write any host. So only the routes of a Service tell its traffic apart.
    fn service(self, name: &ObjectName) -> Found {
        if !self.objects.services.contains_key(name) {
            return Err(missing(format!("there is no Service {name}")));
        }
        let Some(waypoint) = self.waypoint(name) else {
            return Err(missing(format!(
                "Service {name} uses no waypoint that allows it: label it, or its namespace, with \
                 {WAYPOINT}, and let a listener of that Gateway allow the namespace \
                 {}",
                name.namespace
            )));
        };
        if !self.objects.gateways.contains_key(&waypoint) {
            return Err(missing(format!("there is no Gateway {waypoint}, the waypoint of {name}")));
        }
        if !self.domain.has(&waypoint) {
            return Ok(Target::Elsewhere);
        }
        let (mut routes, mut notes) = (BTreeSet::new(), Vec::new());
        for ((kind, route_name), route) in &self.objects.routes {
            let label = format!("{} {route_name}", kind.name());
            let own = self
                .parents(route_name, route)
                .filter(|parent| parent.service.as_ref() == Some(name));
            // Teams that call the Service may attach routes, too: what they do is a note.
            for parent in own {
                if route_name.namespace != name.namespace {
                    notes.push(format!(
                        "{label} is not counted: only routes of the Service's own namespace are"
                    ));
                    continue;
                }
                // Envoy calls its routes alike at all parents.
                let is_other = |other: &Parent| other.service.as_ref() != Some(name);
                let mut others = self.parents(route_name, route).filter(is_other);
                if let Some(other) = others.find(|other| self.domain.has(&other.of)) {
                    notes.push(format!(
                        "{label} is not counted: it has another parent, at Gateway {}, and its \
                         traffic there would count as well. Write a route for the Service alone",
                        other.of
                    ));
                    continue;
                }
                match self.names(*kind, route_name, route, &parent, RuleChoice::default()) {
                    Ok(found) => {
                        let left_out = found.left_out.iter();
                        notes.extend(left_out.map(|why| format!("{label} is not counted: {why}")));
                        notes.extend(found.doubles);
                        routes.extend(found.names);
                    }
                    Err(why) => notes.push(format!("{label} is not counted: {why}")),
                }
            }
        }
        if routes.is_empty()
            && let [first, ..] = notes.as_slice()
        {
            return Err((Reason::Invalid, first.clone()));
        }
        if routes.is_empty() {
            return Err(missing(format!(
                "no route is attached to Service {name}, and without one a waypoint does not tell \
                 its traffic from that of other Services: add an HTTPRoute whose parent is the \
                 Service"
            )));
        }
        Ok(Target::Routes(BTreeMap::from([(waypoint, routes)]), notes))
    }

    fn waypoint(self, service: &ObjectName) -> Option<ObjectName> {
        let own = self.objects.services.get(service)?;
        let of_namespace = self.objects.namespaces.get(&service.namespace);
        let labels = [Some(own), of_namespace].into_iter().flatten();
        let labels = labels.into_iter().find(|labels| labels.contains_key(WAYPOINT))?;
        let name = labels.get(WAYPOINT).filter(|name| *name != "none")?;
        let namespace = labels.get(WAYPOINT_NAMESPACE).unwrap_or(&service.namespace);
        let waypoint = ObjectName::new(namespace, name);
        // A label alone lets nobody in.
        let labels = of_namespace.cloned().unwrap_or_default();
        let allows = |listener: &Listener| {
            let allowed = &listener.allowed_routes.namespaces;
            allowed.allow(&waypoint.namespace, &service.namespace, Some(&labels))
        };
        let is_allowed = match self.objects.gateways.get(&waypoint) {
            Some(gateway) => gateway.listeners.iter().any(allows),
            None => true,
        };
        is_allowed.then_some(waypoint)
    }

    /// The Gateways that have accepted a route.
    fn parents(self, name: &ObjectName, route: &Route) -> impl Iterator<Item = Parent> {
        let accepted = route.status.parents.iter().filter(|parent| parent.is_accepted());
        accepted.filter_map(move |RouteParent { parent_ref, controller_name, .. }| {
            let ParentRef { kind, namespace, name: parent, section_name, port } = parent_ref;
            let parent = ObjectName::new(namespace.as_deref().unwrap_or(&name.namespace), parent);
            let (of, service) = match kind.as_deref() {
                None | Some("Gateway") => (parent, None),
                Some("Service") => (self.waypoint(&parent)?, Some(parent)),
                Some(_) => return None,
            };
            self.objects.gateways.get(&of)?;
            let controller = controller_name.clone();
            let section = section_name.clone();
            Some(Parent { of, service, section, port: *port, controller })
        })
    }

    /// What Envoy calls the routes that the control plane makes of a route for one of its parents.
    fn names(
        self,
        kind: RouteKind,
        name: &ObjectName,
        route: &Route,
        parent: &Parent,
        choice: RuleChoice<'_>,
    ) -> Result<RouteNames, String> {
        let RuleChoice { listener, rule } = choice;
        let control_plane = parent.control_plane()?;
        let listeners = self.objects.gateways.get(&parent.of).map(|gateway| &gateway.listeners);
        let of_parent = |found: &&Listener| {
            [listener, parent.section.as_deref()]
                .into_iter()
                .flatten()
                .all(|name| name == found.name)
                && (parent.port.is_none() || parent.port == found.port)
        };
        let labels = self.objects.namespaces.get(&name.namespace);
        let allows = |found: &&Listener| {
            found.allowed_routes.allow(&parent.of.namespace, kind, &name.namespace, labels)
        };
        let listeners: Vec<&Listener> =
            listeners.into_iter().flatten().filter(of_parent).filter(allows).collect();
        let mut hosts = BTreeSet::new();
        for listener in &listeners {
            hosts.extend(common_hosts(&route.spec.hostnames, listener.hostname.as_deref()));
        }
        if parent.service.is_none() && hosts.is_empty() {
            return Ok(RouteNames::default());
        }
        // The API server fills in a rule.
        let implied = [RouteRule::default()];
        let rules = if route.spec.rules.is_empty() { &implied[..] } else { &route.spec.rules };
        let RouteNames { mut names, mut left_out, mut doubles } = RouteNames::default();
        for (index, found) in rules.iter().enumerate() {
            if rule.is_some() && found.name.as_deref() != rule {
                continue;
            }
            match control_plane {
                ControlPlane::Istio => {
                    // By its name alone, it could be taken for a route of another team.
                    if let Some(own) = &found.name {
                        left_out.push(format!(
                            "rules[{index}] has the name {own}, by which alone Istio calls its \
                             route, and rules of others may have it, too. Remove the name (to \
                             count one rule, make it an HTTPRoute of its own)"
                        ));
                        continue;
                    }
                    let generated = format!("{}.{}.{index}", name.namespace, name.name);
                    if let Some(other) = self.named.get(&generated) {
                        doubles.push(format!(
                            "{other} has a rule of the name {generated}, which Istio gives a rule \
                             of {name}: its traffic counts here, too. Rename that rule"
                        ));
                    }
                    names.insert(generated);
                }
                ControlPlane::EnvoyGateway => {
                    let kind = match kind {
                        RouteKind::Http => "httproute",
                        RouteKind::Grpc => "grpcroute",
                    };
                    // -1 stands for a rule without matches. The API server gives one to an
                    // HTTPRoute, so both are possible names.
                    let count = i64::try_from(found.matches.len()).unwrap_or(i64::MAX);
                    let matches = if count == 0 { -1..1 } else { 0..count };
                    for (host, number) in hosts
                        .iter()
                        .flat_map(|host| matches.clone().map(move |number| (host, number)))
                    {
                        let host = host.replace('.', "_");
                        names.insert(format!("{kind}/{name}/rule/{index}/match/{number}/{host}"));
                    }
                }
            }
        }
        Ok(RouteNames { names, left_out, doubles })
    }
}

/// What Envoy calls a route.
#[derive(Debug, Default)]
struct RouteNames {
    names: BTreeSet<String>,
    /// Rules that cannot be named, and why.
    left_out: Vec<String>,
    /// Rules of others that have one of these names.
    doubles: Vec<String>,
}

/// Which rules of a route are meant, on which listeners.
#[derive(Clone, Copy, Debug, Default)]
struct RuleChoice<'a> {
    /// All listeners, or this one.
    listener: Option<&'a str>,
    /// All rules, or those of this name.
    rule: Option<&'a str>,
}

/// A Gateway that has accepted a route.
#[derive(Debug)]
struct Parent {
    of: ObjectName,
    /// The parent itself, if it is a Service: then the Gateway is its waypoint.
    service: Option<ObjectName>,
    section: Option<String>,
    /// Of a Gateway, the port of its listeners.
    port: Option<u16>,
    controller: String,
}

impl Parent {
    fn control_plane(&self) -> Result<ControlPlane, String> {
        let of = |owner: &str| self.controller.starts_with(&format!("{owner}/"));
        if of("istio.io") {
            Ok(ControlPlane::Istio)
        } else if of("gateway.envoyproxy.io") {
            Ok(ControlPlane::EnvoyGateway)
        } else {
            Err(format!(
                "its controller is {:?}: only of Istio and Envoy Gateway it is known what Envoy \
                 calls their routes",
                self.controller
            ))
        }
    }
}

/// The hosts of a route on a listener, as Envoy Gateway finds them.
fn common_hosts(of_route: &[String], listener: Option<&str>) -> Vec<String> {
    let listener = listener.filter(|host| !host.is_empty());
    let Some(listener) = listener else {
        return if of_route.is_empty() { vec!["*".to_owned()] } else { of_route.to_vec() };
    };
    if of_route.is_empty() {
        return vec![listener.to_owned()];
    }
    let within = |host: &str, pattern: &str| {
        host == pattern
            || pattern
                .strip_prefix('*')
                .is_some_and(|end| host.strip_suffix(end).is_some_and(|begin| !begin.is_empty()))
    };
    let common = |host: &String| match () {
        () if within(host, listener) => Some(host.clone()),
        () if within(listener, host) => Some(listener.to_owned()),
        () => None,
    };
    of_route.iter().filter_map(common).collect()
}
