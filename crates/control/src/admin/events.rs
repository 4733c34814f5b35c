//! Server-sent events for the live page: the whole picture, then its changes once a second.
//!
//! All listeners, at most [`LISTENERS`], share one picture and its changes. Without listeners the
//! server makes none. A listener that may see some domains gets the part of them. A listener that
//! reads slowly misses events, and gets the whole picture again. So nothing is kept for it. The
//! server closes the connection of a listener that reads nothing for 5 s, as it does for any other
//! connection. A stream ends within a second after the rights of its listener have changed, and all
//! end when the server drains.

mod gzip;
mod patch;
mod picture;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use quotagate_store::server::DomainScope;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

pub use self::picture::{Seen, now_ms};
use super::error::Refusal;
use super::operator::Access;
use crate::control::Control;
use crate::listeners::{LISTENERS, Published};

/// How often the picture is made.
const EVERY: Duration = Duration::from_secs(1);
/// How often a stream looks whether its listener still has the same rights.
const CHECKED: Duration = Duration::from_millis(500);

/// One who listens.
struct Listener {
    control: Arc<Control>,
    published: watch::Receiver<Published>,
    access: Access,
    draining: CancellationToken,
    sent: Sent,
    _permit: OwnedSemaphorePermit,
}

/// What a listener has.
enum Sent {
    Nothing,
    /// The whole picture with this number.
    Whole(u64),
    /// The part of the domains that it may see.
    Part(Map<String, Value>),
}

/// Streams the picture and its changes from now on.
///
/// # Errors
/// If there are too many listeners.
pub async fn serve(
    State(control): State<Arc<Control>>,
    Extension(access): Extension<Access>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let permits = Arc::clone(&control.events.permits);
    let permit = permits.try_acquire_owned().map_err(|_| Refusal::Listeners(LISTENERS))?;
    let (draining, sent) = (control.connections.draining(), Sent::Nothing);
    let mut published = control.events.publish.subscribe();
    // Nobody waits for the next picture to see the first one.
    let is_fresh = published.borrow().at.is_some_and(|at| at.elapsed() < EVERY);
    if is_fresh {
        published.mark_changed();
    } else {
        control.events.wanted.notify_one();
    }
    let listener = Listener { control, published, access, draining, sent, _permit: permit };
    let events = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    let response = Sse::new(events).into_response();
    Ok(if gzip::is_accepted(&headers) { gzip::compressed(response) } else { response })
}

impl Listener {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                biased;
                () = self.draining.cancelled() => return None,
                changed = self.published.changed() => changed.ok()?,
                () = tokio::time::sleep(CHECKED) => {
                    if !self.access.operator.is_current() {
                        return None;
                    }
                    continue;
                }
            }
            let published = self.published.borrow_and_update().clone();
            // There was no listener for a moment.
            if published.at.is_none() {
                continue;
            }
            let event = self.event(published).await;
            // The rights may have changed while the event was made.
            return event.filter(|_| self.access.operator.is_current());
        }
    }

    async fn event(&mut self, published: Published) -> Option<Event> {
        let scope = &self.access.scope;
        if *scope == DomainScope::All {
            let before = std::mem::replace(&mut self.sent, Sent::Whole(published.number));
            return match before {
                Sent::Whole(number) if number + 1 == published.number => Some(published.changes),
                _ => event("whole", &published.whole),
            };
        }
        let sight = self.control.operate.fleet.look().await;
        let part = picture::of(&published.seen, &sight, scope);
        let event = match &self.sent {
            Sent::Part(before) => event("changes", &patch::of(before, &part)),
            Sent::Nothing | Sent::Whole(_) => event("whole", &part),
        };
        self.sent = Sent::Part(part);
        event
    }
}

fn event(name: &str, data: &Map<String, Value>) -> Option<Event> {
    Event::default().event(name).json_data(data).ok()
}

/// Makes pictures while there are listeners. Never returns.
pub async fn publish(control: &Control) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut domains = Vec::new();
    let mut before = control.operate.watch.calls.totals();
    let events = &control.events.publish;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = control.events.wanted.notified() => {}
        }
        let now = control.operate.watch.calls.totals();
        let last = events.borrow().clone();
        if events.receiver_count() > 0 {
            let sight = control.operate.fleet.look().await;
            let seen = Seen::now(control, &sight, &mut domains, now.since(&before)).await;
            let whole = picture::of(&seen, &sight, &DomainScope::All);
            if let Some(changes) = event("changes", &patch::of(&last.whole, &whole)) {
                let (seen, whole) = (Arc::new(seen), Arc::new(whole));
                let (number, at) = (last.number + 1, Some(now.at));
                drop(events.send_replace(Published { number, at, seen, whole, changes }));
            }
        } else if last.at.is_some() {
            drop(events.send_replace(Published { number: last.number, ..Published::default() }));
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn listener(control: &Arc<Control>, scope: DomainScope, sent: Sent) -> Listener {
        let access = Access { scope, ..Access::new(&Request::new(())) };
        let (published, draining) =
            (control.events.publish.subscribe(), control.connections.draining());
        let _permit = Arc::clone(&control.events.permits).try_acquire_owned().unwrap();
        Listener { control: Arc::clone(control), published, access, draining, sent, _permit }
    }

    /// The text of the next event of a listener, when this picture is the last one.
    async fn text(listener: &mut Listener, number: u64) -> String {
        let changes = event("changes", &Map::new()).unwrap();
        let published = Published { number, changes, ..Published::default() };
        format!("{:?}", listener.event(published).await.unwrap())
    }

    #[tokio::test]
    async fn slow_listener_gets_the_whole_picture_again() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let control = Arc::new(Control::new(store, Arc::default(), None));
        let mut listener = listener(&control, DomainScope::All, Sent::Nothing);
        assert!(text(&mut listener, 5).await.contains("event: whole"));
        assert!(text(&mut listener, 6).await.contains("event: changes"));
        assert!(text(&mut listener, 8).await.contains("event: whole"), "it missed number 7");
    }

    #[tokio::test]
    async fn listener_of_some_domains_gets_the_changes_of_its_part() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let control = Arc::new(Control::new(store, Arc::default(), None));
        let mut listener = listener(&control, "shop".parse().unwrap(), Sent::Nothing);
        for (number, name) in [(5, "whole"), (6, "changes"), (8, "changes")] {
            let text = text(&mut listener, number).await;
            assert!(text.contains(&format!("event: {name}")), "{text}");
        }
    }

    #[tokio::test]
    async fn no_event_follows_once_the_token_has_gone() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let control = Arc::new(Control::new(store, Arc::default(), None));
        let mut listener = listener(&control, DomainScope::All, Sent::Nothing);
        let published = Published { at: Some(std::time::Instant::now()), ..Published::default() };
        control.events.publish.send_replace(published);
        // An operator of whom nothing is known may do nothing.
        assert!(listener.next().await.is_none());
    }
}
