//! Server-sent events: a snapshot for the live page, once a second.
//!
//! All listeners, at most [`LISTENERS`], share one snapshot. Without listeners the server makes
//! none. The server closes the connection of a listener that reads nothing for 5 s, as it does for
//! any other connection. All streams end when the server drains.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream};

use super::error::Refusal;
use crate::control::Control;
use crate::listeners::LISTENERS;
use quotagate_operate::api::Snapshot;
use quotagate_operate::watch::{Pace, Wanted};

/// How often a snapshot is made.
const EVERY: Duration = Duration::from_secs(1);
/// Most partitions in each list.
const LISTED: usize = 10;

/// Streams snapshots from now on.
///
/// # Errors
/// If there are too many listeners.
pub async fn serve(
    State(control): State<Arc<Control>>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let permits = Arc::clone(&control.events.permits);
    let permit = permits.try_acquire_owned().map_err(|_| Refusal::Listeners(LISTENERS))?;
    let draining = control.connections.draining();
    let listener = (control.events.publish.subscribe(), draining, permit);
    Ok(Sse::new(stream::unfold(listener, |mut listener| async move {
        let (snapshots, draining, _) = &mut listener;
        tokio::select! {
            biased;
            () = draining.cancelled() => None,
            changed = snapshots.changed() => {
                changed.ok()?;
                let event = snapshots.borrow_and_update().clone();
                Some((Ok(event), listener))
            }
        }
    })))
}

/// Makes snapshots while there are listeners. Never returns.
pub async fn publish(control: &Control) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut domains = Vec::new();
    let mut before = control.operate.watch.calls.totals();
    loop {
        ticks.tick().await;
        let now = control.operate.watch.calls.totals();
        if control.events.publish.receiver_count() > 0 {
            let snapshot = snapshot(control, &mut domains, now.since(&before)).await;
            if let Ok(event) = Event::default().json_data(&snapshot) {
                drop(control.events.publish.send_replace(event));
            }
        }
        before = now;
    }
}

/// The current state; the calls of this process are `own`. Boards and what others saw are read for
/// at most a second, so that the page shows a backend's fault even while that fault prevents
/// reading.
async fn snapshot(control: &Control, domains: &mut Vec<String>, own: Pace) -> Snapshot {
    let operate = &control.operate;
    let (boards, sight) = tokio::join!(operate.boards.glance(domains), operate.fleet.look());
    let health = control.store.health();
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let pace = sight.pace(own);
    let in_force = sight.in_force();
    let mixed = boards.iter().filter_map(|board| {
        let documents = in_force.get(&board.domain)?.clone();
        documents.compared(&board.policies).sentence(&board.domain)
    });
    let mixed = mixed.collect();
    Snapshot {
        at_ms: u64::try_from(at.as_millis()).unwrap_or_default(),
        faults: health.faults,
        warnings: health.warnings,
        documents: sight.refused_documents(),
        mixed,
        backend: control.store.control().backend().to_owned(),
        calls_per_s: pace.per_s,
        call_ms: pace.ms,
        boards,
        rates: sight.rates(),
        top: sight.top(Wanted::default(), LISTED),
    }
}
