//! The domains of the platform: a document each, and the Gateways whose traffic it counts.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::written::check;
use crate::objects::{ObjectName, Objects};

/// A domain: what its document says before the policies of objects, and its Gateways.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The document of the platform.
    pub(crate) base: Map<String, Value>,
    gateways: GatewayChoice,
}

/// The Gateways of a domain.
#[derive(Clone, Debug)]
enum GatewayChoice {
    Named(BTreeSet<ObjectName>),
    /// All that no domain names.
    Others(BTreeSet<ObjectName>),
}

/// All domains. No two of them share a Gateway.
#[derive(Clone, Debug)]
pub struct Domains(Vec<Domain>);

impl Domains {
    /// One domain of this name for all Gateways, whose store is the cluster `quota_store`.
    ///
    /// # Errors
    /// What is wrong with the name.
    pub fn one(domain: &str) -> Result<Self, Vec<String>> {
        Self::read(&json!({"domains": [{"domain": domain, "store": {"cluster": "quota_store"}}]}))
    }

    /// Reads `domains`: a list of policy documents. Each may have `gateways`, a list of
    /// `NAMESPACE/NAME`. One document at most has none: it counts the traffic of all Gateways that
    /// no other names. `policies` may be left out.
    ///
    /// # Errors
    /// All faults with their paths.
    pub fn read(config: &Value) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        for name in config.as_object().into_iter().flat_map(Map::keys) {
            if name != "domains" {
                faults.push(format!("{name}: unknown field: write a list `domains`"));
            }
        }
        let Some(list) = config["domains"].as_array().filter(|list| !list.is_empty()) else {
            faults.push("domains: write a list of policy documents with `gateways`".to_owned());
            return Err(faults);
        };
        let (mut domains, mut named) = (Vec::new(), BTreeSet::new());
        for (index, document) in list.iter().enumerate() {
            let at = format!("domains[{index}]");
            let Some(mut base) = document.as_object().cloned() else {
                faults.push(format!("{at}: must be a policy document"));
                continue;
            };
            let gateways = base.remove("gateways");
            base.entry("policies").or_insert_with(|| json!([]));
            faults.extend(check(&base).into_iter().map(|fault| format!("{at}.{fault}")));
            let gateways = match gateways {
                None => GatewayChoice::Others(BTreeSet::new()),
                Some(gateways) => match names(&gateways) {
                    Some(own) => {
                        let twice = own.iter().filter(|name| !named.insert((*name).clone()));
                        faults.extend(twice.map(|name| {
                            format!("{at}.gateways: another domain has {name} already")
                        }));
                        GatewayChoice::Named(own)
                    }
                    None => {
                        faults.push(format!("{at}.gateways: must be a list of NAMESPACE/NAME"));
                        continue;
                    }
                },
            };
            domains.push(Domain { base, gateways });
        }
        let mut known = BTreeSet::new();
        for domain in &domains {
            if !known.insert(domain.name()) {
                faults.push(format!("domains: {} is given twice", domain.name()));
            }
        }
        let others = |domain: &&Domain| matches!(domain.gateways, GatewayChoice::Others(_));
        if domains.iter().filter(others).count() > 1 {
            faults.push("domains: only one of them may leave out `gateways`".to_owned());
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        for domain in &mut domains {
            if let GatewayChoice::Others(others) = &mut domain.gateways {
                others.clone_from(&named);
            }
        }
        Ok(Self(domains))
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Domain> {
        self.0.iter()
    }
}

impl Domain {
    /// Its name.
    pub fn name(&self) -> &str {
        self.base.get("domain").and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether it lists a Gateway of this namespace by its name.
    pub(crate) fn lists(&self, namespace: &str) -> bool {
        match &self.gateways {
            GatewayChoice::Named(own) => own.iter().any(|name| name.namespace == namespace),
            GatewayChoice::Others(_) => false,
        }
    }

    /// The Gateways that it should have and that are not among the objects, in a sentence: a wrong
    /// name, or objects that are not complete.
    pub fn lacks(&self, objects: &Objects) -> Option<String> {
        let domain = self.name();
        match &self.gateways {
            GatewayChoice::Named(own) => {
                let missing = own.iter().filter(|name| !objects.gateways.contains_key(*name));
                let missing: Vec<String> = missing.map(ToString::to_string).collect();
                (!missing.is_empty()).then(|| {
                    let missing = missing.join(", ");
                    format!("there is no Gateway {missing}, which domain {domain} lists")
                })
            }
            GatewayChoice::Others(_) => (!objects.gateways.keys().any(|name| self.has(name)))
                .then(|| format!("there is no Gateway for domain {domain}")),
        }
    }

    /// Whether its document counts the traffic of this Gateway.
    pub(crate) fn has(&self, gateway: &ObjectName) -> bool {
        match &self.gateways {
            GatewayChoice::Named(own) => own.contains(gateway),
            GatewayChoice::Others(of_others) => !of_others.contains(gateway),
        }
    }
}

fn names(gateways: &Value) -> Option<BTreeSet<ObjectName>> {
    let names = gateways.as_array()?.iter();
    names.map(|name| ObjectName::parse(name.as_str()?)).collect()
}
