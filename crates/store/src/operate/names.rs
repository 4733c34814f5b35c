//! Which domains and policies there are, and what whoever makes a change is called.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::try_join;

use super::record::{DomainRecord, read_policy};
use super::{Fault, MAX_NAMES, Operate, REMEMBERED, millis};
use crate::api::{MAX_BY, PolicyInfo};
use crate::desk::Shelf;

impl Operate {
    /// The names of all domains that filters have told of.
    pub async fn domains(&self) -> Result<Vec<String>, Fault> {
        let sheet = self.desk().read(Shelf::Domains, "").await?;
        let since = millis(sheet.now.saturating_sub(REMEMBERED));
        let mut names: BTreeSet<String> = BTreeSet::new();
        for (name, value) in &sheet.fields {
            let seen = serde_json::from_slice::<DomainRecord>(value).ok();
            if super::record::is_domain(name) && seen.is_some_and(|seen| seen.seen_ms >= since) {
                names.insert(name.clone());
            }
        }
        let here = self.cache.all().into_iter().filter(|cached| !cached.policies().is_empty());
        names.extend(here.map(|cached| cached.name.to_string()));
        Ok(names.into_iter().take(MAX_NAMES).collect())
    }

    /// The domain that is meant: the only one, where none is given.
    ///
    /// # Errors
    /// Where it is not known, or several are and none is given.
    pub async fn domain(&self, given: Option<&str>) -> Result<String, Fault> {
        let known = self.domains().await?;
        match (given, known.as_slice()) {
            (Some(given), known) if known.iter().any(|name| name == given) => Ok(given.to_owned()),
            (Some(given), _) => {
                let reason = format!("no filter has told of a domain {given:?}");
                Err(Fault::Unknown { field: "domain", reason, known })
            }
            (None, [only]) => Ok(only.clone()),
            (None, []) => {
                let reason = "no filter has told of a domain yet".to_owned();
                Err(Fault::Unknown { field: "domain", reason, known })
            }
            (None, _) => {
                let reason = "there are several: name one".to_owned();
                Err(Fault::Invalid { field: "domain", reason, known })
            }
        }
    }

    /// All policies of a domain, by name: as this store was told, or another.
    pub async fn policies(&self, domain: &str) -> Result<Vec<PolicyInfo>, Fault> {
        let sheet = self.desk().read(Shelf::Policies, domain).await?;
        let since = millis(sheet.now.saturating_sub(REMEMBERED));
        let written = sheet.fields.iter().filter_map(|(name, value)| read_policy(name, value));
        let here = self.cache.get(domain).map(|cached| cached.policies()).unwrap_or_default();
        let mut policies = BTreeMap::new();
        for policy in written.chain(here).filter(|policy| policy.seen_ms >= since) {
            match policies.get(&policy.name) {
                Some(PolicyInfo { seen_ms, .. }) if *seen_ms > policy.seen_ms => {}
                _ => drop(policies.insert(policy.name.clone(), policy)),
            }
        }
        Ok(policies.into_values().collect())
    }

    /// A policy that filters have told of.
    ///
    /// # Errors
    /// Where none has.
    pub(super) async fn policy(&self, domain: &str, name: &str) -> Result<PolicyInfo, Fault> {
        let mut policies = self.policies(domain).await?;
        match policies.iter().position(|policy| policy.name == name) {
            Some(at) => Ok(policies.swap_remove(at)),
            None => {
                let known = policies.into_iter().map(|policy| policy.name).collect();
                let reason = format!("{domain} has no policy {name:?}, as far as filters have told");
                Err(Fault::Unknown { field: "policy", reason, known })
            }
        }
    }

    /// Domain and policy that are meant.
    pub(super) async fn place(
        &self,
        domain: Option<&str>,
        policy: &str,
    ) -> Result<(String, PolicyInfo), Fault> {
        let domain = self.domain(domain).await?;
        let policy = self.policy(&domain, policy).await?;
        Ok((domain, policy))
    }

    /// Domain, its policies and its dials, at one moment.
    pub(super) async fn both<T>(
        &self,
        domain: &str,
        other: impl Future<Output = Result<T, Fault>>,
    ) -> Result<(Vec<PolicyInfo>, T), Fault> {
        try_join(self.policies(domain), other).await
    }
}

/// A name as it may stand in logs and tables: no control characters, at most [`MAX_BY`] bytes.
pub fn clean(by: &str) -> String {
    let mut name: String = by.chars().filter(|c| !c.is_control()).collect();
    name = name.trim().to_owned();
    let mut end = name.len().min(MAX_BY);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    if name.is_empty() { "somebody".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_and_hold_no_control_characters() {
        assert_eq!(clean("ann\r\n\u{1b}[31m\0"), "ann[31m");
        assert_eq!(clean(" \t"), "somebody");
        let long = clean(&"ä".repeat(100));
        assert_eq!((long.len(), long.chars().count()), (128, 64));
    }
}
