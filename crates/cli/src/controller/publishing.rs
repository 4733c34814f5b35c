//! The part of a pass that publishes: each domain by itself, so that none waits for another one
//! that fails.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quotagate_kubernetes::{Domains, StoreFault};
use tokio::time::Instant;

use super::documents::{DocumentStore, SettleEnd};
use super::leadership::Leadership;
use super::lineage::DomainProgress;
use super::merged::MergedDomain;
use super::metrics::{ControllerMetrics, DomainLabel};
use super::retry::Retries;

/// After so long an answer, the store is asked for no further domain in this pass.
pub(super) const SLOW: Duration = Duration::from_secs(2);

/// Publishes what the objects make.
pub(super) struct Publisher {
    pub(super) store: DocumentStore,
    metrics: Arc<ControllerMetrics>,
    /// What became of the documents of each domain.
    progress: BTreeMap<String, Result<DomainProgress, StoreFault>>,
    /// What was said last of a domain.
    said: BTreeMap<String, Option<(bool, String)>>,
    /// Domains that could not be settled.
    pub(super) retries: Retries<String>,
    /// The first domain that the last pass did not ask for.
    not_asked: Option<String>,
}

/// What a pass has published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Published {
    /// Whether the store has all that it should.
    pub(super) is_whole: bool,
    /// Whether it said something new.
    pub(super) is_changed: bool,
    pub(super) contact: StoreContact,
}

/// What a pass learned of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StoreContact {
    /// It was not asked.
    None,
    /// It was not asked, because this controller has no token that it could send. Another one may
    /// have one.
    NoToken,
    /// It was asked, and did not answer.
    Unreachable,
    /// It answered for a domain, even if it refused. It would refuse another controller, too.
    Answered,
}

impl Publisher {
    pub(super) fn new(store: DocumentStore, metrics: Arc<ControllerMetrics>) -> Self {
        Self {
            store,
            metrics,
            progress: BTreeMap::new(),
            said: BTreeMap::new(),
            retries: Retries::default(),
            not_asked: None,
        }
    }

    /// Forgets what was published and what failed, because another controller may have published
    /// meanwhile.
    pub(super) fn begin(&mut self) {
        self.progress.clear();
        self.store.begin();
        self.retries = Retries::default();
    }

    /// What became of the documents of a domain; or why the store has never said so.
    pub(super) fn progress(&self, domain: &str) -> Result<&DomainProgress, StoreFault> {
        let progress = self.progress.get(domain).map(Result::as_ref);
        progress.unwrap_or(Err(&StoreFault::Unreachable)).map_err(|fault| *fault)
    }

    /// Publishes what differs, as long as it leads. `None` if it does not any more.
    pub(super) async fn publish(
        &mut self,
        domains: &Domains,
        merged: &[MergedDomain],
        leadership: &Leadership,
    ) -> Option<Published> {
        let mut done = Published { is_whole: true, is_changed: false, contact: StoreContact::None };
        let mut is_slow = false;
        let mut domains: Vec<_> = domains.iter().zip(merged).collect();
        let first = self.not_asked.take();
        let first = domains.iter().position(|(domain, _)| Some(domain.name()) == first.as_deref());
        domains.rotate_left(first.unwrap_or_default());
        for (domain, MergedDomain { wish, .. }) in domains {
            let name = domain.name().to_owned();
            if !self.retries.is_due(&name) {
                done.is_whole = false;
                continue;
            }
            let asked = Instant::now();
            let settled = match is_slow {
                // Statuses wait for this, so the next pass asks for it first.
                true => self.store.late(&name, wish),
                false => match leadership.during(self.store.settle(domain, wish)).await {
                    Some(settled) => settled,
                    // Its time was over, but the Lease was renewed meanwhile.
                    None if leadership.acts() => self.store.late(&name, wish),
                    None => return None,
                },
            };
            match settled.end {
                SettleEnd::Failed(..) if is_slow => {
                    self.not_asked.get_or_insert(name.clone());
                }
                SettleEnd::Failed(..) => self.retries.failed(&name),
                _ => self.retries.succeeded(&name),
            }
            done.contact = done.contact.max(match settled.end {
                SettleEnd::Failed(StoreFault::Unreachable, _) => StoreContact::Unreachable,
                SettleEnd::Failed(StoreFault::NoToken, _) => StoreContact::NoToken,
                _ => StoreContact::Answered,
            });
            is_slow |= asked.elapsed() >= SLOW;
            done.is_whole &= settled.end.is_good();
            self.note(&name, &settled.end, settled.progress.as_ref().ok());
            settled.end.say(self.said.entry(name.clone()).or_default());
            done.is_changed |= self.progress.get(&name) != Some(&settled.progress);
            self.progress.insert(name, settled.progress);
        }
        Some(done)
    }

    /// Counts what became of a domain.
    fn note(&self, domain: &str, end: &SettleEnd, progress: Option<&DomainProgress>) {
        let label = DomainLabel { domain: domain.to_owned() };
        if matches!(end, SettleEnd::Changed(_)) {
            self.metrics.published.get_or_create(&label).inc();
        }
        self.metrics.unpublished.get_or_create(&label).set(i64::from(!end.is_good()));
        let number = progress.and_then(DomainProgress::number).unwrap_or_default();
        self.metrics.documents.get_or_create(&label).set(number);
    }
}
