//! Server-sent events for the live page: the whole picture, then its changes once a second.
//!
//! All listeners, at most [`LISTENERS`], who may see the same domains share one picture and its
//! changes. If one more comes, the oldest stream ends of the operator who has most. Without
//! listeners the server makes none. A listener that reads slowly misses events, and gets the whole
//! picture again, so nothing is kept for it. The server closes the connection of a listener that
//! reads nothing for 5 s, as it does for any other connection. A stream ends within a second after
//! the rights of its listener have changed, and all end when the server drains.

mod gzip;
mod patch;
mod picture;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use quotagate_operate::api::Top;
use quotagate_operate::watch::Pace;
use serde_json::{Map, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::picture::PictureSource;
pub use self::picture::now_ms;
use super::error::Refusal;
use super::operator::Access;
use crate::control::Control;
use crate::listeners::{LISTENERS, Published, ScopePicture};

/// How often the picture is made.
const EVERY: Duration = Duration::from_secs(1);
/// How often a stream looks whether its listener still has the same rights.
const CHECKED: Duration = Duration::from_millis(500);

/// A stream of events of one client.
struct Listener {
    control: Arc<Control>,
    published: watch::Receiver<Published>,
    access: Access,
    /// Cancelled when the server drains, or another listener takes its room.
    end: CancellationToken,
    /// Its number in [`Events`](crate::listeners::Events).
    number: u64,
    /// The number of the picture that it has.
    sent: Option<u64>,
}

/// Streams the picture and its changes from now on.
///
/// # Errors
/// If there are too many listeners, of whom each has one stream.
pub async fn serve(
    State(control): State<Arc<Control>>,
    Extension(access): Extension<Access>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let listener = Listener::new(control, access).ok_or(Refusal::Listeners(LISTENERS))?;
    let events = stream::unfold(listener, |mut listener| async move {
        let event = listener.next().await?;
        Some((Ok::<_, Infallible>(event), listener))
    });
    let response = Sse::new(events).into_response();
    Ok(if gzip::is_accepted(&headers) { gzip::compressed(response) } else { response })
}

impl Listener {
    /// `None` if there is no room.
    fn new(control: Arc<Control>, access: Access) -> Option<Self> {
        let events = &control.events;
        let mut published = events.publish.subscribe();
        let end = control.connections.draining().child_token();
        let name = access.operator.name.as_deref();
        let number = events.enter(name, &access.scope, end.clone())?;
        // It does not wait for the next picture to see the first one.
        let is_fresh = published.borrow().of(&access.scope).is_some();
        if is_fresh {
            published.mark_changed();
        } else {
            events.wanted.notify_one();
        }
        Some(Self { control, published, access, end, number, sent: None })
    }

    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            tokio::select! {
                biased;
                () = self.end.cancelled() => return None,
                changed = self.published.changed() => changed.ok()?,
                () = tokio::time::sleep(CHECKED) => {
                    if !self.access.operator.is_current() {
                        return None;
                    }
                    continue;
                }
            }
            let (number, picture) = {
                let published = self.published.borrow_and_update();
                (published.number, published.of(&self.access.scope).cloned())
            };
            // Between here and the end, nothing waits: no event follows once the token has gone.
            if !self.access.operator.is_current() {
                return None;
            }
            // It came while these were made.
            let Some(picture) = picture else { continue };
            let has_last = self.sent.is_some_and(|sent| sent + 1 == number);
            self.sent = Some(number);
            return match picture.changes {
                Some(changes) if has_last => Some(changes),
                _ => event("whole", &picture.whole),
            };
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.control.events.leave(self.number);
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
    let mut pace = Pace::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let now = control.operate.watch.calls.totals();
                pace = now.since(&std::mem::replace(&mut before, now));
            }
            // So little time has passed since the last tick that its pace would say nothing.
            () = control.events.wanted.notified() => {}
        }
        let scopes = control.events.scopes();
        let last = control.events.publish.borrow().clone();
        if !scopes.is_empty() {
            let sight = control.operate.fleet.look().await;
            let tops: Vec<Top> = scopes.iter().map(|scope| picture::top(&sight, scope)).collect();
            let listed = tops.iter().flat_map(|top| &top.fullest);
            let seen = PictureSource::now(control, &sight, &mut domains, pace, listed).await;
            let pictures = scopes.into_iter().zip(tops).map(|(scope, top)| {
                let whole = Arc::new(picture::of(&seen, &sight, &scope, top));
                let before = last.of(&scope).map(|last| patch::of(&last.whole, &whole));
                let changes = before.and_then(|changes| event("changes", &changes));
                ScopePicture { scope, whole, changes }
            });
            let (number, at) = (last.number + 1, Some(Instant::now()));
            let published = Published { number, at, pictures: pictures.collect() };
            drop(control.events.publish.send_replace(published));
        } else if last.at.is_some() {
            let published = Published { number: last.number, ..Published::default() };
            drop(control.events.publish.send_replace(published));
        }
    }
}

#[cfg(test)]
mod tests {
    use quotagate_store::server::OperatorGrant;

    use super::*;
    use crate::admin::operator::{Operator, Shown};

    fn control() -> Arc<Control> {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        Arc::new(Control::new(store, Arc::default(), None))
    }

    /// A listener without a token, which none needs.
    fn listener(control: &Arc<Control>, scope: &str) -> Listener {
        let operator = Operator {
            name: None,
            grants: vec![Arc::new(OperatorGrant::EVERYTHING)],
            shown: Shown::Nothing,
            header: None,
            peer: None,
            tokens: None,
        };
        let access = Access {
            scope: scope.parse().unwrap(),
            operator: Arc::new(operator),
            action: String::new(),
        };
        Listener::new(Arc::clone(control), access).unwrap()
    }

    /// Publishes empty pictures of these scopes.
    fn show(control: &Control, number: u64, scopes: &[&str]) {
        let pictures = scopes.iter().map(|scope| ScopePicture {
            scope: scope.parse().unwrap(),
            whole: Arc::default(),
            changes: event("changes", &Map::new()),
        });
        let (at, pictures) = (Some(Instant::now()), pictures.collect());
        drop(control.events.publish.send_replace(Published { number, at, pictures }));
    }

    #[tokio::test]
    async fn listener_that_missed_an_event_gets_the_whole_picture_again() {
        for scope in ["*", "shop"] {
            let control = control();
            let mut listener = listener(&control, scope);
            for (number, expected) in [(5, "whole"), (6, "changes"), (8, "whole"), (9, "changes")] {
                show(&control, number, &["*", "shop"]);
                let text = format!("{:?}", listener.next().await.unwrap());
                assert!(text.contains(&format!("event: {expected}")), "{number} {text}");
            }
        }
    }

    #[tokio::test]
    async fn one_picture_is_made_for_all_listeners_of_the_same_domains() {
        let control = control();
        let first = listener(&control, "shop");
        let others = [listener(&control, "shop"), listener(&control, "*")];
        assert_eq!(control.events.scopes().len(), 2);
        drop(others);
        assert_eq!(control.events.scopes(), std::slice::from_ref(&first.access.scope));
        drop(first);
        assert!(control.events.scopes().is_empty());
    }

    #[tokio::test]
    async fn no_event_follows_once_the_token_has_gone() {
        let control = control();
        let mut listener = listener(&control, "*");
        show(&control, 5, &["*"]);
        let operator =
            Operator { grants: Vec::new(), ..Operator::clone(&listener.access.operator) };
        listener.access.operator = Arc::new(operator);
        assert!(listener.next().await.is_none());
    }
}
