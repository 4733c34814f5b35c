//! Server-sent events: what the live page shows, once a second.
//!
//! One snapshot is made for all who listen, at most [`LISTENERS`], and none while nobody does. Whoever takes none for
//! 5 s is cut off as any other connection. All end when the server does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream;
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::App;
use super::reply::{Payload, Refusal, stream as streamed};
use crate::api::Snapshot;

/// Most who listen at once.
const LISTENERS: usize = 32;
/// How often a snapshot is made.
const EVERY: Duration = Duration::from_secs(1);
/// Most partitions of each list.
const LISTED: usize = 10;

/// Those who listen.
pub struct Events {
    publish: watch::Sender<Bytes>,
    places: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        let (publish, _) = watch::channel(Bytes::new());
        Self { publish, places: Arc::new(Semaphore::new(LISTENERS)) }
    }
}

/// One who listens.
struct Listener {
    snapshots: watch::Receiver<Bytes>,
    ending: CancellationToken,
    _place: OwnedSemaphorePermit,
}

/// Listens from now on.
///
/// # Errors
/// Where too many do.
pub fn serve(app: &App) -> Result<Response<Payload>, Refusal> {
    let events = &app.events;
    let place = Arc::clone(&events.places).try_acquire_owned().map_err(|_| Refusal::Listeners(LISTENERS))?;
    let listener =
        Listener { snapshots: events.publish.subscribe(), ending: app.ending.draining(), _place: place };
    let snapshots = stream::unfold(listener, |mut listener| async move {
        let Listener { snapshots, ending, .. } = &mut listener;
        tokio::select! {
            biased;
            () = ending.cancelled() => None,
            changed = snapshots.changed() => {
                changed.ok()?;
                let event = snapshots.borrow_and_update().clone();
                Some((event, listener))
            }
        }
    });
    let mut response = streamed("text/event-stream", snapshots);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

/// Makes snapshots for ever, where anybody listens.
pub async fn publish(app: &App) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut domains = Vec::new();
    let mut before = (app.metrics.totals(), Instant::now());
    loop {
        ticks.tick().await;
        let now = (app.metrics.totals(), Instant::now());
        if app.events.publish.receiver_count() > 0 {
            let snapshot = snapshot(app, &mut domains, pace(before, now)).await;
            if let Ok(json) = serde_json::to_string(&snapshot) {
                app.events.publish.send_replace(format!("data: {json}\n\n").into());
            }
        }
        before = now;
    }
}

/// Calls a second, and the milliseconds of a call, if there was any: between two moments of the totals of calls and of
/// their microseconds.
fn pace(before: ((u64, u64), Instant), now: ((u64, u64), Instant)) -> (f64, Option<f64>) {
    let calls = now.0.0.saturating_sub(before.0.0) as f64;
    let micros = now.0.1.saturating_sub(before.0.1) as f64;
    // More than it ever is, less than a division by nothing.
    let seconds = now.1.saturating_duration_since(before.1).as_secs_f64().max(0.001);
    (calls / seconds, (calls > 0.0).then(|| micros / calls / 1000.0))
}

/// What is seen now: the boards as far as they can be read within a second, for the fault must be seen that keeps them away.
async fn snapshot(app: &App, domains: &mut Vec<String>, pace: (f64, Option<f64>)) -> Snapshot {
    let boards = app.operate.glance(domains).await;
    let health = app.store.health();
    let at = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Snapshot {
        at_ms: u64::try_from(at.as_millis()).unwrap_or_default(),
        faults: health.faults,
        warnings: health.warnings,
        backend: app.store.control().backend().to_owned(),
        calls_per_s: pace.0,
        call_ms: pace.1,
        boards,
        rates: app.watch.rates(),
        top: app.watch.top(None, None, LISTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_that_of_the_time_which_has_passed() {
        let before = Instant::now();
        let after = |ms| before + Duration::from_millis(ms);
        assert_eq!(pace(((10, 1000), before), ((40, 7000), after(1000))), (30.0, Some(0.2)));
        assert_eq!(pace(((10, 1000), before), ((40, 7000), after(3000))), (10.0, Some(0.2)));
        assert_eq!(pace(((10, 1000), before), ((10, 1000), before)), (0.0, None));
    }
}
