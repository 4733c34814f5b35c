//! What the call endpoint does for a caller, without HTTP.
//!
//! A caller in the same process uses [`CallEndpoint::call`] and [`CallEndpoint::dials`]. The same
//! code carries out what arrives by HTTP.

mod pending;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quotagate_protocol::dials::{DialsReply, MAX_REPORT};
use quotagate_protocol::{Adjustment, MAX_ITEMS, ReserveReply, ReserveRequest, is_domain};

use tokio::sync::OwnedSemaphorePermit;

use self::pending::{Claim, Held};
use super::endpoint::CallEndpoint;
use super::hooks::Event;
use super::log_pace::LogPace;
use super::refusal::Refusal;
use super::reply::RefundOnDrop;
use crate::store::{Batch, CheckedReservation, Reserved, SECOND_LOOK, StoreError};
use crate::window::known;

/// The store answers this long before the caller's deadline at the latest, with the outcomes that
/// it has. For a short budget the margin is a fifth of it.
const MARGIN: Duration = Duration::from_millis(20);

/// A call that was carried out. Dropping it refunds its grants, unless the caller has
/// [taken](Self::take) the reply.
#[must_use = "dropping it refunds its grants"]
pub struct CarriedOut {
    pub(super) reply: ReserveReply,
    pub(super) held: Held,
}

impl CarriedOut {
    /// The reply. Its grants belong to the caller from now on.
    pub fn take(mut self) -> ReserveReply {
        self.held.hand_out();
        self.reply
    }
}

/// A checked call: its valid reservations, and what is wrong with the others.
struct CheckedCall {
    budget_ms: u32,
    batch: Batch,
    /// The indexes of the other reservations, ascending, and what is wrong with each.
    faults: Vec<(usize, String)>,
}

impl CallEndpoint {
    /// Carries out a call that arrived at `received`, for a caller in this process. Dropping the
    /// future is like a caller that leaves: its grants are refunded.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Instant;
    ///
    /// use quotagate_protocol::ReserveRequest;
    /// use quotagate_store::server::{CallEndpoint, Connections};
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// let store = quotagate_store::open(&"memory:".parse()?, "qg");
    /// let endpoint = Arc::new(CallEndpoint::new(store, Arc::<Connections>::default()));
    /// let request: ReserveRequest =
    ///     serde_json::from_str(r#"{"budget_ms": 50, "reservations": [], "refunds": []}"#)?;
    /// match endpoint.call(request, Instant::now()).await {
    ///     Ok(carried_out) => assert!(carried_out.take().grants.is_empty()),
    ///     Err(refusal) => println!("{}: {refusal}", refusal.code()),
    /// }
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// Why nothing was granted to the caller.
    pub async fn call(
        self: &Arc<Self>,
        request: ReserveRequest,
        received: Instant,
    ) -> Result<CarriedOut, Refusal> {
        let carried_out = match self.permit() {
            Ok(permit) => self.carry_out(request, received, permit).await,
            Err(refusal) => Err(refusal),
        };
        let status = carried_out.as_ref().map_or_else(Refusal::code, |_| 200);
        self.hooks.observe(Event::Answered { status, took: received.elapsed() });
        carried_out
    }

    /// Takes a proxy's report, which may be empty, and returns the dials of its domain.
    ///
    /// # Errors
    /// When `domain` cannot be the name of a domain, or its dials are not known.
    pub async fn dials(&self, domain: &str, report: &[u8]) -> Result<DialsReply, Refusal> {
        check_domain(domain)?;
        // Nothing is counted by reports, so one that is too long is ignored.
        let report = if report.len() > MAX_REPORT { &[] } else { report };
        self.hooks.dials(domain, report).await.map_err(Refusal::Down)
    }

    /// The reply to a proxy that asks for the document of this domain that was published under this
    /// number, and has the one with this digest, as JSON.
    ///
    /// # Errors
    /// When `domain` cannot be the name of a domain, or its document is not known.
    pub async fn document(
        &self,
        domain: &str,
        digest: &str,
        number: u64,
    ) -> Result<Bytes, Refusal> {
        check_domain(domain)?;
        self.hooks.document(domain, digest, number).await.map_err(Refusal::Down)
    }

    /// The permit for one call.
    pub(super) fn permit(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        Arc::clone(&self.permits).try_acquire_owned().map_err(|_| Refusal::Busy)
    }

    /// Carries out a call that arrived at `received` and holds `permit`.
    pub(super) async fn carry_out(
        self: &Arc<Self>,
        request: ReserveRequest,
        received: Instant,
        permit: OwnedSemaphorePermit,
    ) -> Result<CarriedOut, Refusal> {
        let CheckedCall { budget_ms, batch, faults } = self.check(request, received)?;
        let deadline = batch.deadline;
        if Instant::now() >= deadline && batch.refunds.is_empty() && batch.charges.is_empty() {
            return Err(Refusal::Late(budget_ms));
        }
        let mut claim = pending::start(self, batch, permit);
        // Early enough for the answer to arrive: a slow reservation must not cost the caller the
        // others.
        let soon = deadline - (deadline - received).div_f64(5.0).min(MARGIN);
        if self.wait(&mut claim, received, deadline, soon).await.is_none()
            && !claim.any()
            && !self.store.serves_others()
            && self.deadlines.within(deadline, claim.done()).await.is_none()
        {
            return Err(Refusal::Late(budget_ms));
        }
        self.conclude(claim.take(), faults, budget_ms, deadline)
    }

