//! Random histories of streams that take a hit and refund it when they end: several services behind
//! round robin, with faults and restarts. No more streams run than the rule admits, but for those
//! that Envoy let pass without an answer; and once all have ended, nothing is left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotagate_ratelimit::messages::{Code, Descriptor};
use quotagate_ratelimit::service::AnswerOptions;
use quotagate_store::store::Store;

use crate::bench::{Bench, counting, descriptor, hits, memory, statuses};
use crate::gate::{Gate, GatedStore};
use crate::running::until;

const RULES: &str = "
domain: d
descriptors:
  - {key: slots, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: org, rate_limit: {unit: year, requests_per_unit: 6}}
";
const SERVICES: usize = 3;
const STEPS: usize = 80;

/// Numbers that look random, always the same for a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % most
    }
}

/// Services over one store, each with its own way to it.
struct Fleet {
    store: Arc<dyn Store>,
    services: Vec<(Bench, Arc<GatedStore>)>,
    next: usize,
    /// When each service was cut off from the store.
    cut_off: [Option<Instant>; SERVICES],
    /// Whether one was cut off for longer than refunds wait for its hits.
    is_late: bool,
}

impl Fleet {
    fn start() -> Self {
        let store = memory();
        let services = (0..SERVICES).map(|_| service(&store)).collect();
        Self { store, services, next: 0, cut_off: [None; SERVICES], is_late: false }
    }

    async fn ask(&mut self, descriptors: &[Descriptor]) -> Option<Code> {
        self.next = (self.next + 1) % SERVICES;
        let asked = self.services[self.next].0.try_ask(descriptors);
        let is_open = self.cut_off[self.next].is_none();
        let patience = Duration::from_millis(if is_open { 60_000 } else { 100 });
        let answered = tokio::time::timeout(patience, asked).await;
        Some(answered.ok()?.ok()?.overall_code())
    }

    /// Lets a service reach the store, and waits until it owes nothing.
    async fn open(&mut self, at: usize) {
        let (bench, store) = &self.services[at];
        store.set(Gate::Open);
        // What a call has reserved for a refused request is refunded once, or lost.
        bench.service.settle().await;
        let cut_off = self.cut_off[at].take();
        self.is_late |= cut_off.is_some_and(|since| since.elapsed() > Duration::from_secs(4));
    }

    /// The hits that a counter has, by a service that knows of nothing.
    async fn used(&self, text: &str, limit: u32) -> u32 {
        let bench =
            Bench::with(RULES, AnswerOptions::default(), counting(), Arc::clone(&self.store));
        limit - statuses(&bench.ask(&[hits(text, 0)]).await)[0].1
    }
}

fn service(store: &Arc<dyn Store>) -> (Bench, Arc<GatedStore>) {
    let store = GatedStore::over(Arc::clone(store));
    let bench = Bench::with(RULES, AnswerOptions::default(), counting(), Arc::clone(&store) as _);
    (bench, store)
}

fn stream(party: usize) -> [Descriptor; 2] {
    [descriptor(&format!("slots={party}")), descriptor("org=o")]
}

fn end_of(party: usize) -> [Descriptor; 2] {
    stream(party).map(|one| Descriptor { is_negative_hits: true, hits_addend: Some(1), ..one })
}

/// Events of a history beside requests.
#[derive(Clone, Copy, PartialEq)]
enum Trouble {
    Nothing,
    /// Services are cut off from the store, and restart.
    Faults,
}

async fn history(seed: u64, trouble: Trouble) {
    let mut random = Random(seed);
    let mut fleet = Fleet::start();
    // In the first second of a rule, services learn that its hits are refunded.
    for _ in 0..SERVICES {
        fleet.ask(&stream(0)).await;
        fleet.ask(&end_of(0)).await;
    }
    // Parties of streams: that were admitted, and that pass although nobody answered.
    let (mut open, mut unanswered) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        match random.below(20) {
            0 if trouble == Trouble::Faults => {
                let gate = [Gate::Away, Gate::Frozen][random.below(2)];
                let at = random.below(SERVICES);
                fleet.open(at).await;
                fleet.services[at].1.set(gate);
                fleet.cut_off[at] = Some(Instant::now());
            }
            1 | 2 if trouble == Trouble::Faults => fleet.open(random.below(SERVICES)).await,
            3 if trouble == Trouble::Faults => {
                let at = random.below(SERVICES);
                fleet.open(at).await;
                fleet.services[at] = service(&fleet.store);
            }
            4..=11 => {
                let party = random.below(2);
                match fleet.ask(&stream(party)).await {
                    Some(Code::Ok) => open.push(party),
                    // Its stream ends at once.
                    Some(_) => drop(fleet.ask(&end_of(party)).await),
                    None => unanswered.push(party),
                }
            }
            _ => {
                let ends = if random.below(2) == 0 { &mut open } else { &mut unanswered };
                if !ends.is_empty() {
                    let party = ends.swap_remove(random.below(ends.len()));
                    fleet.ask(&end_of(party)).await;
                }
            }
        }
        if trouble == Trouble::Nothing {
            let most = open.iter().filter(|party| **party == 0).count();
            assert!(most <= 4 && open.len() <= 6, "seed {seed}: {open:?} are open");
        }
    }
    // What is open counts.
    for at in 0..SERVICES {
        fleet.open(at).await;
    }
    let counted = fleet.used("org=o", 6).await;
    let running = u32::try_from(open.len()).unwrap();
    assert!(counted >= running.min(6), "seed {seed}: {counted} of {running} streams count");
    for party in open.into_iter().chain(unanswered) {
        fleet.ask(&end_of(party)).await;
    }
    if fleet.is_late {
        eprintln!(
            "seed {seed}: a service was cut off for so long that refunds did not wait for it"
        );
        return;
    }
    for (text, limit) in [("slots=0", 4), ("slots=1", 4), ("org=o", 6)] {
        until(&format!("seed {seed}: the last refund of {text}"), async || {
            fleet.used(text, limit).await == 0
        })
        .await;
    }
    // A service asks again about a counter that it knew to be spent.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    // Nobody keeps what a later stream refunds.
    for party in 0..2 {
        for _ in 0..4 {
            assert_eq!(fleet.ask(&stream(party)[..1]).await, Some(Code::Ok), "seed {seed}");
        }
        let fifth = fleet.ask(&stream(party)[..1]).await;
        assert_eq!(fifth, Some(Code::OverLimit), "seed {seed}");
        for _ in 0..5 {
            fleet.ask(&end_of(party)[..1]).await;
        }
        let slots = format!("slots={party}");
        until("the refunds", async || fleet.used(&slots, 4).await == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_several_services_leave_nothing_and_never_exceed_the_limit() {
    futures_util::future::join_all((0..20).map(|seed| history(seed, Trouble::Nothing))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_leave_nothing_after_faults_and_restarts() {
    futures_util::future::join_all((0..20).map(|seed| history(seed, Trouble::Faults))).await;
}
