//! Published documents: when a worker asks for one, and how it takes one up.
//!
//! Only a worker whose embedded document says `live: true` does. The reply to a fetch of dials
//! names the published document. If that is another one than the worker has, it fetches the
//! document, and the adapter checks it and has it taken up ([`Worker::take_up`]). A worker that
//! cannot take a document up keeps its own, says why in its reports, and asks for the next one.
//!
//! # The swap
//!
//! A policy is an index into the list of policies, and another document has another list. So each
//! request ends by the configuration under which it arrived: the worker notes it for the requests
//! that wait, and [`Exchange`](crate::exchange::Exchange) for those that were decided. What belongs
//! to counters (leases, the ledger, refunds, calls under way) goes on, because a counter is known
//! by its key, its quota and its window. Leases whose policy is gone are refunded.

use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::CounterKey;
use quotagate_protocol::dials::DocumentVersion;

use super::call::LOST_AFTER;
use super::call::faults::{CallFault, Misread};
use super::fetch::OutgoingFetch;
use super::telemetry::Tally;
use super::{CallId, Worker};
use crate::config::{Config, MovedPolicies, PublishedDocument, refused_document};
use crate::evaluate::Counter;
use crate::time::Monotonic;

/// How long a fetch of a document may take. It can have a megabyte.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest time between the starts of two fetches of a document.
const PAUSE: Duration = Duration::from_secs(1);

/// What a worker knows of the published document.
#[derive(Clone, Debug, Default)]
pub(super) struct LiveState {
    /// The embedded configuration without dials, if it is live.
    embedded: Option<Arc<Config>>,
    /// Which document is published, as the store said last.
    published: DocumentVersion,
    /// The last one that was taken up or refused.
    settled: DocumentVersion,
    /// The fetch under way, and when the worker gives it up.
    under_way: Option<(CallId, Monotonic)>,
    /// No fetch leaves earlier.
    soonest: Monotonic,
    /// A document that the adapter has not checked yet.
    arrived: Option<Arc<PublishedDocument>>,
    /// While a request of another generation is decided: its configuration.
    arrived_under: Option<Arc<Config>>,
    /// Whether a store has said which document is published.
    is_informed: bool,
    /// The indexes that policies of the configuration of this generation have now.
    moved: Option<(u64, MovedPolicies)>,
    /// When the document in force was taken up, or reported first.
    since: Option<Monotonic>,
}

impl LiveState {
    /// Nothing is known yet.
    pub(super) fn new(configured: &Arc<Config>) -> Self {
        let embedded = configured.is_live().then(|| Arc::clone(configured));
        Self { embedded, ..Self::default() }
    }

    /// The same for a worker that takes over.
    pub(super) fn inherited(&self) -> Self {
        Self { arrived_under: None, ..self.clone() }
    }

    /// Whether published documents are taken up.
    pub(super) const fn is_live(&self) -> bool {
        self.embedded.is_some()
    }

    /// A store has said which document is published, or that it never says that.
    pub(super) const fn informed(&mut self) {
        self.is_informed = true;
    }

    /// Whether no store has said yet which document is published.
    pub(super) const fn is_uninformed(&self) -> bool {
        self.is_live() && !self.is_informed
    }

    /// The configuration under which the request at hand arrived, if it is not in force any more.
    pub(super) fn arrived_under(&self) -> Option<Arc<Config>> {
        self.arrived_under.clone()
    }

    /// For how many seconds the document in force has been that, under its number.
    pub(super) fn in_force_s(&mut self, now: Monotonic) -> u64 {
        now.since(*self.since.get_or_insert(now)).as_secs()
    }

    /// Whether a document must be fetched now.
    pub(super) fn is_due(&self, now: Monotonic) -> bool {
        self.is_live()
            && self.published != self.settled
            && self.under_way.is_none()
            && self.arrived.is_none()
            && self.soonest <= now
    }

    /// A document has come.
    #[cfg(test)]
    pub(super) fn arrived_for_test(&mut self, reply: &[u8]) {
        self.arrived = PublishedDocument::read(reply).unwrap().map(Arc::new);
    }

