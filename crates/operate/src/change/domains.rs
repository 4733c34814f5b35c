//! Lists the domains that filters have reported, and removes one that is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::history::History;
use crate::api::{Changed, DocumentsInForce, DomainInfo, Event, ForgetDomain};
use crate::control::ControlHandle;
use crate::domain::boards::Boards;
use crate::domain::directory::clean;
use crate::fleet::FleetSight;
use crate::record::DomainRecord;
use crate::record::documents::published;
use crate::{Fault, MAX_FORMS, MAX_NAMES, REMEMBERED, REPORTED, millis, record};
use quotagate_store::control::{HashName, LAST_DOCUMENT, Upsert};
use quotagate_store::server::DomainScope;

/// The list of domains.
pub struct Domains {
    control: ControlHandle,
    history: Arc<History>,
    boards: Arc<Boards>,
}

impl Domains {
    pub(crate) fn new(history: Arc<History>, boards: Arc<Boards>) -> Self {
        Self { control: history.control.clone(), history, boards }
    }

    /// Every known domain, by name, with what was seen of its proxies.
    ///
    /// # Errors
    /// If the backend fails.
    pub async fn list(&self, sight: &FleetSight<'_>) -> Result<Vec<DomainInfo>, Fault> {
        let mut all = self.some_or_all(None, sight.in_force()).await?;
        let mut losses = self.boards.losses();
        for info in &mut all {
            info.faults = losses.remove(&info.domain).unwrap_or_default();
            let only = DomainScope::Some([info.domain.clone()].into());
            info.faults.extend(sight.refused_documents(&only));
        }
        Ok(all)
    }

    /// The given domain, or every known one, by name.
    async fn some_or_all(
        &self,
        domain: Option<&str>,
        mut in_force: BTreeMap<String, DocumentsInForce>,
    ) -> Result<Vec<DomainInfo>, Fault> {
        let (snapshot, _) = self.boards.directory.list().await?;
        let now = millis(snapshot.now);
        let boards = self.boards.read_all(domain).await?;
        let list = boards.into_iter().map(|board| {
            let record = snapshot.get(&board.domain);
            let record = record.and_then(DomainRecord::read);
            let reports = board.policies.iter().map(|policy| policy.seen_ms);
            let last = reports.chain(record.map(|record| record.seen_ms)).max();
            let in_force = in_force.remove(&board.domain).unwrap_or_default();
            DomainInfo {
                in_force: in_force.compared(&board.policies),
                domain: board.domain,
                policies: count(board.policies.len()),
                dials: count(board.dials.len()),
                overrides: board.overrides,
                // One that only refuses its document reported within the last minute.
                silent_ms: last.map_or(0, |last| now.saturating_sub(last)),
                faults: Vec::new(),
                incomplete: board.incomplete,
            }
        });
        Ok(list.collect())
    }

    /// Removes the reported policies and the name of a domain, and all documents that were
    /// published in it. Other stores follow, because they take reports older than 15 minutes from
    /// the backend.
    ///
    /// # Errors
    /// If the domain is not known or is in use, or the backend fails.
    pub async fn forget(&self, wish: &ForgetDomain) -> Result<Changed, Fault> {
        let has = async |hash| {
            let read = self.control.read(hash, &wish.domain).await;
            read.map(|read| !read.fields.is_empty())
        };
        let domain = match self.boards.directory.domain(Some(&wish.domain)).await {
            Err(unknown @ Fault::Unknown { .. }) => {
                // Documents may be published before a proxy reports the domain, or by mistake.
                if !has(HashName::Documents).await? {
                    return Err(unknown);
                }
                if has(HashName::Dials).await? || has(HashName::Overrides).await? {
                    return Err(Fault::InUse(format!(
                        "{} has dials or overrides that would stay in force unseen: clear them first",
                        wish.domain
                    )));
                }
                wish.domain.clone()
            }
            known => {
                let domain = known?;
                for info in self.some_or_all(Some(&domain), BTreeMap::new()).await? {
                    check_unused(&info)?;
                }
                domain
            }
        };
        let documents = self.control.read(HashName::Documents, &domain).await?;
        if published(&documents).is_none_or(|of| !of.newest_at(documents.now).is_withdrawal()) {
            return Err(Fault::InUse(format!(
                "{domain} has a published document, which a proxy that comes back would take up \
                 unseen: withdraw it first"
            )));
        }
        if !self.control.forget_documents(&domain, documents.get(LAST_DOCUMENT)).await? {
            return Err(Fault::InUse(format!(
                "a document was published in {domain} at the same moment, so nothing was changed: \
                 look at `quotagate document list`"
            )));
        }
        let policies = self.control.read(HashName::Policies, &domain).await?;
        let names = policies.fields.into_iter().map(|(name, _)| name).collect();
        self.remove(HashName::Policies, &domain, names, MAX_FORMS).await?;
        self.remove(HashName::Domains, "", vec![domain.clone()], MAX_NAMES).await?;
        self.boards.forget(&domain);
        if let Some(cached) = self.boards.views.get(&domain) {
            cached.forget_reports();
        }
        let now = self.control.read(HashName::Domains, "").await?.now;
        let done = format!("forgot domain {domain}");
        let event = Event::new(millis(now), &clean(&wish.by), done);
        let made = self.history.record(&domain, event).await?;
        Ok(self.history.reply(domain, made, None))
    }

    async fn remove(
        &self,
        hash: HashName,
        domain: &str,
        dead: Vec<String>,
        most: usize,
    ) -> Result<(), Fault> {
        let upsert =
            Upsert { delete: dead, fields: Vec::new(), max_fields: most, keep_for: REMEMBERED };
        Ok(self.control.upsert(hash, domain, &upsert).await?)
    }
}

/// Rejects a domain that proxies still report, which would come back, and one with dials or
/// overrides, which would stay in force unseen.
fn check_unused(info: &DomainInfo) -> Result<(), Fault> {
    let DomainInfo { domain, dials, overrides, silent_ms, .. } = info;
    let reported = millis(REPORTED);
    if *silent_ms < reported {
        return Err(Fault::InUse(format!(
            "proxies reported {domain} {} ago and would report it again: forget it after {} without a report",
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
