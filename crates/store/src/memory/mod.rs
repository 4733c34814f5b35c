//! Counters in this process, for a single store and for tests. They are gone when the process ends.

mod control;
mod counter;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::{BoxFuture, FutureExt, ready};
use quotagate_protocol::{Adjustment, Window};
use tokio_util::task::AbortOnDropHandle;

use self::control::OperatorState;
use self::counter::{Counter, Demand};
use crate::control::ControlStore;
use crate::store::{Batch, CheckedReservation, Health, OnReserved, Reserved, Store, StoreError};
use crate::window::Position;

/// Parts of the map, each behind a lock of its own. A look at all keys of one takes well below a
/// millisecond, in which its calls wait.
const SHARDS: usize = 256;
/// Most keys that are counted at once. Reservations of further keys fail until others expire.
const MAX_KEYS: usize = 1 << 20;
/// How often expired counters are freed.
const SWEEP: Duration = Duration::from_secs(1);

/// Returns the time since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A clock that starts at the system's time and then runs on monotonically, even if the system's
/// clock jumps.
pub fn steady_clock() -> Clock {
    let start = Instant::now();
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Arc::new(move || epoch.saturating_add(start.elapsed()))
}

/// The backend `memory:`.
pub struct Memory {
    shards: Arc<Shards>,
    operators: Arc<OperatorState>,
    hasher: RandomState,
    clock: Clock,
    /// Most keys of a shard.
    shard_bound: usize,
    _sweeper: Option<AbortOnDropHandle<()>>,
}

/// The counters of each key, one for each window.
type Shard = HashMap<Box<str>, Vec<Counter>>;

/// [`SHARDS`] parts of the map. The last one is separate, so that every index finds a shard.
struct Shards {
    others: Box<[Mutex<Shard>]>,
    last: Mutex<Shard>,
}

impl Shards {
    fn all(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        self.others.iter().chain([&self.last])
    }
}

impl Memory {
    /// An empty store with the time of `clock`.
    pub fn new(clock: Clock) -> Self {
        let others = std::iter::repeat_with(Mutex::default).take(SHARDS - 1).collect();
        let shards = Arc::new(Shards { others, last: Mutex::default() });
        let operators = Arc::default();
        Self {
            shards,
            operators,
            hasher: RandomState::new(),
            clock,
            shard_bound: MAX_KEYS / SHARDS,
            _sweeper: None,
        }
    }

    /// How many counters it holds, including expired ones that no sweep has freed yet.
    pub fn len(&self) -> usize {
        self.shards.all().map(|shard| lock(shard).values().map(Vec::len).sum::<usize>()).sum()
    }

    /// Whether it holds no counter.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees expired counters and overrides.
    pub fn sweep(&self) {
        sweep(&self.shards, (self.clock)(), self.shard_bound);
        self.operators.sweep((self.clock)());
    }