    /// The fetch under way, if the host should have reported its end by now.
    pub(super) fn lost(&self, now: Monotonic) -> Option<CallId> {
        self.under_way.filter(|(_, lost_at)| *lost_at <= now).map(|(id, _)| id)
    }
}

impl<W> Worker<W> {
    /// The embedded configuration, if published documents replace it.
    pub fn embedded(&self) -> Option<&Arc<Config>> {
        self.live.embedded.as_ref()
    }

    /// The published document that has come. Make a [configuration](PublishedDocument::config) of
    /// it, check whether this form of the filter can carry that out, and [take it
    /// up](Self::take_up).
    pub const fn document(&self) -> Option<&Arc<PublishedDocument>> {
        self.live.arrived.as_ref()
    }

    /// Before the first request: the document that this filter took up last in this process.
    pub fn inherit(&mut self, document: Arc<PublishedDocument>) {
        if self.live.is_live() {
            // Until a store says otherwise, it counts as published, so that it is not fetched.
            self.live.published = document.version();
            self.live.arrived = Some(document);
        }
    }

    /// Takes up the configuration of a document that has come, or refuses the document because of
    /// these faults. Returns whether it is in force now.
    ///
    /// Call it between two requests. If it is refused, the configuration in force stays.
    pub fn take_up(
        &mut self,
        document: &Arc<PublishedDocument>,
        config: Result<Config, Vec<String>>,
        now: Monotonic,
    ) -> bool {
        let arrived = self.live.arrived.take_if(|arrived| Arc::ptr_eq(arrived, document));
        if arrived.is_none() {
            return false;
        }
        let PublishedDocument { number, digest, .. } = &**document;
        self.live.settled = document.version();
        match config {
            Ok(config) => {
                self.telemetry.notices.took_up(*number, digest);
                self.swap(config, now);
                true
            }
            Err(faults) => {
                self.refuse_document(*number, &faults);
                false
            }
        }
    }

    fn refuse_document(&mut self, number: u64, faults: &[String]) {
        self.telemetry.notices.refused_document(number, faults);
        self.telemetry.tally.count_refused_document();
        let refused = Some(refused_document(faults, true, number));
        self.reconfigure(|config| config.refused = refused);
    }

    /// Changes the configuration, but no policy.
    fn reconfigure(&mut self, change: impl FnOnce(&mut Config)) {
        let mut configured = (**self.overrides.configured()).clone();
        change(&mut configured);
        self.config = self.overrides.reconfigured(Arc::new(configured));
    }

    /// Replaces the configuration by one with other policies.
    pub(crate) fn swap(&mut self, mut config: Config, now: Monotonic) {
        if let Some(live) = &mut config.live {
            live.generation = self.config.generation() + 1;
        }
        self.live.since = Some(now);
        let configured = Arc::new(config);
        let by_name = configured.by_name();
        let indexes = configured.indexes_from(&self.config);
        let moved = |policy: usize| indexes.get(policy).copied().flatten();
        self.requests.arrived_under(&self.config);
        self.slots.arrived_under(&self.config);
        let tally = std::mem::replace(&mut self.telemetry.tally, Tally::new(0));
        self.telemetry.tally = tally.moved(configured.policies.len(), moved);
        self.telemetry.identities = Default::default();
        let (ledger, refunds) = (&mut self.known.ledger, &mut self.calls.refunds);
        let stays = |counter: &Counter| {
            let policy = CounterKey::split(&counter.key).and_then(|key| by_name.get(key.policy));
            policy.is_some_and(|(_, policy)| policy.window == counter.window)
        };
        self.leases.release(stays, |counter, units| {
            ledger.refunded(counter, units.window, units.amount, now);
            refunds.add(counter, units);
        });
        self.live.moved = Some((self.config.generation(), Arc::clone(&indexes)));
        self.config = self.overrides.swapped(&configured, moved);
    }

