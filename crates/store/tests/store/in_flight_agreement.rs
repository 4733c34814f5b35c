//! Compares the backends message by message on random histories of slots: memory, Redis and a Redis
//! Cluster must grant the same and hold the same of each worker. So must the model of a store with
//! which the worker is tested.
//!
//! A claim ends after a second, so a history ends early if it takes almost as long. A failing
//! history is shrunk. `QUOTAGATE_SEEDS=20` runs twenty times as many.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{batch, counter, one, open};
use crate::in_flight::{say, write};
use crate::slots_model::ModelStore;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use quotagate_protocol::{Grant, Holding, MAX_UNITS, Reservation};
use quotagate_store::control::ControlStore;
use quotagate_store::memory::Memory;
use quotagate_store::store::Store;
use quotagate_support::cluster::Cluster;
use quotagate_support::redis::Redis;
use tokio::runtime::Runtime;

/// Less than the time for which a worker may be passed over.
const SHORT: Duration = Duration::from_millis(200);

#[derive(Clone, Debug)]
enum Step {
    Say(Vec<Said>),
    /// Sets the override of a key.
    Override(u32, &'static str),
    /// An operator frees the slots of a worker, or of all.
    Release(u32, Option<u32>),
}

/// A message of a worker.
#[derive(Clone, Debug)]
struct Said {
    key: u32,
    worker: u32,
    /// How much its serial grows; not at all if it comes late.
    later: u64,
    limit: u64,
    held: u64,
    want: u64,
    all: bool,
    waits: u64,
    waited: u64,
    own_quota: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let units = || prop_oneof![12 => 0..5_u64, 1 => select(vec![MAX_UNITS - 1, MAX_UNITS])];
    let limit = prop_oneof![8 => 1..8_u64, 1 => select(vec![0, MAX_UNITS])];
    let said = (
        (0..2_u32, 0..4_u32, select(vec![0, 1, 1, 1, 2_u64])),
        (limit, units(), units(), any::<bool>()),
        (units(), 0..5_u64, any::<bool>()),
    );
    let said = said.prop_map(|(whose, units, waits)| {
        let ((key, worker, later), (limit, held, want, all)) = (whose, units);
        let (waits, waited, own_quota) = waits;
        Said { key, worker, later, limit, held, want, all, waits, waited, own_quota }
    });
    let over = select(vec!["2", "blocked", "unlimited"]);
    let step = prop_oneof![
        12 => vec(said, 1..5).prop_map(Step::Say),
        1 => (0..2_u32, over).prop_map(|(key, value)| Step::Override(key, value)),
        1 => (0..2_u32, prop::option::of(0..4_u32)).prop_map(|(key, of)| Step::Release(key, of)),
    ];
    vec(step, 1..20)
}

struct Pair {
    runtime: Runtime,
    other: Arc<dyn Store>,
    memory: Memory,
    histories: Cell<u32>,
    compared: Cell<u64>,
}

impl Pair {
    fn new(url: &str) -> Self {
        let runtime = Runtime::new().unwrap();
        let other = runtime.block_on(open(url));
        let memory = Memory::new(Arc::new(|| Duration::from_secs(1_800_000_000)));
        Self { runtime, other, memory, histories: Cell::new(0), compared: Cell::new(0) }
    }

    fn agree(self, histories: u32) {
        let times =
            std::env::var("QUOTAGATE_SEEDS").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
        let runs =
            Config { cases: histories * times, failure_persistence: None, ..Config::default() };
        let run = |steps: Vec<Step>| self.runtime.block_on(self.history(&steps));
        TestRunner::new(runs).run(&steps(), run).unwrap();
        assert!(self.compared.get() > 5 * u64::from(histories), "too few messages were compared");
    }