    fn check(&self, request: ReserveRequest, received: Instant) -> Result<CheckedCall, Refusal> {
        let ReserveRequest { budget_ms, mut refunds, mut charges, reservations } = request;
        let items = [refunds.len(), charges.len(), reservations.len()].into_iter().sum::<usize>();
        if items > MAX_ITEMS {
            return Err(Refusal::TooLarge(format!(
                "a call holds at most {MAX_ITEMS} items, this one {items}"
            )));
        }
        self.hooks.observe(Event::Received {
            reservations: reservations.len(),
            refunds: refunds.len(),
            charges: charges.len(),
        });
        refunds.retain(|refund| is_good(refund, "refund", &self.invalid_refunds));
        charges.retain(|charge| is_good(charge, "charge", &self.invalid_charges));
        refunds.iter().for_each(|refund| self.hooks.observe(Event::Refunded(refund)));
        charges.iter().for_each(|charge| self.hooks.observe(Event::Charged(charge)));
        let mut asks = Vec::with_capacity(reservations.len());
        let mut faults = Vec::new();
        for (index, reservation) in reservations.into_iter().enumerate() {
            match CheckedReservation::window_of(&reservation) {
                Ok(window) => {
                    let ask = CheckedReservation::within(reservation, window);
                    asks.push(match self.hooks.quota(&ask.key) {
                        Some(quota) => ask.overridden(quota),
                        None => ask,
                    });
                }
                Err(invalid) => {
                    self.hooks.observe(Event::Invalid(&reservation.key));
                    faults.push((index, invalid.to_string()));
                }
            }
        }
        let deadline = received + Duration::from_millis(budget_ms.into());
        Ok(CheckedCall {
            budget_ms,
            batch: Batch { deadline, refunds, charges, reservations: asks },
            faults,
        })
    }

    /// Waits until every reservation has an outcome, until `soon` at most. Halfway through the
    /// budget it gives up reservations that wait for a silent part of the backend, so that the
    /// others are answered in time.
    async fn wait(
        &self,
        claim: &mut Claim,
        received: Instant,
        deadline: Instant,
        soon: Instant,
    ) -> Option<()> {
        let budget = deadline - received;
        let mut look = received + budget / 2;
        for _ in 0..2 {
            if self.deadlines.within(look.min(soon), claim.done()).await.is_some() {
                return Some(());
            }
            claim.give_up_silent(budget);
            look = Instant::now() + SECOND_LOOK;
        }
        self.deadlines.within(soon, claim.done()).await
    }

    /// The reply with the outcomes so far, or why there is none.
    fn conclude(
        &self,
        held: Held,
        faults: Vec<(usize, String)>,
        budget_ms: u32,
        deadline: Instant,
    ) -> Result<CarriedOut, Refusal> {
        let reserved = held.reserved();
        if let Some(Err(error)) = reserved.first() {
            let all = |holds: fn(&StoreError) -> bool| {
                faults.is_empty()
                    && reserved.iter().all(|outcome| outcome.as_ref().is_err_and(holds))
            };
            // One dead part must not make a caller believe that the whole store is down.
            if all(StoreError::is_outage) && !self.store.serves_others() {
                return Err(Refusal::Down(error.to_string()));
            }
            if all(|error| matches!(error, StoreError::Late)) {
                return Err(Refusal::Late(budget_ms));
            }
        }
        if Instant::now() >= deadline {
            return Err(Refusal::Late(budget_ms));
        }
        let grant = |outcome: &Reserved| outcome.as_ref().copied().map_err(ToString::to_string);
        let mut grants: Vec<_> = reserved.iter().map(grant).collect();
        for (index, fault) in faults {
            grants.insert(index, Err(fault));
        }
        let dials = held.domain().map_or(0, |domain| self.hooks.version(domain));
        Ok(CarriedOut { reply: ReserveReply { dials, grants }, held })
    }
}

fn check_domain(domain: &str) -> Result<(), Refusal> {
    if is_domain(domain) {
        return Ok(());
    }
    Err(Refusal::Malformed {
        field: "domain".to_owned(),
        reason: "must be 1 to 256 of the characters A-Z a-z 0-9 . _ ~ = / % @ + -".to_owned(),
    })
}

fn is_good(adjustment: &Adjustment, what: &str, pace: &LogPace) -> bool {
    let checked = adjustment.check().and_then(known);
    if let Err(invalid) = &checked
        && let Some(left_out) = pace.due()
    {
        tracing::warn!("left out an invalid {what}: {invalid}{left_out}");
    }
    checked.is_ok()
}
