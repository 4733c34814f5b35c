//! `POST /v1/reserve`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::{Body, Bytes};
use hyper::{Request, Response, StatusCode};
use quotagate_quota::protocol::{MAX_BODY, MAX_ITEMS, Refund, ReserveReply, ReserveRequest};

use super::body::{read_json, receive};
use super::endpoint::CallEndpoint;
use super::hooks::Event;
use super::pending::{self, Claim};
use super::reply::{Held, Payload, Refusal, json};
use crate::store::{Batch, CheckedReservation, SECOND_LOOK, StoreError};

/// The store answers this long before the caller's deadline at the latest, with what has settled.
/// For a short budget the margin is a fifth of it.
const MARGIN: Duration = Duration::from_millis(20);

/// A parsed call: its valid reservations, and what is wrong with the others.
struct Call {
    budget_ms: u32,
    batch: Batch,
    /// One for each reservation, in their order; `None` for one that is in the batch.
    faults: Vec<Option<String>>,
}

/// Carries out a call that arrived at `received`.
///
/// # Errors
/// Why nothing was granted to the caller.
pub async fn serve<B>(
    endpoint: &Arc<CallEndpoint>,
    request: Request<B>,
    received: Instant,
) -> Result<Response<Payload>, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    endpoint.authorize(request.headers())?;
    let permit =
        Arc::new(Arc::clone(&endpoint.permits).try_acquire_owned().map_err(|_| Refusal::Busy)?);
    let body = receive(request.into_body(), MAX_BODY).await?;
    let Call { budget_ms, batch, faults } = understand(endpoint, &body, received)?;
    let deadline = batch.deadline;
    if Instant::now() >= deadline && batch.refunds.is_empty() {
        return Err(Refusal::Late(budget_ms));
    }
    let claim = pending::start(endpoint, batch, permit);
    // Early enough for the answer to arrive: a slow reservation must not cost the caller the
    // others.
    let soon = deadline - (deadline - received).div_f64(5.0).min(MARGIN);
    if wait(endpoint, &claim, received, deadline, soon).await.is_none()
        && !claim.any()
        && !endpoint.store.serves_others()
        && endpoint.deadlines.within(deadline, claim.done()).await.is_none()
    {
        return Err(Refusal::Late(budget_ms));
    }
    let held = claim.take();
    let dials = held.domain().map_or(0, |domain| endpoint.hooks.version(domain));
    answer(held, dials, faults, budget_ms, deadline, endpoint.store.serves_others())
}

/// Waits until everything is settled, until `soon` at most. Halfway through the budget it gives up
/// reservations that wait for a silent part of the backend, so that the others are answered in
/// time.
async fn wait(
    endpoint: &CallEndpoint,
    claim: &Claim,
    received: Instant,
    deadline: Instant,
    soon: Instant,
) -> Option<()> {
    let budget = deadline - received;
    let mut look = received + budget / 2;
    for _ in 0..2 {
        if endpoint.deadlines.within(look.min(soon), claim.done()).await.is_some() {
            return Some(());
        }
        claim.give_up_silent(budget);
        look = Instant::now() + SECOND_LOOK;
    }
    endpoint.deadlines.within(soon, claim.done()).await
}

fn understand(endpoint: &CallEndpoint, body: &[u8], received: Instant) -> Result<Call, Refusal> {
    let request: ReserveRequest = read_json(body)?;
    let ReserveRequest { budget_ms, mut refunds, reservations } = request;
    let items = refunds.len().saturating_add(reservations.len());
    if items > MAX_ITEMS {
        return Err(Refusal::TooLarge(format!(
            "a call holds at most {MAX_ITEMS} items, this one {items}"
        )));
    }
    endpoint
        .hooks
        .observe(Event::Received { reservations: reservations.len(), refunds: refunds.len() });
    refunds.retain(is_good);
    refunds.iter().for_each(|refund| endpoint.hooks.observe(Event::Refunded(refund)));
    let mut asks = Vec::with_capacity(reservations.len());
    let mut faults = Vec::with_capacity(reservations.len());
    for reservation in reservations {
        match reservation.check() {
            Ok(window) => {
                asks.push(CheckedReservation::within(reservation, window));
                faults.push(None);
            }
            Err(invalid) => {
                endpoint.hooks.observe(Event::Invalid(&reservation.key));
                faults.push(Some(invalid.to_string()));
            }
        }
    }
    let deadline = received + Duration::from_millis(budget_ms.into());
    Ok(Call { budget_ms, batch: Batch { deadline, refunds, reservations: asks }, faults })
}

fn is_good(refund: &Refund) -> bool {
    refund
        .check()
        .inspect_err(|invalid| tracing::warn!("left out an invalid refund: {invalid}"))
        .is_ok()
}

fn answer(
    held: Held,
    dials: u64,
    faults: Vec<Option<String>>,
    budget_ms: u32,
    deadline: Instant,
    serves_others: bool,
) -> Result<Response<Payload>, Refusal> {
    let settled = held.settled();
    if let Some(Err(error)) = settled.first() {
        let all = |holds: fn(&StoreError) -> bool| {
            settled.len() == faults.len()
                && settled.iter().all(|outcome| outcome.as_ref().is_err_and(holds))
        };
        // One dead part must not make a caller believe that the whole store is down.
        if all(StoreError::is_outage) && !serves_others {
            return Err(Refusal::Down(error.to_string()));
        }
        if all(|error| matches!(error, StoreError::Late)) {
            return Err(Refusal::Late(budget_ms));
        }
    }
    if Instant::now() >= deadline {
        return Err(Refusal::Late(budget_ms));
    }
    let mut rest = settled.iter();
    let mut next = || match rest.next() {
        Some(Ok(grant)) => Ok(*grant),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("the store left it out".to_owned()),
    };
    let grants = faults.into_iter().map(|fault| fault.map_or_else(&mut next, Err)).collect();
    let body = serde_json::to_vec(&ReserveReply { dials, grants }).map_err(|_| Refusal::Failed)?;
    Ok(json(StatusCode::OK, body, Some(held)))
}
