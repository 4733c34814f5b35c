//! Pauses that grow with each failure in a row.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// The pause after so many failures in a row.
pub(super) fn pause(failures: u32) -> Duration {
    match failures {
        0 => Duration::ZERO,
        _ => Duration::from_secs(1 << (failures - 1).min(6)).min(LONGEST),
    }
}

/// What has failed, and when it is tried again.
#[derive(Debug)]
pub(super) struct Retries<K>(BTreeMap<K, (u32, Instant)>);

impl<K> Default for Retries<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Retries<K> {
    /// Whether it may be tried now.
    pub(super) fn is_due(&self, key: &K) -> bool {
        self.0.get(key).is_none_or(|(_, due)| *due <= Instant::now())
    }

    /// When the next one is due that has to wait now.
    pub(super) fn next(&self) -> Option<Instant> {
        let now = Instant::now();
        self.0.values().map(|(_, due)| *due).filter(|due| *due > now).min()
    }

    pub(super) fn failed(&mut self, key: &K) {
        let failures = self.0.get(key).map_or(0, |(failures, _)| *failures).saturating_add(1);
        self.0.insert(key.clone(), (failures, Instant::now() + pause(failures)));
    }

    pub(super) fn succeeded(&mut self, key: &K) {
        self.0.remove(key);
    }

    /// Forgets all but these.
    pub(super) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.0.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_minute() {
        let seconds = [0, 1, 2, 3, 7, 1000].map(|failures| pause(failures).as_secs());
        assert_eq!(seconds, [0, 1, 2, 4, 60, 60]);
    }

    #[test]
    fn what_fails_holds_back_nothing_else() {
        let mut retries = Retries::default();
        retries.failed(&"bad");
        retries.failed(&"bad");
        assert!(!retries.is_due(&"bad") && retries.is_due(&"good"));
        assert!(retries.next().is_some_and(|due| due > Instant::now() + pause(1)));
        retries.succeeded(&"bad");
        assert!(retries.is_due(&"bad") && retries.next().is_none());
    }
}