    /// Frees expired counters and overrides once a second until the store is dropped. Needs a Tokio
    /// runtime.
    #[must_use]
    pub fn kept_swept(self) -> Self {
        let (shards, clock) = (Arc::clone(&self.shards), Arc::clone(&self.clock));
        let (operators, bound) = (Arc::clone(&self.operators), self.shard_bound);
        let sweeper = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(SWEEP);
            loop {
                ticks.tick().await;
                sweep(&shards, clock(), bound);
                operators.sweep(clock());
            }
        });
        Self { _sweeper: Some(AbortOnDropHandle::new(sweeper)), ..self }
    }

    /// The part of the map that holds `key`, locked. Callers that count read the clock after
    /// this. If they read it before, a window could end and be swept in between, and its counter
    /// would begin again.
    fn shard(&self, key: &str) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).unwrap_or_default();
        lock(self.shards.others.get(index).unwrap_or(&self.shards.last))
    }

    fn reserve_one(&self, reservation: &CheckedReservation) -> Reserved {
        let mut shard = self.shard(&reservation.key);
        let now = (self.clock)();
        let position = Position::at(reservation.window(), now);
        let quota = self.operators.quota(&reservation.key, reservation.quota, now);
        let demand = Demand { reservation, quota, now };
        let room = shard.len() < self.shard_bound || shard.contains_key(&*reservation.key);
        let held = shard.get_mut(&*reservation.key);
        match held.and_then(|held| held.iter_mut().find(|counter| counter.id == position.id)) {
            Some(counter) => counter.reserve(&position, &demand),
            None => {
                let mut counter = Counter::new(&position);
                let grant = counter.reserve(&position, &demand)?;
                if counter.is_needed(now) {
                    // Evicting another counter would give its partition a fresh quota.
                    self.insert(&mut shard, room, &reservation.key, counter)?;
                }
                Ok(grant)
            }
        }
    }

    fn insert(
        &self,
        shard: &mut Shard,
        room: bool,
        key: &str,
        counter: Counter,
    ) -> Result<(), StoreError> {
        if !room {
            let most = self.shard_bound * SHARDS;
            return Err(StoreError::Refused(format!("{most} counters fill the memory")));
        }
        match shard.get_mut(key) {
            Some(held) => held.push(counter),
            None => drop(shard.insert(key.into(), vec![counter])),
        }
        Ok(())
    }

    fn refund_one(&self, refund: &Adjustment) {
        let Some(position) = position_of(refund) else { return };
        let mut shard = self.shard(&refund.key);
        let now = (self.clock)();
        let Some(held) = shard.get_mut(&*refund.key) else { return };
        held.retain_mut(|counter| {
            counter.id != position.id || counter.refund(&position, refund.units, now)
        });
        if held.is_empty() {
            shard.remove(&*refund.key);
        }
    }

    fn charge_one(&self, charge: &Adjustment) {
        let Some(position) = position_of(charge) else { return };
        let mut shard = self.shard(&charge.key);
        let now = (self.clock)();
        let room = shard.len() < self.shard_bound || shard.contains_key(&*charge.key);
        let held = shard.get_mut(&*charge.key);
        if let Some(counter) =
            held.and_then(|held| held.iter_mut().find(|counter| counter.id == position.id))
        {
            return counter.charge(&position, charge.units, now);
        }
        let mut counter = Counter::new(&position);
        counter.charge(&position, charge.units, now);
        if counter.used(now) > 0
            && let Err(full) = self.insert(&mut shard, room, &charge.key, counter)
        {
            tracing::debug!("a charge is lost: {full}");
        }
    }
}

/// Where an adjustment belongs. `None` if it was not checked.
fn position_of(adjustment: &Adjustment) -> Option<Position> {
    let Adjustment { kind, window_s, offset_s, window, .. } = adjustment;
    Some(Position::numbered(&Window::of(kind, *window_s, *offset_s)?, *window))
}

/// Frees counters that have ended. A shard that is almost full keeps none of an earlier window.
fn sweep(shards: &Shards, now: Duration, bound: usize) {
    for shard in shards.all() {
        let mut shard = lock(shard);
        let is_full = shard.len() >= bound - bound / 8;
        shard.retain(|_, held| {
            held.retain(|counter| now < if is_full { counter.end() } else { counter.kept_until() });
            !held.is_empty()
        });
    }
}

