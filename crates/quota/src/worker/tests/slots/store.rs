//! What a store does with what workers say of their slots, in a few lines. The tests of the store
//! compare it with the memory store.

use std::collections::{BTreeMap, HashMap};

use quotagate_protocol::{Grant, Kind, Reservation};

/// The fields of each counter's hash, by worker.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelStore {
    hashes: HashMap<String, BTreeMap<String, Field>>,
    used: HashMap<String, u64>,
}

#[derive(Clone, Debug)]
struct Field {
    held: u64,
    serial: u64,
    expires: u64,
    waiting: u64,
    /// What it asked for last and did not get.
    missed: u64,
    /// The limit that it named.
    limit: u64,
    since: u64,
    renewed: u64,
    /// When it was last granted slots; 0 for never.
    granted: u64,
    /// The cost of the first request that waits.
    first: u64,
}

impl ModelStore {
    /// Carries out one reservation. Quotas have one window that never ends.
    pub(super) fn reserve(&mut self, asked: &Reservation, now: u64) -> Grant {
        let Reservation { quota, want, min, spare, .. } = *asked;
        let key = asked.key.to_string();
        let Some(holding) = asked.holding.as_ref().filter(|_| asked.kind == Kind::InFlight) else {
            let used = self.used.entry(key).or_default();
            let free = quota.saturating_sub(*used);
            let granted = if free < min { 0 } else { (want + spare).min(free) };
            *used += granted;
            let (used, reset_ms) = (*used, 60_000);
            return Grant { granted, used, quota, reset_ms, window: 9, ..Grant::default() };
        };
        let fields = self.hashes.entry(key).or_default();
        fields.retain(|_, field| field.expires > now);
        let worker = holding.worker.to_string();
        let own = fields.remove(&worker);
        let others: u64 = fields.values().map(|field| field.held).sum();
        let claims = || fields.values().filter(|of| now - of.renewed <= 1_000);
        let grant = Grant {
            quota,
            window: holding.serial,
            waiting: claims().map(|field| field.waiting.max(field.missed)).sum(),
            ..Grant::default()
        };
        if let Some(own) = own.clone().filter(|own| own.serial >= holding.serial) {
            let used = others + own.held;
            fields.insert(worker, own);
            return Grant { used, ..grant };
        }
        let since = now.saturating_sub(holding.waited_ms);
        let last_granted = own.map_or(0, |own| own.granted);
        let patience = if holding.max_wait_ms > 0 { 250.min(holding.max_wait_ms / 3) } else { 250 };
        let ahead = claims().filter(|field| {
            let waits = holding.max_wait_ms == 0 || now < field.since + holding.max_wait_ms;
            let passed_over = field.since.max(field.granted) + patience < since.max(last_granted);
            field.limit >= quota && waits && passed_over
        });
        let ahead: u64 = ahead.map(|field| field.waiting.min(field.first)).sum();
        let free = quota.saturating_sub(others + holding.held + ahead);
        let granted = if free < min { 0 } else { want.min(free) };
        let field = Field {
            held: holding.held + granted,
            serial: holding.serial,
            expires: now + 9_000,
            waiting: if min > quota { 0 } else { holding.waiting.saturating_sub(granted) },
            missed: want - granted,
            limit: quota,
            since,
            renewed: now,
            granted: if granted > 0 { now } else { last_granted },
            first: min,
        };
        let used = others + field.held;
        fields.insert(worker, field);
        Grant { granted, used, reset_ms: 9_000, ..grant }
    }

    /// What workers hold of a counter.
    pub(super) fn held(&self, key: &str, now: u64) -> u64 {
        let live = |field: &&Field| field.expires > now;
        let fields = self.hashes.get(key).into_iter().flat_map(|fields| fields.values());
        fields.filter(live).map(|field| field.held).sum()
    }

    /// What the worker whose name ends like this holds of a counter. `None`: it has no field.
    pub(super) fn held_by(&self, key: &str, name_ends: &str, now: u64) -> Option<u64> {
        let mut fields = self.hashes.get(key)?.iter();
        let own = fields.find(|(name, field)| name.ends_with(name_ends) && field.expires > now);
        own.map(|(_, field)| field.held)
    }

    /// Redis starts empty.
    pub(super) fn forget(&mut self) {
        self.hashes.clear();
    }
}
