//! A bounded map of counters to values, where each entry expires at its own time. In a full map,
//! the entry that expires first makes room.

use std::collections::{BTreeSet, HashMap};

use crate::evaluate::Counter;
use crate::time::Monotonic;

/// Values by counter, each until its own end.
#[derive(Clone, Debug)]
pub(crate) struct Expiring<V> {
    values: HashMap<Counter, (Monotonic, V)>,
    by_end: BTreeSet<(Monotonic, Counter)>,
    most: usize,
}

impl<V> Expiring<V> {
    /// Room for at most `most` counters.
    pub(crate) fn new(most: usize) -> Self {
        Self { values: HashMap::new(), by_end: BTreeSet::new(), most }
    }

    /// The value of `counter` and its end, unless it has expired.
    pub(crate) fn get(&self, counter: &Counter, now: Monotonic) -> Option<(&V, Monotonic)> {
        let (ends, value) = self.values.get(counter)?;
        (*ends > now).then_some((value, *ends))
    }

    /// The value of `counter`, unless it has expired.
    pub(crate) fn get_mut(&mut self, counter: &Counter, now: Monotonic) -> Option<&mut V> {
        let (ends, value) = self.values.get_mut(counter)?;
        (*ends > now).then_some(value)
    }

    /// Sets the value of `counter` until `ends`.
    pub(crate) fn put(&mut self, counter: &Counter, value: V, ends: Monotonic, now: Monotonic) {
        self.forget(counter);
        self.expire(now);
        if self.values.len() >= self.most {
            self.drop_first();
        }
        self.values.insert(counter.clone(), (ends, value));
        self.by_end.insert((ends, counter.clone()));
    }

    /// Removes the value of `counter`.
    pub(crate) fn forget(&mut self, counter: &Counter) {
        // Mostly, no counter is known, and then none needs a hash.
        if self.values.is_empty() {
            return;
        }
        if let Some((counter, (ends, _))) = self.values.remove_entry(counter) {
            self.by_end.remove(&(ends, counter));
        }
    }

    /// Removes what has expired.
    pub(crate) fn expire(&mut self, now: Monotonic) {
        while self.by_end.first().is_some_and(|(ends, _)| *ends <= now) {
            self.drop_first();
        }
    }

    /// How many counters have values.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        assert_eq!(self.values.len(), self.by_end.len());
        self.values.len()
    }

    fn drop_first(&mut self) {
        if let Some((_, counter)) = self.by_end.pop_first() {
            self.values.remove(&counter);
        }
    }
}