/// A counter is consistent at every moment, so a poisoned lock guards nothing that is broken.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for Memory {
    fn carry_out<'a>(
        &'a self,
        batch: &'a Batch,
        on_reserved: &'a OnReserved<'a>,
    ) -> BoxFuture<'a, ()> {
        let late = Instant::now() >= batch.deadline;
        batch.refunds.iter().for_each(|refund| self.refund_one(refund));
        batch.charges.iter().for_each(|charge| self.charge_one(charge));
        for (index, reservation) in batch.reservations.iter().enumerate() {
            on_reserved(
                index,
                if late { Err(StoreError::Late) } else { self.reserve_one(reservation) },
            );
        }
        ready(()).boxed()
    }

    fn refund<'a>(&'a self, refunds: &'a [Adjustment]) -> BoxFuture<'a, ()> {
        refunds.iter().for_each(|refund| self.refund_one(refund));
        ready(()).boxed()
    }

    fn health(&self) -> Health {
        Health::default()
    }

    fn control(&self) -> &(dyn ControlStore + 'static) {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::sync::{OnceLock, mpsc};

    use quotagate_protocol::{Calendar, Kind, Reservation, Unit};

    use super::*;

    /// Wants units of a quota of 5.
    fn ask(n: u32, window_s: u32, want: u64) -> CheckedReservation {
        let reservation = Reservation {
            key: format!("test:p:{{{n}}}").into(),
            window_s,
            quota: 5,
            want,
            min: 1,
            ..Reservation::default()
        };
        CheckedReservation::new(reservation).unwrap()
    }

    #[test]
    fn memory_is_bounded_and_no_counter_is_evicted() {
        let memory = Memory { shard_bound: 1, ..Memory::new(steady_clock()) };
        let ask = |n| ask(n, 3600, 1);
        let first: Vec<_> = (0..1000).map(|n| memory.reserve_one(&ask(n))).collect();
        let counted: Vec<_> = (0..1000).filter(|&n| first[n as usize].is_ok()).collect();
        assert!((SHARDS / 2..=SHARDS).contains(&counted.len()), "{}", counted.len());
        assert!(counted.iter().all(|&n| memory.reserve_one(&ask(n)).unwrap().used == 2));
        assert!(matches!(first.iter().find(|s| s.is_err()), Some(Err(StoreError::Refused(_)))));
    }

    #[test]
    fn full_memory_keeps_no_earlier_window() {
        const DAY: u64 = 86_400;
        let kind = Kind::Calendar(Calendar { unit: Unit::Day, time_zone: "UTC".into() });
        let ask =
            CheckedReservation::new(Reservation { kind, window_s: 0, ..(*ask(0, 60, 1)).clone() });
        for (bound, kept) in [(2, 1), (1, 0)] {
            let memory = Memory { shard_bound: bound, ..Memory::new(Arc::new(|| Duration::ZERO)) };
            memory.reserve_one(ask.as_ref().unwrap()).unwrap();
            sweep(&memory.shards, Duration::from_secs(DAY), bound);
            assert_eq!(memory.len(), kept, "of {bound}");
        }
    }

    #[test]
    fn window_that_was_swept_is_not_counted_again() {
        const END: Duration = Duration::from_secs(180);
        let ask = ask(0, 60, 5);
        let shards = Arc::new(OnceLock::<Arc<Shards>>::new());
        let (swept, readings) = (Arc::clone(&shards), AtomicUsize::new(0));
        let memory = Memory::new(Arc::new(move || {
            // A sweep after the end of the window overtakes a reservation that has read the clock
            // just before the end, unless the reservation holds the lock.
            if readings.fetch_add(1, Relaxed) == 1 {
                let (shards, (done, end)) = (Arc::clone(&swept), mpsc::channel());
                std::thread::spawn(move || {
                    sweep(shards.get().unwrap(), END, MAX_KEYS);
                    let _ = done.send(());
                });
                let _ = end.recv_timeout(Duration::from_millis(500));
            }
            END - Duration::from_millis(1)
        }));
        let _ = shards.set(Arc::clone(&memory.shards));
        assert_eq!(memory.reserve_one(&ask).unwrap().granted, 5);
        let second = memory.reserve_one(&ask).unwrap();
        assert_eq!((second.granted, second.window), (0, 2));
    }

    #[tokio::test]
    async fn expired_counters_are_freed_by_the_sweep() {
        let now = Arc::new(Mutex::new(Duration::from_secs(120)));
        let shown = Arc::clone(&now);
        let memory = Memory::new(Arc::new(move || *shown.lock().unwrap()));
        let ask = |n| ask(n, 60 + 60 * (n % 2), 5);
        let deadline = Instant::now() + Duration::from_secs(60);
        let batch = Batch {
            deadline,
            refunds: vec![],
            charges: vec![],
            reservations: (0..1000).map(ask).collect(),
        };
        let first = memory.reserve(&batch).await;
        assert!(first.iter().all(|outcome| outcome.as_ref().unwrap().granted == 5));
        assert_eq!(memory.len(), 1000);
        *now.lock().unwrap() = Duration::from_millis(179_999);
        memory.sweep();
        assert_eq!(memory.len(), 1000);
        let last = memory.reserve(&batch).await.remove(0).unwrap();
        assert_eq!((last.granted, last.reset_ms, last.window), (0, 1, 2));
        *now.lock().unwrap() = Duration::from_secs(180);
        memory.sweep();
        assert_eq!(memory.len(), 500);
        let next = memory.reserve(&batch).await.remove(0).unwrap();
        assert_eq!((next.granted, next.reset_ms, next.window), (5, 60_000, 3));
        *now.lock().unwrap() = Duration::from_secs(240);
        memory.sweep();
        assert!(memory.is_empty());
    }
}
