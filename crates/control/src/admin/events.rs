//! Server-sent events: a snapshot for the live page, once a second.
//!
//! All listeners, at most [`LISTENERS`], share one snapshot. Without listeners the server makes
//! none. A listener that may see some domains gets the part of them. The server closes the
//! connection of a listener that reads nothing for 5 s, as it does for any other connection. A
//! stream ends within a second after the rights of its listener have changed, and all end when the
//! server drains.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream};
use quotagate_store::server::DomainScope;

use super::error::Refusal;
use super::operator::Access;
use crate::control::Control;
use crate::listeners::{LISTENERS, Published};
use quotagate_operate::FleetSight;
use quotagate_operate::api::{Board, Snapshot};
use quotagate_operate::watch::{Pace, Wanted};

/// How often a snapshot is made.
const EVERY: Duration = Duration::from_secs(1);
/// Most partitions in each list.
const LISTED: usize = 10;
/// How often a stream looks whether its listener still has the same rights.
const CHECKED: Duration = Duration::from_millis(500);

/// Streams snapshots from now on.
///
/// # Errors
/// If there are too many listeners.
pub async fn serve(
    State(control): State<Arc<Control>>,
    Extension(access): Extension<Access>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Refusal> {
    let permits = Arc::clone(&control.events.permits);
    let permit = permits.try_acquire_owned().map_err(|_| Refusal::Listeners(LISTENERS))?;
    let draining = control.connections.draining();
    let snapshots = control.events.publish.subscribe();
    let listener = (control, snapshots, access, draining, permit);
    Ok(Sse::new(stream::unfold(listener, |mut listener| async move {
        let (control, snapshots, access, draining, _) = &mut listener;
        loop {
            tokio::select! {
                biased;
                () = draining.cancelled() => return None,
                changed = snapshots.changed() => changed.ok()?,
                () = tokio::time::sleep(CHECKED) => {
                    if !access.operator.is_current() {
                        return None;
                    }
                    continue;
                }
            }
            if !access.operator.is_current() {
                return None;
            }
            let published = snapshots.borrow_and_update().clone();
            let event = match &access.scope {
                DomainScope::All => published.event,
                scope => part(control, &published.snapshot, scope).await?,
            };
            return Some((Ok(event), listener));
        }
    })))
}

/// The event for a listener that may see these domains.
async fn part(control: &Control, whole: &Snapshot, scope: &DomainScope) -> Option<Event> {
    let sight = control.operate.fleet.look().await;
    // Every field is named, so that a new one is not shown to those who may not see it.
    let Snapshot {
        at_ms,
        faults,
        warnings,
        documents: _,
        mixed: _,
        backend,
        calls_per_s,
        call_ms,
        boards,
        rates,
        top: _,
    } = whole.clone();
    let boards: Vec<_> = boards.into_iter().filter(|board| scope.has(&board.domain)).collect();
    let part = Snapshot {
        at_ms,
        faults,
        warnings,
        documents: sight.refused_documents(scope),
        mixed: mixed(&sight, &boards),
        backend,
        calls_per_s,
        call_ms,
        boards,
        rates: rates.into_iter().filter(|rates| scope.has(&rates.domain)).collect(),
        top: sight.top(Wanted { scope: Some(scope), ..Wanted::default() }, LISTED),
    };
    Event::default().json_data(&part).ok()
}

/// A sentence for each domain whose proxies have different documents.
fn mixed(sight: &FleetSight<'_>, boards: &[Board]) -> Vec<String> {
    let in_force = sight.in_force();
    let mixed = boards.iter().filter_map(|board| {
        let documents = in_force.get(&board.domain)?.clone();
        documents.compared(&board.policies).sentence(&board.domain)
    });
    mixed.collect()
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
                let published = Published { event, snapshot: Arc::new(snapshot) };
                drop(control.events.publish.send_replace(published));
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
    let mixed = mixed(&sight, &boards);
    Snapshot {
        at_ms: u64::try_from(at.as_millis()).unwrap_or_default(),
        faults: health.faults,
        warnings: health.warnings,
        documents: sight.refused_documents(&DomainScope::All),
        mixed,
        backend: control.store.control().backend().to_owned(),
        calls_per_s: pace.per_s,
        call_ms: pace.ms,
        boards,
        rates: sight.rates(),
        top: sight.top(Wanted::default(), LISTED),
    }
}
