//! Who listens to server-sent events, and the last of these.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::response::sse::Event;
use quotagate_store::server::DomainScope;
use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

/// Most listeners at once.
pub const LISTENERS: usize = 32;

/// What the live page shows to those who may see some domains.
#[derive(Clone)]
pub struct ScopePicture {
    /// The domains.
    pub scope: DomainScope,
    /// All of it.
    pub whole: Arc<Map<String, Value>>,
    /// How it differs from the one before; `None` if there was none.
    pub changes: Option<Event>,
}

/// What the live page shows to all who listen.
#[derive(Clone, Default)]
pub struct Published {
    /// The next one has the next number.
    pub number: u64,
    /// When it was made; `None` if there is none.
    pub at: Option<Instant>,
    /// One for each of their scopes.
    pub pictures: Vec<ScopePicture>,
}

impl Published {
    /// The picture for those who may see these domains.
    pub fn of(&self, scope: &DomainScope) -> Option<&ScopePicture> {
        self.pictures.iter().find(|picture| picture.scope == *scope)
    }
}

/// The stream of events: the last one, and who listens.
pub struct Events {
    pub publish: watch::Sender<Published>,
    /// A listener has come for whom there is no picture.
    pub wanted: Notify,
    listeners: Mutex<Listeners>,
}

/// The listeners, at most [`LISTENERS`].
#[derive(Default)]
struct Listeners {
    /// The oldest first.
    all: Vec<ListenerEntry>,
    last: u64,
}

/// A listener.
struct ListenerEntry {
    number: u64,
    /// The name of the operator. Operators without one count as one.
    name: Option<String>,
    /// The domains that it may see.
    scope: DomainScope,
    /// Ends its stream.
    end: CancellationToken,
}

impl Default for Events {
    fn default() -> Self {
        let (publish, _) = watch::channel(Published::default());
        Self { publish, wanted: Notify::new(), listeners: Mutex::default() }
    }
}

impl Events {
    /// Adds a listener who may see these domains, and returns its number. If there are too many,
    /// the oldest one ends of the operator who has most, with this one. `None`: each has only one.
    pub fn enter(
        &self,
        name: Option<&str>,
        scope: &DomainScope,
        end: CancellationToken,
    ) -> Option<u64> {
        let mut listeners = self.lock();
        let Listeners { all, last } = &mut *listeners;
        if all.len() >= LISTENERS {
            let count =
                |of: Option<&str>| all.iter().filter(|one| one.name.as_deref() == of).count();
            let most = all.iter().map(|one| count(one.name.as_deref())).max().unwrap_or_default();
            let own = count(name);
            let is_own = own > 0 && own.saturating_add(1) >= most;
            let oldest = all.iter().position(|one| match is_own {
                true => one.name.as_deref() == name,
                false => most > 1 && count(one.name.as_deref()) == most,
            })?;
            all.remove(oldest).end.cancel();
        }
        *last = last.saturating_add(1);
        let (number, name) = (*last, name.map(str::to_owned));
        all.push(ListenerEntry { number, name, scope: scope.clone(), end });
        Some(number)
    }

    /// Removes the one with this number, unless it was ended.
    pub fn leave(&self, number: u64) {
        self.lock().all.retain(|one| one.number != number);
    }

    /// The scopes of all listeners, each once.
    pub fn scopes(&self) -> Vec<DomainScope> {
        let mut all: Vec<DomainScope> = Vec::new();
        for ListenerEntry { scope, .. } in &self.lock().all {
            if !all.contains(scope) {
                all.push(scope.clone());
            }
        }
        all
    }

    /// No panic can happen while it is locked.
    fn lock(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the stream of each of these has ended.
    fn ended(ends: &[CancellationToken]) -> Vec<bool> {
        ends.iter().map(CancellationToken::is_cancelled).collect()
    }

    #[test]
    fn oldest_listener_of_who_has_most_makes_room() {
        let events = Events::default();
        let enter = |name: &str| {
            let end = CancellationToken::new();
            let number = events.enter(Some(name), &DomainScope::All, end.clone());
            (number, end)
        };
        let greedy: Vec<_> = (0..LISTENERS).map(|_| enter("greedy").1).collect();
        let ann = enter("ann");
        assert!(ann.0.is_some());
        let of_greedy =
            |count: usize| ended(&greedy).iter().filter(|ended| **ended).count() == count;
        assert!(of_greedy(1) && greedy[0].is_cancelled(), "the oldest of 32");
        let again = enter("greedy");
        assert!(again.0.is_some() && of_greedy(2) && greedy[1].is_cancelled(), "their own");
        assert!(!ann.1.is_cancelled() && !again.1.is_cancelled());
        assert_eq!(events.lock().all.len(), LISTENERS);
        events.leave(ann.0.unwrap());
        assert_eq!(events.lock().all.len(), LISTENERS - 1);
    }

    #[test]
    fn nobody_makes_room_while_each_has_one_listener() {
        let events = Events::default();
        let enter =
            |name: String| events.enter(Some(&name), &DomainScope::All, CancellationToken::new());
        for number in 0..LISTENERS {
            assert!(enter(format!("n{number}")).is_some());
        }
        assert!(enter("late".to_owned()).is_none());
        assert!(enter("n0".to_owned()).is_some(), "of their own");
    }
}
