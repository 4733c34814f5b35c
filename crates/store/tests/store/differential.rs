//! Compares the backends call by call on random histories of reservations and refunds: memory,
//! Redis and a Redis Cluster must grant and count the same, and hold the same counters.
//!
//! Memory uses the time that Redis reports. A history ends early if one of its windows may have
//! ended during a call. A failing history is shrunk. `QUOTAGATE_SEEDS=20` runs twenty times as
//! many.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{LONG, back, batch, open};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use quotagate_protocol::{Adjustment, Fixed, Grant, Kind, MAX_UNITS, Reservation, Window};
use quotagate_store::control;
use quotagate_store::control::ControlStore;
use quotagate_store::memory::Memory;
use quotagate_store::store::Store;
use quotagate_store::window::Position;
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;
use tokio::runtime::Runtime;

/// The largest difference between the clocks of this test and of Redis.
const APART: Duration = Duration::from_millis(5);
/// Lengths of windows, in seconds.
const WINDOWS: [u32; 4] = [1, 2, 3600, LONG];

/// One call.
#[derive(Clone, Debug)]
struct Call {
    backs: Vec<Back>,
    asks: Vec<Wish>,
    /// Whether the refunds are sent as for a caller that left, separately from the reservations.
    gone: bool,
    sweeps: bool,
}

/// A refund of an earlier grant.
#[derive(Clone, Debug)]
struct Back {
    /// The index of the grant.
    grant: usize,
    units: u64,
    /// How many windows after the grant the refund claims to belong to.
    later: i64,
    /// Whether its key has no counter.
    stray: bool,
}

#[derive(Clone, Debug)]
struct Wish {
    key: u32,
    window_s: u32,
    quota: u64,
    want: u64,
    min: u64,
    spare: u64,
    count_denied: bool,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let units = || prop_oneof![8 => 1..12_u64, 2 => 1..300_u64, 1 => select(vec![MAX_UNITS - 1, MAX_UNITS])];
    let back = (
        0..40_usize,
        units(),
        prop_oneof![8 => Just(0), 1 => -1..=1_i64],
        prop::bool::weighted(0.05),
    )
        .prop_map(|(grant, units, later, stray)| Back { grant, units, later, stray });
    let quota = prop_oneof![
        6 => select(vec![5_u64, 40]),
        2 => select(vec![0_u64, 1, 1000]),
        1 => select(vec![MAX_UNITS - 3, MAX_UNITS]),
    ];
    let spare = prop_oneof![2 => Just(0), 1 => units()];
    let wish = (
        0..3_u32,
        select(WINDOWS.to_vec()),
        quota,
        units(),
        any::<u64>(),
        spare,
        prop::bool::weighted(0.2),
    )
        .prop_map(|(key, window_s, quota, want, min, spare, count_denied)| {
            // One in sixteen reserves no unit: it prefetches, or it looks.
            let want = if min % 16 == 0 { 0 } else { want };
            let min = if want == 0 { 0 } else { [1, want, 1 + min % want][(min % 3) as usize] };
            Wish { key, window_s, quota, want, min, spare, count_denied }
        });
    let call =
        (vec(back, 0..4), vec(wish, 1..7), prop::bool::weighted(0.2), prop::bool::weighted(0.2))
            .prop_map(|(backs, asks, gone, sweeps)| Call { backs, asks, gone, sweeps });
    vec(call, 1..40)
}

/// Two backends side by side.
struct Pair {
    runtime: Runtime,
    other: Arc<dyn Store>,
    memory: Memory,
    clock: Arc<Mutex<Duration>>,
    histories: Cell<u32>,
    compared: Cell<u64>,
    cut_short: Cell<u64>,
}

fn system_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Offsets differ, so that windows begin at different times.
fn window(key: u32, window_s: u32) -> Fixed {
    Fixed::new(window_s, key % window_s).unwrap()
}

fn fixed(window: &Window) -> Fixed {
    let Window::Fixed(fixed) = window else { panic!("{window:?}") };
    *fixed
}

/// The moment at which the window had `reset_ms` left.
fn moment(window: Fixed, grant: &Grant) -> Duration {
    let end = (grant.window + 1) * u64::from(window.seconds()) - u64::from(window.offset());
    Duration::from_secs(end) - Duration::from_millis(grant.reset_ms)
}

/// Whether one of these windows ends between these moments.
fn some_ends(windows: &[Fixed], from: Duration, to: Duration) -> bool {
    windows.iter().any(|window| window.number_at(from - APART) != window.number_at(to + APART))
}

impl Pair {
    fn new(runtime: Runtime, url: &str) -> Self {
        let other = runtime.block_on(open(url));
        let clock = Arc::new(Mutex::new(Duration::ZERO));
        let reported = Arc::clone(&clock);
        let memory = Memory::new(Arc::new(move || *reported.lock().unwrap()));
        let (histories, compared, cut_short) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Self { runtime, other, memory, clock, histories, compared, cut_short }
    }