    /// The indexes that policies of an earlier configuration have now. Requests of one generation
    /// mostly follow each other.
    fn moved_from(&mut self, config: &Config) -> MovedPolicies {
        let generation = config.generation();
        match &self.live.moved {
            Some((of, indexes)) if *of == generation => Arc::clone(indexes),
            _ => {
                let indexes = self.config.indexes_from(config);
                self.live.moved = Some((generation, Arc::clone(&indexes)));
                indexes
            }
        }
    }

    /// Runs `act` for a request that arrived under `config`, if that is of another generation than
    /// the configuration in force.
    pub(super) fn under<R>(
        &mut self,
        config: Option<&Arc<Config>>,
        act: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let Some(config) = config.filter(|of| of.generation() != self.config.generation()) else {
            return act(self);
        };
        self.telemetry.moved = Some(self.moved_from(config));
        let in_force = std::mem::replace(&mut self.config, Arc::clone(config));
        self.live.arrived_under = Some(Arc::clone(config));
        let result = act(self);
        self.telemetry.moved = None;
        self.live.arrived_under = None;
        self.config = in_force;
        result
    }

    /// The store said which document is published.
    pub(super) fn hear_document(&mut self, published: DocumentVersion, now: Monotonic) {
        let Some(embedded) = self.live.embedded.clone() else { return };
        // A withdrawal has a number. Without any record, the store lost what was published, and the
        // document stays until there is a record again.
        let is_lost = published == DocumentVersion::default();
        if is_lost && (self.config.number() > 0 || self.live.arrived.is_some()) {
            return;
        }
        self.live.published = published.clone();
        // One that came before, and that is not published any more, is not taken up.
        self.live.arrived.take_if(|arrived| arrived.number != published.number);
        if published == self.live.settled {
            return;
        }
        let DocumentVersion { number, digest } = &published;
        if digest.is_empty() {
            // None is published any more, or none was yet.
            if self.config.number() == 0 && self.config.refused == embedded.refused {
                self.live.settled = published;
            } else {
                self.live.arrived = Some(Arc::new(PublishedDocument::none(*number)));
            }
        } else if **digest == *self.config.digest {
            let number = *number;
            self.live.since = Some(now);
            self.reconfigure(|config| {
                config.refused = embedded.refused.clone();
                if let Some(live) = &mut config.live {
                    live.number = number;
                }
            });
            self.live.settled = published;
        }
    }

    /// The fetch of the published document that is due, if any.
    pub(super) fn next_document_fetch(&mut self, now: Monotonic) -> Option<OutgoingFetch> {
        if !self.live.is_due(now) {
            return None;
        }
        let id = CallId(self.next_serial());
        self.live.soonest = now + PAUSE;
        self.live.under_way = Some((id, now + TIMEOUT + LOST_AFTER));
        Some(OutgoingFetch {
            id,
            domain: self.config.domain.clone(),
            report: None,
            timeout: TIMEOUT,
            has_digest: Some(self.config.digest.clone()),
            number: self.live.published.number,
        })
    }

    /// A call ended. Learns from it if it is the fetch of a document, else returns `false`.
    pub(super) fn document_fetch_ended(
        &mut self,
        id: CallId,
        end: &Result<&[u8], CallFault<'_>>,
        now: Monotonic,
    ) -> bool {
        if self.live.under_way.take_if(|(known, _)| *known == id).is_none() {
            return false;
        }
        let read = match end {
            Ok(body) => PublishedDocument::read(body)
                .map_err(|error| CallFault::Malformed(Misread::Form(error.to_string()))),
            Err(fault) => Err(fault.clone()),
        };
        match read {
            Ok(document) => {
                let DocumentVersion { number, digest } = &self.live.published;
                // Another store than the one that named the document may lag behind it. The next
                // fetch, or the next answer to a report, tells.
                let is_it = |of: &PublishedDocument| of.number == *number && *of.digest == **digest;
                if let Some(document) = document.filter(is_it) {
                    self.live.arrived = Some(Arc::new(document));
                }
            }
            Err(fault) => {
                let secret = self.config.store.reach.token();
                self.telemetry.notices.document_failed(&fault, secret, now);
            }
        }
        true
    }
}
