//! Server-sent events: a snapshot for the live page, once a second.
//!
//! All listeners, at most [`LISTENERS`], share one snapshot. Without listeners the server makes
//! none. The server closes the connection of a listener that reads nothing for 5 s, as it does for
//! any other connection. All streams end when the server drains.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::sse::{Event, Sse};
use futures_util::stream::{self, Stream};

use super::error::Refusal;
use crate::control::Control;
use crate::listeners::LISTENERS;
use quotagate_operate::api::Snapshot;

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
    let mut before = (control.metrics.totals(), Instant::now());
    loop {
        ticks.tick().await;
        let now = (control.metrics.totals(), Instant::now());
        if control.events.publish.receiver_count() > 0 {
            let snapshot = snapshot(control, &mut domains, pace(before, now)).await;
            if let Ok(event) = Event::default().json_data(&snapshot) {
                drop(control.events.publish.send_replace(event));
            }
        }
        before = now;
    }
}

/// Calls per second and the mean milliseconds of a call, if there was any, between two readings of
/// the totals: calls, and their microseconds.
fn pace(before: ((u64, u64), Instant), now: ((u64, u64), Instant)) -> (f64, Option<f64>) {
    let calls = now.0.0.saturating_sub(before.0.0) as f64;
    let micros = now.0.1.saturating_sub(before.0.1) as f64;
    // Avoids a division by zero. Ticks are a second apart.
    let seconds = now.1.saturating_duration_since(before.1).as_secs_f64().max(0.001);
    (calls / seconds, (calls > 0.0).then(|| micros / calls / 1000.0))
}

/// The current state. Boards are read for at most a second, so that the page shows a backend's
/// fault even while that fault prevents reading.
async fn snapshot(
    control: &Control,
    domains: &mut Vec<String>,
    pace: (f64, Option<f64>),
) -> Snapshot {
    let boards = control.operate.boards.glance(domains).await;
    let health = control.store.health();
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Snapshot {
        at_ms: u64::try_from(at.as_millis()).unwrap_or_default(),
        faults: health.faults,
        warnings: health.warnings,
        backend: control.store.control().backend().to_owned(),
        calls_per_s: pace.0,
        call_ms: pace.1,
        boards,
        rates: control.operate.watch.rates(),
        top: control.operate.watch.top(None, None, LISTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_is_relative_to_the_elapsed_time() {
        let before = Instant::now();
        let after = |ms| before + Duration::from_millis(ms);
        assert_eq!(pace(((10, 1000), before), ((40, 7000), after(1000))), (30.0, Some(0.2)));
        assert_eq!(pace(((10, 1000), before), ((40, 7000), after(3000))), (10.0, Some(0.2)));
        assert_eq!(pace(((10, 1000), before), ((10, 1000), before)), (0.0, None));
    }
}
