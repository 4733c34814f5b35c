//! Records in history which dials, overrides and published documents have ended by their time.
//!
//! They end without it: proxies, stores and the backend follow the time. A store looks for those
//! that are over and removes what is left of them, in one step with the entry in history; what was
//! published before a document gets a new number. So of several stores, one makes the entry. A
//! store that starts later makes up for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quotagate_store::control::HashName;
use tokio::time::{MissedTickBehavior, interval};

use super::author::Author;
use super::documents::Documents;
use super::history::{Edit, History};
use super::overrides::Overrides;
use crate::Fault;
use crate::api::NOBODY;
use crate::domain::boards::Boards;
use crate::record::{DialRecord, dial_words};

/// How often a store looks.
const EVERY: Duration = Duration::from_secs(2);

/// Records what has ended.
pub struct Expiry {
    history: Arc<History>,
    overrides: Arc<Overrides>,
    boards: Arc<Boards>,
    documents: Arc<Documents>,
}

impl Expiry {
    pub(crate) const fn new(
        history: Arc<History>,
        overrides: Arc<Overrides>,
        boards: Arc<Boards>,
        documents: Arc<Documents>,
    ) -> Self {
        Self { history, overrides, boards, documents }
    }

    /// Looks again and again. Never returns.
    pub(crate) async fn keep_recorded(&self) {
        // What the log said last of a document that cannot end. Forgotten domains are few.
        let mut complaints = BTreeMap::new();
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            for (domain, view) in self.boards.last_views() {
                let now = view.now();
                let dials = view.dials().iter().filter(|(_, dial)| dial.left_at(now).is_none());
                for (policy, _) in dials {
                    // The next look tries again.
                    let _ = self.record_dial(&domain, policy).await;
                }
                let failed = match view.has_ended_document() {
                    true => self.documents.end_if_over(&domain).await.ok().flatten(),
                    false => None,
                };
                if let Some(why) = failed.filter(|why| complaints.get(&domain) != Some(why)) {
                    tracing::warn!("documents of {domain}: {why}");
                    complaints.insert(domain.clone(), why);
                }
                if view.overrides.has_ended_at(now) {
                    let _ = self.overrides.drop_ended(&domain).await;
                }
            }
        }
    }

    /// Removes a dial whose time is over.
    async fn record_dial(&self, domain: &str, policy: &str) -> Result<(), Fault> {
        let edit = |old: Option<&[u8]>, now: Duration| {
            let held = old.and_then(|old| DialRecord::read(policy, old).ok());
            let ended = held.filter(|held| held.left_at(now).is_none());
            let ended =
                ended.ok_or_else(|| Fault::Absent("it has no end, or none yet".to_owned()))?;
            Ok(Edit {
                new: None,
                done: format!("dial {policy} ended: {}", dial_words(&ended.fields)),
            })
        };
        let change = self.history.change(domain, HashName::Dials, policy, NOBODY, edit);
        Author::time().makes(change).await.map(drop)
    }
}
