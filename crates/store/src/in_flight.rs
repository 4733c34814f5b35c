//! The slots of a concurrency limit: what each worker said of those that it holds.
//!
//! The script in Redis does the same on a hash with one field for each worker: six doubles of eight
//! bytes and four whole numbers of four bytes, little-endian. Moments are of the store's clock, in
//! milliseconds since the Unix epoch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{Grant, HOLDING, Holding, MAX_UNITS};

use crate::control::{MAX_FIELDS, Released, SlotHolder, SlotsState};
use crate::store::{CheckedReservation, Reserved, StoreError};

/// How long requests wait for slots without their worker saying so again.
const CLAIM: Duration = Duration::from_secs(1);
/// A slot is left for another worker only if that one has waited in vain for this much longer.
/// Without this margin, a slot would be idle until the other worker asks, even if that one is ahead
/// by a millisecond.
const PATIENCE: Duration = Duration::from_millis(250);
/// Most workers that hold slots of a counter.
const MAX_WORKERS: usize = 4096;
/// The most of a whole number in a field, and what stands for "never".
const NEVER: u64 = u32::MAX as u64;

/// What one worker said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerField {
    /// The serial of its last message.
    pub serial: u64,
    /// The slots that it holds, with those that it was granted.
    pub held: u64,
    /// When it no longer holds them, unless it says so again.
    pub ends_ms: u64,
    /// The slots that its requests wait for.
    pub waiting: u64,
    /// The slots that it asked for last and did not get.
    pub missed: u64,
    /// The limit that it named, if that is not the policy's.
    pub own_quota: Option<u64>,
    /// For how long the oldest of its requests had waited when it said so.
    pub waited_ms: u64,
    /// For how long its longest live request had held a slot then.
    pub longest_ms: u64,
    /// How long before that it had been granted slots.
    pub granted_ms: u64,
    /// The cost of the first request that waits.
    pub first: u64,
}

impl WorkerField {
    /// Reads what Redis holds. `None` if it is something else.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (doubles, ages) = bytes.split_at_checked(48)?;
        let (doubles, []) = doubles.as_chunks() else { return None };
        let (ages, []) = ages.as_chunks() else { return None };
        let doubles: &[[u8; 8]; 6] = doubles.try_into().ok()?;
        let ages: &[[u8; 4]; 4] = ages.try_into().ok()?;
        let [serial, held, ends, waiting, missed, own] = doubles.map(f64::from_le_bytes);
        let [waited_ms, longest_ms, granted_ms, first] =
            ages.map(|age| u64::from(u32::from_le_bytes(age)));
        let unit =
            |number: f64| (0.0..=MAX_UNITS as f64).contains(&number).then_some(number as u64);
        // Negative numbers and NaN become 0.
        let time = |number: f64| (number as u64).min(MAX_UNITS);
        // The script does not let such a field expire at once.
        let ends = if ends.is_nan() { MAX_UNITS as f64 } else { ends };
        Some(Self {
            serial: time(serial),
            held: unit(held)?,
            ends_ms: time(ends),
            waiting: unit(waiting)?,
            missed: unit(missed)?,
            own_quota: unit(own),
            waited_ms,
            longest_ms,
            granted_ms,
            first,
        })
    }

    /// When the worker said so.
    const fn at_ms(&self) -> u64 {
        self.ends_ms.saturating_sub(millis(HOLDING))
    }

    /// Since when the oldest of its requests waits.
    const fn since_ms(&self) -> u64 {
        self.at_ms().saturating_sub(self.waited_ms)
    }

    /// Since when it has waited in vain: since its oldest request waits, or since it was last
    /// granted slots after that. This one number of each worker decides for whom slots are left, so
    /// no two workers can wait for each other.
    fn in_vain_since_ms(&self) -> u64 {
        self.since_ms().max(self.at_ms().saturating_sub(self.granted_ms))
    }

    /// Whether the script wrote it in place of a field that it could not read, which counts as all
    /// slots until it expires. The serials of workers begin with 1.
    pub const fn is_placeholder(&self) -> bool {
        self.serial == 0
    }

    /// The slots that it holds at `now`.
    pub fn held_at(&self, now: Duration) -> u64 {
        if self.ends_ms > millis(now) { self.held } else { 0 }
    }

    /// What it asked for within the last second and did not get.
    const fn asks(&self, ends_ms: u64) -> u64 {
        let is_recent = self.ends_ms.saturating_add(millis(CLAIM)) >= ends_ms;
        let asked = if self.waiting > self.missed { self.waiting } else { self.missed };
        if is_recent { asked } else { 0 }
    }
}