    fn agree(self, histories: u32) {
        let times =
            std::env::var("QUOTAGATE_SEEDS").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
        let runs =
            Config { cases: histories * times, failure_persistence: None, ..Config::default() };
        let run = |calls: Vec<Call>| self.runtime.block_on(self.history(&calls));
        TestRunner::new(runs).run(&calls(), run).unwrap();
        let (compared, cut_short) = (self.compared.get(), self.cut_short.get());
        println!(
            "{compared} reservations compared, {cut_short} histories cut short by the end of a window"
        );
        assert!(compared > 5 * u64::from(histories), "too few calls were compared");
    }

    async fn history(&self, calls: &[Call]) -> Result<(), TestCaseError> {
        self.histories.set(self.histories.get() + 1);
        let name = format!("d{}", self.histories.get());
        let granted = RefCell::new(Vec::new());
        let (mut begun, mut windows) = (system_time(), Vec::new());
        for call in calls {
            let backs: Vec<Adjustment> =
                call.backs.iter().filter_map(|back| back.of(&granted.borrow())).collect();
            let asks: Vec<Reservation> =
                call.asks.iter().map(|wish| wish.reservation(&name)).collect();
            let refunded = backs.clone();
            let (gone, backs) = if call.gone { (backs, vec![]) } else { (vec![], backs) };
            let both = batch(backs, asks);
            self.other.refund(&gone).await;
            let there = self.other.reserve(&both).await;
            let held_there = held(self.other.control(), &refunded).await;
            let ended = system_time();
            windows.extend(call.asks.iter().map(|wish| window(wish.key, wish.window_s)));
            if some_ends(&windows, begun, ended) {
                self.cut_short.set(self.cut_short.get() + 1);
                return Ok(());
            }
            let there: Vec<Grant> = there.into_iter().map(|grant| grant.unwrap()).collect();
            let now = moment(fixed(both.reservations[0].window()), &there[0]);
            *self.clock.lock().unwrap() = now;
            if call.sweeps {
                self.memory.sweep();
            }
            self.memory.refund(&gone).await;
            let here = self.memory.reserve(&both).await;
            prop_assert_eq!(held_there, held(&self.memory, &refunded).await, "{:?}", refunded);
            for ((there, here), ask) in there.iter().zip(here).zip(&both.reservations) {
                let here = here.unwrap();
                let reported = moment(fixed(ask.window()), there);
                prop_assert!(
                    begun - APART <= reported && reported <= ended + APART,
                    "{reported:?} of {begun:?} to {ended:?}"
                );
                // Each call to a cluster has its own time.
                let here = Grant { reset_ms: there.reset_ms, ..here };
                prop_assert_eq!(*there, here, "{:?}", ask);
                granted.borrow_mut().push(((**ask).clone(), here));
                self.compared.set(self.compared.get() + 1);
            }
            begun = ended;
        }
        Ok(())
    }
}

/// The value of each refund's counter, and the quota kept with it. `None` if there is no such
/// counter.
async fn held(
    control: &dyn ControlStore,
    refunds: &[Adjustment],
) -> Vec<(Option<String>, Option<u64>)> {
    let mut values = Vec::new();
    for Adjustment { key, kind, window_s, offset_s, window, .. } in refunds {
        let of = Window::of(kind, *window_s, *offset_s).unwrap();
        let counter = control::Key::Counter { key, id: Position::numbered(&of, *window).id };
        let seen = control.get(counter).await.unwrap();
        values.push((seen.value, seen.own_quota));
    }
    values
}

impl Back {
    fn of(&self, granted: &[(Reservation, Grant)]) -> Option<Adjustment> {
        let last = granted.len().checked_sub(1)?;
        let (ask, grant) = &granted[last - self.grant.min(last)];
        let refund = back(ask, *grant, self.units);
        let key = if self.stray { "test:p:{nobody}".into() } else { refund.key };
        let window = grant.window.saturating_add_signed(self.later);
        Some(Adjustment { key, window, ..refund })
    }
}

impl Wish {
    fn reservation(&self, history: &str) -> Reservation {
        let Self { key, window_s, quota, want, min, spare, count_denied } = *self;
        let offset_s = window(key, window_s).offset();
        let own_quota = key == 1;
        let key = format!("test:p:{{{history}.{key}}}");
        Reservation {
            key: key.into(),
            kind: Kind::Fixed,
            window_s,
            offset_s,
            quota,
            want,
            min,
            spare,
            count_denied,
            own_quota,
            ..Reservation::default()
        }
    }
}

#[test]
fn memory_and_redis_agree() {
    let redis = Redis::start().unwrap();
    Pair::new(Runtime::new().unwrap(), &redis.url()).agree(300);
}

#[test]
fn memory_and_a_redis_cluster_agree() {
    let cluster = Cluster::start().unwrap();
    Pair::new(Runtime::new().unwrap(), &cluster.url()).agree(150);
}
