//! Random traffic on a Redis whose clock jumps, with memory beside it: both must grant and count
//! the same in windows of every kind. The grants of sliding windows keep their bound.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use quotagate_protocol::{Adjustment, Calendar, Fixed, Grant, Kind, Reservation, SLICES, Unit};
use quotagate_store::memory::Memory;
use quotagate_store::store::{Batch, Store};
use quotagate_support::redis::clock::Clock;
use tokio::runtime::Runtime;

use crate::common::{LONG, back, batch, open, take, try_one};

/// Milliseconds around the end of a second in which a call is not compared: its parts may run in
/// different windows.
const NEAR: u128 = 50;

#[derive(Clone, Debug)]
struct Step {
    /// Seconds that the clock jumps first.
    jump: i64,
    asks: Vec<(usize, u64, u64, bool)>,
    /// Index of an earlier grant, units, and whether they are charged.
    adjustments: Vec<(usize, u64, bool)>,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let jump = prop_oneof![6 => 0..5_i64, 3 => 5..70_i64, 1 => -30..0_i64];
    let ask = (0..5_usize, select(vec![5_u64, 40]), 1..12_u64, prop::bool::weighted(0.1));
    let adjustment = (0..20_usize, 1..8_u64, prop::bool::ANY);
    let step = (jump, prop::collection::vec(ask, 1..6), prop::collection::vec(adjustment, 0..3))
        .prop_map(|(jump, asks, adjustments)| Step { jump, asks, adjustments });
    prop::collection::vec(step, 1..20)
}

fn kind(index: usize) -> (Kind, u32) {
    let calendar = |unit, zone: &str| Kind::Calendar(Calendar { unit, time_zone: zone.into() });
    match index {
        0 => (Kind::Sliding, 20),
        1 => (Kind::Sliding, 60),
        2 => (calendar(Unit::Minute, "UTC"), 0),
        3 => (calendar(Unit::Hour, "Asia/Kathmandu"), 0),
        _ => (Kind::Fixed, 30),
    }
}

#[test]
fn memory_and_redis_agree_while_the_clock_jumps() {
    let runtime = Runtime::new().unwrap();
    let (jumping, redis) = Clock::redis().unwrap();
    let store = runtime.block_on(open(&redis.url()));
    let time = Arc::new(Mutex::new(Duration::ZERO));
    let shown = Arc::clone(&time);
    let memory = Memory::new(Arc::new(move || *shown.lock().unwrap()));
    let (mut history, mut compared) = (0, 0);
    let (mut ahead, mut latest) = (0_i64, 0);
    let run = |steps: Vec<Step>| {
        history += 1;
        let mut grants: Vec<(Reservation, Grant)> = Vec::new();
        for step in steps {
            // Redis keeps a counter for 10 s after its window. A clock that goes back further comes
            // into windows that Redis has forgotten, and memory has not.
            ahead = (ahead + step.jump).max(latest - 9);
            latest = latest.max(ahead);
            jumping.set(ahead).unwrap();
            // The prediction of the clock learns of the jump.
            let probe = take("probe", 1_000_000_000, 1);
            runtime.block_on(try_one(&*store, &probe)).unwrap();
            let reservations = step.asks.iter().map(|&(index, quota, want, count_denied)| {
                let (kind, window_s) = kind(index);
                let ask = take(&format!("{history}.{index}"), quota, want);
                Reservation { kind, window_s, count_denied, ..ask }
            });
            let asks: Vec<_> = [probe].into_iter().chain(reservations).collect();
            let (mut refunds, mut charges) = (Vec::new(), Vec::new());
            for (index, units, charged) in step.adjustments {
                if let Some((ask, grant)) = grants.iter().rev().nth(index) {
                    let list = if charged { &mut charges } else { &mut refunds };
                    list.push(back(ask, *grant, units));
                }
            }
            let both = Batch { charges, ..batch(refunds, asks.clone()) };
            let there: Vec<Grant> = runtime
                .block_on(store.reserve(&both))
                .into_iter()
                .map(|reserved| reserved.unwrap())
                .collect();
            let long = Fixed::new(LONG, 0).unwrap();
            let end = Duration::from_secs(long.start_of(there[0].window + 1));
            let now = end - Duration::from_millis(there[0].reset_ms);
            if !(NEAR..1000 - NEAR).contains(&(now.as_millis() % 1000)) {
                return Ok(());
            }
            *time.lock().unwrap() = now;
            let here = runtime.block_on(memory.reserve(&both));
            for ((ask, there), here) in asks.into_iter().zip(there).zip(here).skip(1) {
                prop_assert_eq!(there, here.unwrap(), "{:?} at {:?}", ask, now);
                grants.push((ask, there));
                compared += 1;
            }
        }
        Ok(())
    };
    let run = std::cell::RefCell::new(run);
    let config = Config { cases: 150, failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&steps(), |steps| (run.borrow_mut())(steps)).unwrap();
    println!("{compared} reservations compared");
    assert!(compared > 1_000, "{compared}");
}