/// The slots of a counter, by worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    workers: BTreeMap<Arc<str>, WorkerField>,
    /// Fields in Redis that something else wrote, each as if it held all slots.
    unreadable: u64,
}

impl Slots {
    /// Reads the fields that Redis holds, by their names.
    pub fn parse<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut slots = Self::default();
        for (name, value) in fields {
            match WorkerField::parse(value) {
                Some(field) => {
                    let name = String::from_utf8_lossy(name);
                    slots.workers.insert(Arc::from(&*name), field);
                }
                None => slots.unreadable = slots.unreadable.saturating_add(1),
            }
        }
        slots
    }

    /// Replaces what is known of a worker, and grants it the slots that are left for it.
    ///
    /// # Errors
    /// When [`MAX_WORKERS`] others hold slots.
    pub fn reserve(
        &mut self,
        reservation: &CheckedReservation,
        holding: &Holding,
        quota: u64,
        now: Duration,
    ) -> Reserved {
        let Holding { worker, serial, held, waiting, waited_ms, max_wait_ms, longest_ms } = holding;
        let (now_ms, ends_ms) = (millis(now), millis(now.saturating_add(HOLDING)));
        let mut expired = 0_u64;
        self.workers.retain(|_, field| {
            let lives = field.ends_ms > now_ms;
            if !lives {
                expired = expired.saturating_add(field.held).min(MAX_UNITS);
            }
            lives
        });
        // The clock may have gone back.
        self.workers.values_mut().for_each(|field| field.ends_ms = field.ends_ms.min(ends_ms));
        let (waited_ms, longest_ms) = (NEVER.min(*waited_ms), NEVER.min(*longest_ms));
        let since_ms = now_ms.saturating_sub(waited_ms);
        // Requests that arrived before that wait no longer.
        let oldest_ms = (*max_wait_ms > 0).then(|| now_ms.checked_sub(*max_wait_ms)).flatten();
        let own_quota = reservation.own_quota.then(|| reservation.named_quota());
        let own = self.workers.get(worker);
        let granted_ms = own.map_or(NEVER, |own| {
            NEVER.min(own.granted_ms.saturating_add(now_ms.saturating_sub(own.at_ms())))
        });
        let in_vain_since_ms = since_ms.max(now_ms.saturating_sub(granted_ms));
        let patience_ms = match *max_wait_ms {
            0 => millis(PATIENCE),
            max_wait_ms => millis(PATIENCE).min(max_wait_ms / 3),
        };
        let (mut others, mut ahead, mut asked) = (0_u64, 0_u64, 0_u64);
        for (_, field) in self.workers.iter().filter(|(name, _)| *name != worker) {
            others = others.saturating_add(field.held);
            asked = asked.saturating_add(field.asks(ends_ms));
            // Who waits for a lower limit holds up nobody with a higher one.
            let claims = field.asks(ends_ms) > 0
                && oldest_ms.is_none_or(|it| it < field.since_ms())
                && field.own_quota >= own_quota;
            if claims && field.in_vain_since_ms().saturating_add(patience_ms) < in_vain_since_ms {
                ahead = ahead.saturating_add(field.waiting.min(field.first));
            }
        }
        let waiting_others = asked.min(MAX_UNITS);
        let sum = |held: u64| others.saturating_add(held).min(MAX_UNITS);
        let grant = |granted, used, reset_ms| Grant {
            granted,
            used,
            quota,
            reset_ms,
            window: *serial,
            window_s: 0,
            waiting: waiting_others,
            expired,
        };
        if let Some(newer) = self.workers.get(worker).filter(|field| field.serial >= *serial) {
            return Ok(grant(0, sum(newer.held), 0));
        }
        if self.workers.len() >= MAX_WORKERS && !self.workers.contains_key(worker) {
            let why = "ERR too many workers hold slots of the counter";
            return Err(StoreError::Refused(why.to_owned()));
        }
        let free = quota.saturating_sub(others).saturating_sub(*held).saturating_sub(ahead);
        let granted = if free < reservation.min { 0 } else { reservation.want.min(free) };
        let taken = held.saturating_add(granted);
        let field = WorkerField {
            serial: *serial,
            held: taken,
            ends_ms,
            // Requests that never fit hold up nobody.
            waiting: if reservation.min > quota { 0 } else { waiting.saturating_sub(granted) },
            missed: reservation.want.saturating_sub(granted),
            own_quota,
            waited_ms,
            longest_ms,
            granted_ms: if granted > 0 { 0 } else { granted_ms },
            first: NEVER.min(reservation.min),
        };
        self.workers.insert(Arc::clone(worker), field);
        Ok(grant(granted, sum(taken), millis(HOLDING)))
    }

    /// The slots that are held at `now`.
    pub fn held(&self, now: Duration) -> u64 {
        if self.unreadable(now) > 0 {
            return MAX_UNITS;
        }
        let held = self.live(now).map(|(_, field)| field.held);
        held.fold(0_u64, u64::saturating_add).min(MAX_UNITS)
    }

    /// When the last of them expires.
    pub fn end(&self) -> Duration {
        let last = self.workers.values().map(|field| field.ends_ms).max();
        Duration::from_millis(last.unwrap_or_default())
    }

    /// Whether a slot is held at `now`, or a request waits for one.
    pub fn is_in_use(&self, now: Duration) -> bool {
        let in_use = |field: &WorkerField| field.held > 0 || field.waiting > 0;
        self.unreadable(now) > 0 || self.live(now).any(|(_, field)| in_use(field))
    }

    /// The limit that was named last, if that was not the policy's.
    pub fn own_quota(&self, now: Duration) -> Option<u64> {
        self.live(now).max_by_key(|(_, field)| field.ends_ms)?.1.own_quota
    }

    /// Who holds slots at `now`, or waits for them.
    pub fn state(&self, now: Duration) -> SlotsState {
        let (now_ms, ends_ms) = (millis(now), millis(now.saturating_add(HOLDING)));
        let holder = |(worker, field): (&Arc<str>, &WorkerField)| {
            let waiting = if field.asks(ends_ms) > 0 { field.waiting } else { 0 };
            let age_ms = now_ms.saturating_sub(field.at_ms());
            let since = |ms: u64, count: u64| if count > 0 { ms.saturating_add(age_ms) } else { 0 };
            SlotHolder {
                worker: Arc::clone(worker),
                held: field.held,
                longest_ms: since(field.longest_ms, field.held),
                waiting,
                waited_ms: since(field.waited_ms, waiting),
                ends_ms: field.ends_ms.saturating_sub(now_ms),
                own_quota: field.own_quota,
            }
        };
        let mut holders: Vec<_> = self.live(now).map(holder).collect();
        holders.retain(|holder| holder.held > 0 || holder.waiting > 0);
        let more = holders.len().saturating_sub(MAX_FIELDS);
        holders.truncate(MAX_FIELDS);
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        SlotsState { now, holders, left_out: self.unreadable(now).saturating_add(more) }
    }

    /// Forgets workers of this name, or whose names begin with it and a dot; all if it is `None`.
    pub fn release(&mut self, workers: Option<&str>, now: Duration) -> Released {
        let mut released = Released::default();
        let now_ms = millis(now);
        self.workers.retain(|worker, field| {
            let is_meant = workers.is_none_or(|of| is_worker_of(worker, of));
            if is_meant && field.ends_ms > now_ms && field.held > 0 {
                released.add(field.held);
            }
            !is_meant
        });
        released
    }

    /// What the workers said that have not expired at `now`, by their names.
    fn live(&self, now: Duration) -> impl Iterator<Item = (&Arc<str>, &WorkerField)> {
        let now_ms = millis(now);
        let is_live = move |field: &WorkerField| field.ends_ms > now_ms && !field.is_placeholder();
        self.workers.iter().filter(move |(_, field)| is_live(field))
    }

    /// How many fields cannot be read, with the placeholders of such fields that have not expired
    /// at `now`.
    fn unreadable(&self, now: Duration) -> u64 {
        let now_ms = millis(now);
        let is_one = |field: &&WorkerField| field.ends_ms > now_ms && field.is_placeholder();
        let placeholders = self.workers.values().filter(is_one).count();
        self.unreadable.saturating_add(u64::try_from(placeholders).unwrap_or(u64::MAX))
    }
}

