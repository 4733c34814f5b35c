//! What a worker's decisions cost in calls, items and waiting: one worker, its store and a wire
//! between them in virtual time, to the microsecond. The host behaves like `src/`: calls leave
//! after a request that waits, after a reply, and with the tick.

mod batching;
mod leases;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{Mode, ReserveRequest};

use super::invariants::{ModelStore, Random};
use crate::config::{Config, Precision};
use crate::decision::Decision;
use crate::evaluate::{Check, Counter};
use crate::time::Monotonic;
use crate::worker::{CallId, Submitted, Worker};

const TICK_US: u64 = 10_000;
const SECOND_US: u64 = 1_000_000;

/// Requests at random moments, each for a random partition.
#[derive(Clone, Copy)]
struct Traffic {
    /// Requests a second, of all partitions together.
    rate: u64,
    partitions: u64,
    /// Requests that arrive at the same moment, as they do from clients that wait for the same
    /// batch of responses.
    together: u64,
}

/// How long a call takes, there and back.
#[derive(Clone, Copy)]
struct Wire {
    usual_us: u64,
    /// One call in a hundred takes this long.
    slow_us: u64,
}

impl Wire {
    fn steady(us: u64) -> Self {
        Self { usual_us: us, slow_us: us }
    }
}

/// What happened after the warm-up.
#[derive(Default)]
struct Measured {
    requests: u64,
    calls: u64,
    reservations: u64,
    refunds: u64,
    /// How long each request waited, sorted.
    waits_us: Vec<u64>,
}

impl Measured {
    fn calls_a_request(&self) -> f64 {
        self.calls as f64 / self.requests as f64
    }

    fn items_a_request(&self) -> f64 {
        (self.reservations + self.refunds) as f64 / self.requests as f64
    }

    /// A percentile of the waits, in microseconds.
    fn wait_us(&self, percent: usize) -> u64 {
        self.waits_us[(self.waits_us.len() - 1) * percent / 100]
    }
}

enum Event {
    Arrival,
    Tick,
    AtStore(CallId, Vec<u8>, u64),
    Reply(CallId, Vec<u8>),
}

struct Host {
    worker: Worker<u64>,
    store: ModelStore,
    counters: Vec<Counter>,
    random: Random,
    events: BTreeMap<(u64, u64), Event>,
    wire: Wire,
    serial: u64,
    now_us: u64,
    measured: Measured,
    measuring: bool,
}

/// One exact policy with more quota than the traffic uses. Requests wait up to a second, so that
/// nothing fails.
fn exact() -> Config {
    let text = r#"{"domain":"d","store":{"cluster":"c","timeout":"1s","on_failure":"deny"},
        "policies":[{"name":"a","partition_by":[],"quota":100000000,"window":"1h"}]}"#;
    Config::parse(text.as_bytes()).unwrap()
}

/// The same with leases.
fn leased(ahead: Duration) -> Config {
    let mut config = exact();
    config.policies[0].precision = Precision::Lease { ahead, max: NonZeroU64::new(1000).unwrap() };
    config
}

/// Runs `traffic` for `warm_up` seconds and then measures it for `seconds`.
fn run(config: Config, traffic: Traffic, wire: Wire, warm_up: u64, seconds: u64) -> Measured {
    let counter = |party| Counter {
        key: format!("d:a:{{ip={party}}}").into(),
        quota: config.policies[0].quota,
        window: config.policies[0].window.clone(),
    };
    let start = 1_000 * SECOND_US;
    let mut host = Host {
        counters: (0..traffic.partitions).map(counter).collect(),
        worker: Worker::new(Arc::new(config), 1),
        store: ModelStore::default(),
        random: Random(traffic.rate + traffic.partitions),
        events: BTreeMap::new(),
        wire,
        serial: 0,
        now_us: start,
        measured: Measured::default(),
        measuring: false,
    };
    host.after(0, Event::Arrival);
    host.after(TICK_US, Event::Tick);
    host.run_until(start + warm_up * SECOND_US, traffic);
    host.measuring = true;
    host.run_until(start + (warm_up + seconds) * SECOND_US, traffic);
    host.measured.waits_us.sort_unstable();
    host.measured
}

impl Host {
    fn after(&mut self, us: u64, event: Event) {
        self.serial += 1;
        self.events.insert((self.now_us + us, self.serial), event);
    }

    fn now(&self) -> Monotonic {
        Monotonic::new(Duration::from_micros(self.now_us))
    }

    fn run_until(&mut self, end_us: u64, traffic: Traffic) {
        while let Some(((at, _), event)) = self.events.pop_first() {
            if at >= end_us {
                self.events.insert((at, 0), event);
                return;
            }
            self.now_us = at;
            self.happen(event, traffic);
        }
    }

    fn happen(&mut self, event: Event, traffic: Traffic) {
        let now = self.now();
        match event {
            Event::Arrival => {
                let gap = -self.random.fraction().ln() * SECOND_US as f64 / traffic.rate as f64;
                self.after((gap * traffic.together as f64) as u64, Event::Arrival);
                for _ in 0..traffic.together {
                    self.arrive(traffic.partitions);
                }
            }
            Event::Tick => {
                self.after(TICK_US, Event::Tick);
                self.worker.tick(now);
            }
            Event::AtStore(call, body, way_back) => {
                let request: ReserveRequest = serde_json::from_slice(&body).unwrap();
                if self.measuring {
                    self.measured.calls += 1;
                    self.measured.refunds += request.refunds.len() as u64;
                    self.measured.reservations += request.reservations.len() as u64;
                }
                let reply = self.store.carry_out(&request, self.now_us / 1000);
                return self
                    .after(way_back, Event::Reply(call, serde_json::to_vec(&reply).unwrap()));
            }
            Event::Reply(call, body) => self.worker.replied(call, &body, now),
        }
        self.send_calls();
        while let Some((since, decision)) = self.worker.next_decision() {
            self.decided(since, &decision);
        }
    }

    fn arrive(&mut self, partitions: u64) {
        self.measured.requests += u64::from(self.measuring);
        let counter = self.counters[self.random.below(partitions) as usize].clone();
        let check = Check { policy: 0, counter, cost: NonZeroU64::MIN, mode: Mode::Enforce };
        match self.worker.submit(self.now_us, vec![check], self.now()) {
            Submitted::Decided(decision) => self.decided(self.now_us, &decision),
            Submitted::Waiting(_) | Submitted::Counting(_) => self.send_calls(),
        }
    }

    fn send_calls(&mut self) {
        while let Some(call) = self.worker.next_call(self.now()) {
            let slow = self.random.percent(1);
            let us = if slow { self.wire.slow_us } else { self.wire.usual_us };
            self.after(us / 2, Event::AtStore(call.id, call.body(), us - us / 2));
        }
    }

    fn decided(&mut self, since_us: u64, decision: &Decision) {
        let admitted =
            matches!(decision, Decision::Admit(admission) if admission.uncounted.is_none());
        assert!(admitted, "{decision:?}");
        if self.measuring {
            self.measured.waits_us.push(self.now_us - since_us);
        }
    }
}