/// Units granted, as time passes.
struct Granted {
    window: Duration,
    units: VecDeque<(Duration, u64)>,
}

impl Granted {
    /// Adds a grant, and returns the units within the last window.
    fn add(&mut self, now: Duration, units: u64) -> u64 {
        self.units.push_back((now, units));
        while self.units.front().is_some_and(|(at, _)| *at + self.window <= now) {
            self.units.pop_front();
        }
        self.units.iter().map(|(_, units)| units).sum()
    }
}

/// Sends random requests to memory and returns the units that were granted, and the windows that
/// passed.
async fn traffic(seconds: u32, quota: u64, gap: (u64, u64), cost: u64) -> (u64, f64) {
    let clock = Arc::new(Mutex::new(Duration::from_secs(1_000_000)));
    let shown = Arc::clone(&clock);
    let memory = Memory::new(Arc::new(move || *shown.lock().unwrap()));
    let window = Duration::from_secs(seconds.into());
    let mut granted = Granted { window, units: VecDeque::new() };
    let (mut total, mut seed) = (0, u64::from(seconds) ^ quota ^ gap.1 << 20 ^ cost << 40);
    let mut random = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    let start = *clock.lock().unwrap();
    let mut held: Option<Adjustment> = None;
    for _ in 0..20_000 {
        let now = {
            let mut clock = clock.lock().unwrap();
            *clock += Duration::from_millis(gap.0 + random(gap.1));
            *clock
        };
        let want = 1 + random(cost);
        let ask = take("bound", quota, want);
        let ask = Reservation { kind: Kind::Sliding, window_s: seconds, min: want, ..ask };
        let refunds = held.take().into_iter().collect::<Vec<_>>();
        memory.refund(&refunds).await;
        let grant = try_one(&memory, &ask).await.unwrap();
        let kept = if random(10) == 0 { 0 } else { grant.granted };
        held = (grant.granted > kept).then(|| back(&ask, grant, grant.granted - kept));
        total += kept;
        let within = granted.add(now, kept);
        assert!(within <= quota, "{within} of {quota} within {window:?} at {now:?}");
    }
    let passed = *clock.lock().unwrap() - start;
    (total, passed.as_secs_f64() / window.as_secs_f64())
}

#[tokio::test]
async fn no_interval_of_a_windows_length_holds_more_than_the_quota() {
    for (seconds, quota, gap, cost) in [
        (1, 10, (0, 60), 1),
        (20, 100, (0, 300), 3),
        (60, 5, (0, 8000), 1),
        (60, 1000, (10, 1), 7),
        (3600, 50, (0, 100_000), 2),
    ] {
        let (granted, windows) = traffic(seconds, quota, gap, cost).await;
        let part = granted as f64 / (quota as f64 * windows);
        println!("{seconds} s, quota {quota}: {:.1} % of the quota is used", part * 100.0);
        assert!(part >= 0.9, "{part}");
    }
    assert_eq!(SLICES, 20);
}
