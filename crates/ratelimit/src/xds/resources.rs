//! Makes rules of the resources that an xDS server sends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prost::Message;
use prost_types::Any;

use super::messages::{RULES, XdsDescriptor, XdsLimit, XdsRules};
use crate::files::RulesByDomain;
use crate::json::members;
use crate::messages::Unit;
use crate::rules::{DescriptorRule, DomainRules, RateLimitRule, RuleFault, SharedDomains, compile};

/// What is wrong with a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceFault {
    /// The resource.
    pub resource: String,
    /// The field and the remedy.
    pub fault: RuleFault,
}

impl fmt::Display for ResourceFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.resource, self.fault)
    }
}

/// The rules of all domains, from all resources that there are.
///
/// # Errors
/// All faults of all resources. Then no rule is taken.
pub fn read_resources(
    resources: &[Any],
    shared: SharedDomains,
) -> Result<RulesByDomain, Vec<ResourceFault>> {
    let mut faults = Vec::new();
    let mut by_domain: BTreeMap<String, Vec<(String, DomainRules)>> = BTreeMap::new();
    for (index, any) in resources.iter().enumerate() {
        let mut fault = |resource: &str, path: &str, text: String| {
            let fault = RuleFault { path: path.to_owned(), text };
            faults.push(ResourceFault { resource: resource.to_owned(), fault });
        };
        let unnamed = format!("resources[{index}]");
        if any.type_url != RULES {
            fault(&unnamed, "type_url", format!("{:?} must be {RULES}", any.type_url));
            continue;
        }
        let rules = match XdsRules::decode(&*any.value) {
            Ok(rules) => rules,
            Err(error) => {
                fault(&unnamed, "value", format!("must be a RateLimitConfig: {error}"));
                continue;
            }
        };
        let resource = if rules.name.is_empty() { unnamed } else { rules.name };
        units(&rules.descriptors, "descriptors", &mut |path, unit| {
            let text = format!("{unit} is no unit: use a number from 1 (SECOND) to 7 (WEEK)");
            fault(&resource, path, text);
        });
        let of_domain = by_domain.entry(rules.domain.clone()).or_default();
        if let (Some((first, _)), SharedDomains::Refuse) = (of_domain.first(), shared) {
            let text = format!(
                "{:?} is also the domain of {first}: give it another name, or set \
                 MERGE_DOMAIN_CONFIG=true to merge the two",
                rules.domain
            );
            fault(&resource, "domain", text);
        }
        let descriptors = rules.descriptors.into_iter().map(descriptor).collect();
        of_domain.push((resource, DomainRules { domain: rules.domain, descriptors }));
    }
    let mut domains = RulesByDomain::new();
    for resources in by_domain.values() {
        let trees: Vec<&DomainRules> = resources.iter().map(|(_, tree)| tree).collect();
        match compile(&trees) {
            Ok(domain) => {
                domains.insert(Arc::clone(domain.name()), Arc::new(domain));
            }
            Err(found) => {
                for ((resource, _), of_tree) in resources.iter().zip(found) {
                    let fault = |fault| ResourceFault { resource: resource.clone(), fault };
                    faults.extend(of_tree.all().map(fault));
                }
            }
        }
    }
    // A number that is no unit is not also missing.
    faults.sort_by(|a, b| (&a.resource, &a.fault.path).cmp(&(&b.resource, &b.fault.path)));
    faults.dedup_by(|a, b| (&a.resource, &a.fault.path) == (&b.resource, &b.fault.path));
    if faults.is_empty() { Ok(domains) } else { Err(faults) }
}

/// Finds the numbers that are no units.
fn units(descriptors: &[XdsDescriptor], at: &str, found: &mut impl FnMut(&str, i32)) {
    for (index, descriptor) in descriptors.iter().enumerate() {
        let at = format!("{at}[{index}]");
        if let Some(XdsLimit { unit, .. }) = descriptor.rate_limit
            && Unit::try_from(unit).is_err()
        {
            found(&format!("{at}.rate_limit.unit"), unit);
        }
        units(&descriptor.descriptors, &format!("{at}.descriptors"), found);
    }
}

fn descriptor(from: XdsDescriptor) -> DescriptorRule {
    DescriptorRule {
        key: from.key,
        value: from.value,
        rate_limit: from.rate_limit.map(|limit| RateLimitRule {
            requests_per_unit: limit.requests_per_unit,
            unit: Unit::try_from(limit.unit).ok(),
            unlimited: limit.unlimited,
            name: limit.name,
            replaces: limit.replaces.into_iter().map(|replaced| replaced.name).collect(),
        }),
        shadow_mode: from.shadow_mode,
        quota_mode: from.quota_mode,
        detailed_metric: from.detailed_metric,
        metadata: from.metadata.as_ref().map(members),
        descriptors: from.descriptors.into_iter().map(descriptor).collect(),
        ..DescriptorRule::default()
    }
}