/// Whether a worker has this name, or one that begins with it and a dot.
fn is_worker_of(worker: &str, name: &str) -> bool {
    worker.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

const fn millis(time: Duration) -> u64 {
    let millis = time.as_millis();
    if millis > MAX_UNITS as u128 { MAX_UNITS } else { millis as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(doubles: [f64; 6], ages: [u32; 4]) -> Vec<u8> {
        let ages = ages.iter().flat_map(|age| age.to_le_bytes());
        doubles.iter().flat_map(|number| number.to_le_bytes()).chain(ages).collect()
    }

    #[test]
    fn field_is_read_as_the_script_wrote_it() {
        let read = WorkerField::parse(&field([7.0, 3.0, 19e3, 2.0, 1.0, -1.0], [4, 5, 6, 8]));
        let expected = WorkerField {
            serial: 7,
            held: 3,
            ends_ms: 19_000,
            waiting: 2,
            missed: 1,
            own_quota: None,
            waited_ms: 4,
            longest_ms: 5,
            granted_ms: 6,
            first: 8,
        };
        assert_eq!(read, Some(expected));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic_and_count_as_all_slots_if_they_are_no_field() {
        let nan = field([f64::NAN; 6], [0; 4]);
        let negative = field([1.0, -1.0, 1e15, 0.0, 0.0, -1.0], [0; 4]);
        let now = Duration::from_secs(1);
        for bytes in [&b""[..], b"3", &[0; 63], &[255; 64], &[0; 72], &nan, &negative] {
            let slots = Slots::parse([(&b"w"[..], bytes)].into_iter());
            assert_eq!((slots.held(now), slots.state(now).left_out), (MAX_UNITS, 1), "{bytes:?}");
        }
        let far = field([f64::INFINITY, 1.0, f64::NAN, 0.0, 0.0, f64::NAN], [u32::MAX; 4]);
        let slots = Slots::parse([(&b"\xff"[..], &far[..])].into_iter());
        assert_eq!((slots.held(now), slots.state(now).left_out), (1, 0));
    }

    #[test]
    fn name_of_a_proxy_means_all_its_workers_and_no_other_proxy() {
        for (worker, of, is_meant) in [
            ("feed.0.x", "feed", true),
            ("feed.0.x", "feed.0", true),
            ("feed.0.x", "feed.0.x", true),
            ("feed.0.x", "fee", false),
            ("feed.01.x", "feed.0", false),
            ("feed.0.x", "feed.0.x.", false),
        ] {
            assert_eq!(is_worker_of(worker, of), is_meant, "{worker} of {of}");
        }
    }
}