    async fn history(&self, steps: &[Step]) -> Result<(), TestCaseError> {
        self.histories.set(self.histories.get() + 1);
        let name = |key| format!("slots{}.{key}", self.histories.get());
        let (begun, mut serials, mut messages) = (Instant::now(), [1_u64; 4], 0);
        for step in steps {
            match step {
                Step::Say(said) => {
                    let asks = said.iter().map(|said| {
                        messages += 1;
                        let serial = &mut serials[said.worker as usize];
                        *serial += said.later;
                        said.message(&name(said.key), *serial, messages)
                    });
                    let both = batch(vec![], asks.collect());
                    let there = self.other.reserve(&both).await;
                    if begun.elapsed() > SHORT {
                        return Ok(());
                    }
                    let here = self.memory.reserve(&both).await;
                    prop_assert_eq!(there, here, "{:?}", both.reservations);
                    self.compared.set(self.compared.get() + both.reservations.len() as u64);
                }
                Step::Override(key, value) => {
                    let key = say(&name(*key), 0, "", 1, 0, 0).key;
                    self.other.control().set_override(&key, value, None).await.unwrap();
                    ControlStore::set_override(&self.memory, &key, value, None).await.unwrap();
                }
                Step::Release(key, of) => {
                    let key = say(&name(*key), 0, "", 1, 0, 0).key;
                    let of = of.map(|of| format!("w{of}"));
                    let there = self.other.control().release(&key, of.as_deref()).await.unwrap();
                    let here = self.memory.release(&key, of.as_deref()).await.unwrap();
                    prop_assert_eq!(there, here);
                }
            }
            for key in 0..2 {
                let there = seen(self.other.control(), &name(key)).await;
                let here = seen(&self.memory, &name(key)).await;
                if begun.elapsed() > SHORT {
                    return Ok(());
                }
                prop_assert_eq!(there, here);
            }
        }
        Ok(())
    }
}

/// What operators see of a key, without times.
async fn seen(control: &dyn ControlStore, key: &str) -> (Option<String>, Vec<String>) {
    let message = say(key, 0, "", 1, 0, 0);
    let value = control.get(counter(&message, 0)).await.unwrap().value;
    let state = control.slots(&message.key).await.unwrap();
    assert_eq!(state.left_out, 0);
    let holders = state.holders.iter();
    let text = holders.map(|of| {
        format!("{} holds {}, waits for {}, {:?}", of.worker, of.held, of.waiting, of.own_quota)
    });
    (value, text.collect())
}

impl Said {
    fn message(&self, key: &str, serial: u64, message: u64) -> Reservation {
        let Self { worker, limit, held, want, all, waits, waited, own_quota, .. } = *self;
        // Each has waited for another time, by more than the backends' clocks may differ in.
        let waited_ms = waited * 10_000_000 + message * 2_000;
        let plain = say(key, limit, &format!("w{worker}.0"), serial, held, want);
        let said = plain.holding.clone().unwrap();
        // To every other message, those who waited for longest have left.
        let max_wait_ms = if message.is_multiple_of(2) { 0 } else { 15_000_000 };
        let holding = Holding { waiting: waits, waited_ms, max_wait_ms, ..said };
        let min = if all { want } else { plain.min };
        Reservation { min, own_quota, holding: Some(holding), ..plain }
    }
}

#[test]
fn memory_and_redis_agree_about_slots() {
    let redis = Redis::start().unwrap();
    Pair::new(&redis.url()).agree(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_and_redis_agree_about_expired_slots() {
    let redis = Redis::start().unwrap();
    let other = open(&redis.url()).await;
    let now = Arc::new(AtomicU64::new(1_800_000_000));
    let clock = Arc::clone(&now);
    let memory = Memory::new(Arc::new(move || Duration::from_secs(clock.load(SeqCst))));
    let say = |worker, serial, held, want| say("expired", 9, worker, serial, held, want);
    let held = [("a", 3), ("b", 2), ("idle", 0)];
    for (worker, want) in held {
        let message = say(worker, 1, 0, want);
        assert_eq!(one(&*other, &message).await, one(&memory, &message).await);
    }
    for (worker, held) in held {
        let ended = [1.0, held as f64, 1.0, 0.0, 0.0, 0.0, 0.0, -1.0].map(f64::to_le_bytes);
        write(&redis, "qg:test:p:{expired}:slots", worker, &ended.concat());
    }
    now.fetch_add(9, SeqCst);
    for (message, expired) in [(say("b", 1, 0, 1), 5), (say("c", 1, 0, 1), 0)] {
        let (there, here) = (one(&*other, &message).await, one(&memory, &message).await);
        assert_eq!((there.expired, there), (expired, here));
    }
}

#[test]
fn memory_and_a_redis_cluster_agree_about_slots() {
    let cluster = Cluster::start().unwrap();
    Pair::new(&cluster.url()).agree(100);
}

/// One worker's message to the model, so long after the last one.
fn timed_messages() -> impl Strategy<Value = Vec<(u64, Reservation)>> {
    let whose = (0..4_u32, select(vec![0, 1, 1, 1, 2_u64]));
    let units = (select(vec![2, 4_u64]), 0..3_u64, 0..4_u64, 0..4_u64);
    let times = (0..20_u64, select(vec![0, 300, 3_000_u64]));
    let message = (whose, units, times).prop_map(|((worker, later), units, (waited, max_wait))| {
        let waited_ms = waited * 50;
        let (limit, held, want, min) = units;
        let plain = say("model", limit, &format!("w{worker}.0"), later, held, want);
        let said = plain.holding.clone().unwrap();
        let holding = Holding { waiting: want, waited_ms, max_wait_ms: max_wait, ..said };
        let min = min.clamp(want.min(1), want);
        Reservation { min, own_quota: true, holding: Some(holding), ..plain }
    });
    let later = prop_oneof![8 => 0..8_u64, 1 => 0..240_u64].prop_map(|times| times * 50);
    vec((later, message), 1..30)
}

#[test]
fn memory_agrees_with_the_model_that_workers_are_tested_with() {
    let runtime = Runtime::new().unwrap();
    let runs = Config { cases: 10_000, failure_persistence: None, ..Config::default() };
    let run = |messages: Vec<(u64, Reservation)>| {
        let now = Arc::new(AtomicU64::new(1_800_000_000_000));
        let clock = Arc::clone(&now);
        let memory = Memory::new(Arc::new(move || Duration::from_millis(clock.load(SeqCst))));
        let (mut model, mut serials) = (ModelStore::default(), BTreeMap::new());
        for (later, mut message) in messages {
            let now = now.fetch_add(later, SeqCst) + later;
            let holding = message.holding.as_mut().unwrap();
            let serial = serials.entry(Arc::clone(&holding.worker)).or_insert(1);
            *serial += holding.serial;
            holding.serial = *serial;
            let here = runtime.block_on(one(&memory, &message));
            prop_assert_eq!(model.reserve(&message, now), Grant { expired: 0, ..here });
        }
        Ok(())
    };
    TestRunner::new(runs).run(&timed_messages(), run).unwrap();
}
