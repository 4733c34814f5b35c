//! The domains that filters have reported, and how an operator removes one that is gone.

use super::names::clean;
use super::record::DomainRecord;
use super::{Fault, MAX_NAMES, MAX_POLICIES, Operate, REMEMBERED, REPORTED, millis, record};
use crate::api::{Changed, DomainInfo, Event, ForgetDomain};
use quotagate_store::control::{HashName, Upsert};

impl Operate {
    /// Every domain that is known, by name.
    ///
    /// # Errors
    /// Where the backend fails.
    pub async fn domain_list(&self) -> Result<Vec<DomainInfo>, Fault> {
        let snapshot = self.control().read(HashName::Domains, "").await?;
        let now = millis(snapshot.now);
        let boards = self.boards(None).await?;
        let list = boards.into_iter().map(|board| {
            let record = snapshot.get(&board.domain);
            let record = record.and_then(|value| serde_json::from_slice::<DomainRecord>(value).ok());
            let reports = board.policies.iter().map(|policy| policy.seen_ms);
            let last = reports.chain(record.map(|record| record.seen_ms)).max();
            DomainInfo {
                domain: board.domain,
                policies: count(board.policies.len()),
                dials: count(board.dials.len()),
                overrides: board.overrides,
                silent_ms: now.saturating_sub(last.unwrap_or_default()),
            }
        });
        Ok(list.collect())
    }

    /// Removes the reported policies and the name of a domain. Other stores follow, since what they know for longer than
    /// a quarter of an hour they take from the backend.
    ///
    /// # Errors
    /// Where the domain is not known or is in use, or the backend fails.
    pub async fn forget_domain(&self, wish: &ForgetDomain) -> Result<Changed, Fault> {
        let domain = self.domain(Some(&wish.domain)).await?;
        let list = self.domain_list().await?;
        // A domain that cannot be read, or that another operator has just forgotten, is in no list.
        check_unused(list.iter().find(|info| info.domain == domain).ok_or(Fault::Contended)?)?;
        let policies = self.control().read(HashName::Policies, &domain).await?;
        let names = policies.fields.into_iter().map(|(name, _)| name).collect();
        self.remove(HashName::Policies, &domain, names, MAX_POLICIES).await?;
        self.remove(HashName::Domains, "", vec![domain.clone()], MAX_NAMES).await?;
        self.kept.forget(&domain);
        if let Some(cached) = self.cache.get(&domain) {
            cached.forget_reports();
        }
        let done = format!("forgot domain {domain}");
        let now = self.control().read(HashName::Domains, "").await?.now;
        let event = Event { at_ms: millis(now), by: clean(&wish.by), done: done.clone() };
        let version = self.tell(&domain, event).await?;
        Ok(self.changed(domain, super::Made { version, done }))
    }

    async fn remove(
        &self,
        hash: HashName,
        domain: &str,
        dead: Vec<String>,
        most: usize,
    ) -> Result<(), Fault> {
        let upsert = Upsert { delete: dead, fields: Vec::new(), max_fields: most, keep_for: REMEMBERED };
        Ok(self.control().upsert(hash, domain, &upsert).await?)
    }
}

/// A domain that proxies still report would come back, and a dial or an override would stay in force unseen.
fn check_unused(info: &DomainInfo) -> Result<(), Fault> {
    let DomainInfo { domain, dials, overrides, silent_ms, .. } = info;
    let reported = millis(REPORTED);
    if *silent_ms < reported {
        return Err(Fault::InUse(format!(
            "proxies reported {domain} {} ago and would report it again: forget it once none has for {}",
            record::span(*silent_ms),
            record::span(reported)
        )));
    }
    if dials.saturating_add(*overrides) > 0 {
        return Err(Fault::InUse(format!(
            "{domain} has dials ({dials}) or overrides ({overrides}) that would stay in force unseen: clear them first"
        )));
    }
    Ok(())
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
