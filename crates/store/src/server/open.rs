//! The open connections of a listener, and which of them leave when there are too many.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connection::Connection;

/// One of so many connections leaves at a time, so that a crowd is looked through seldom.
const PART: usize = 16;

/// The open connections of a listener, by their numbers.
#[derive(Default)]
pub struct OpenConnections(Mutex<(u64, BTreeMap<u64, Arc<Connection>>)>);

/// An open connection, until this is dropped.
pub struct Entered {
    all: Arc<OpenConnections>,
    number: u64,
}

impl OpenConnections {
    /// Adds a connection.
    pub fn enter(self: &Arc<Self>, connection: Arc<Connection>) -> Entered {
        let mut locked = self.lock();
        let (number, all) = &mut *locked;
        *number += 1;
        all.insert(*number, connection);
        Entered { all: Arc::clone(self), number: *number }
    }

    /// Closes a part of `most` connections, or fewer if the server works for the others.
    pub fn make_room(&self, most: usize) {
        let locked = self.lock();
        let order = |connection: &Arc<Connection>| {
            Some((connection.dispensable()?, connection.closed().clone()))
        };
        let mut dispensable: Vec<_> = locked.1.values().filter_map(order).collect();
        drop(locked);
        dispensable.sort_by_key(|(order, _)| *order);
        dispensable.iter().take(most.div_ceil(PART)).for_each(|(_, closed)| closed.cancel());
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Arc<Connection>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.all.lock().1.remove(&self.number);
    }
}
