//! Counts requests of one domain: drives the [`Worker`] of the core with a store in this process.

use std::collections::BTreeMap;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use quotagate_protocol::{Grant, OnFailure, ReserveRequest};
use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Balance, Decision, Held, Standing, Uncounted};
use quotagate_quota::driver::TICK;
use quotagate_quota::evaluate::{Check, Counter};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{
    AnsweredBy, CallEnd, CallFault, CallId, OutgoingCall, OutgoingFetch, Submitted, Ticket, Worker,
};
use quotagate_store::server::{CallEndpoint, CarriedOut, Refusal};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::owed::look;

/// The counters of one domain.
///
/// Requests that arrive while a call to the store is under way share the next one. A counter that
/// is known to be spent refuses without a call.
///
/// Call order: [`open`](Self::open) it in a Tokio runtime, then [`decide`](Self::decide) for each
/// request. Dropping the last reference ends its background work.
pub struct DomainCounters {
    endpoint: Arc<CallEndpoint>,
    core: Mutex<Core>,
    /// Notified when ticks must begin.
    begin_ticks: Notify,
    /// The origin of the worker's clock.
    origin: Instant,
}

/// State of a counter, as a look finds it.
#[derive(Clone, Copy, Debug)]
pub struct CounterReading {
    /// Units that it has left.
    pub balance: Balance,
    /// The units that it has used beyond its quota.
    pub debt: u64,
}

struct Core {
    worker: Worker<oneshot::Sender<Decision>>,
    is_ticking: bool,
}

/// A request that waits for its decision. Dropping it cancels the request.
struct Waiting<'c> {
    counters: &'c Arc<DomainCounters>,
    ticket: Option<Ticket>,
    decision: oneshot::Receiver<Decision>,
}

impl DomainCounters {
    /// Counters that have counted nothing.
    pub fn open(config: Arc<Config>, endpoint: Arc<CallEndpoint>) -> Arc<Self> {
        let seed = RandomState::new().hash_one(&config.domain);
        let worker = Worker::new(config, seed);
        let core = Core { worker, is_ticking: false };
        let counters = Arc::new(Self {
            endpoint,
            core: Mutex::new(core),
            begin_ticks: Notify::new(),
            origin: Instant::now(),
        });
        tokio::spawn(tick(Arc::downgrade(&counters)));
        counters
    }

    /// The configuration in force, with the dials of operators.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(self.lock().worker.config())
    }

    /// Decides a request that takes these units, of all of these counters or of none. `checks` are
    /// made with the configuration that [`begin`](Self::begin) returned, in the order of the
    /// policies, and no two of them are of the same counter.
    ///
    /// The units of an admitted request count unless they are [refunded](Self::refund). Dropping
    /// the future before the decision takes no units.
    pub async fn decide(self: &Arc<Self>, checks: Vec<Check>) -> Decision {
        let (sender, decision) = oneshot::channel();
        let mut waiting = Waiting { counters: self, ticket: None, decision };
        {
            let mut core = self.lock();
            match core.worker.submit(sender, checks, self.now()) {
                Submitted::Decided(decision) => {
                    self.go_on(&mut core);
                    return decision;
                }
                // Every policy holds its units, so none counts in passing.
                Submitted::Counting(admission) => return Decision::Admit(admission),
                Submitted::Waiting(ticket) => waiting.ticket = Some(ticket),
            }
            self.go_on(&mut core);
        }
        let decided = (&mut waiting.decision).await;
        waiting.ticket = None;
        // A worker decides every request that waits, unless it panics.
        decided.unwrap_or_else(|_| self.without_worker())
    }

    /// A request arrives. Returns the configuration to make its checks with.
    pub fn begin(self: &Arc<Self>) -> Arc<Config> {
        let mut core = self.lock();
        let config = Arc::clone(core.worker.observe_traffic(self.now()));
        self.go_on(&mut core);
        config
    }

    /// Refunds units of admitted requests. Pass each only once.
    pub fn refund(self: &Arc<Self>, held: Vec<Held>) {
        let mut core = self.lock();
        core.worker.refund(held, self.now());
        self.go_on(&mut core);
    }

    /// Looks at counters, and takes nothing of them. The worker remembers those that are spent.
    ///
    /// # Errors
    /// When the store has not answered for all of them.
    pub async fn look(
        self: &Arc<Self>,
        looks: Vec<Counter>,
    ) -> Result<BTreeMap<Counter, CounterReading>, String> {
        let timeout = self.config().store.timeout;
        let request = ReserveRequest {
            budget_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            refunds: Vec::new(),
            charges: Vec::new(),
            reservations: looks.iter().map(look).collect(),
        };
        let carried_out = self.endpoint.call(request, Instant::now()).await;
        let grants = carried_out.map_err(|refusal| refusal.to_string())?.take().grants;
        let (mut core, now) = (self.lock(), self.now());
        let mut read = BTreeMap::new();
        let mut failed = None;
        for (counter, grant) in looks.into_iter().zip(grants) {
            let grant = match grant {
                Ok(grant) => grant,
                Err(why) => {
                    failed = Some(why);
                    continue;
                }
            };
            let Grant { used, quota, window, window_s, reset_ms, .. } = grant;
            let resets = now + Duration::from_millis(reset_ms);
            let remaining = quota.saturating_sub(used);
            let balance = Balance { quota, remaining, resets, window_s };
            core.worker.learn(&counter, window, balance, now);
            read.insert(counter, CounterReading { balance, debt: used.saturating_sub(quota) });
        }
        self.go_on(&mut core);
        failed.map_or(Ok(read), Err)
    }

    /// A request that only looked is refused.
    pub fn count_refusal(self: &Arc<Self>, standing: &Standing) {
        let mut core = self.lock();
        core.worker.count_standing(standing);
        self.go_on(&mut core);
    }

    /// Starts work of a request that outlives its caller. The shutdown waits for it.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.endpoint.spawn(work)
    }

    /// Waits until nothing is leased or on its way to the store: calls, and what requests refunded.
    /// Leases end a moment after the last request.
    pub async fn settled(&self) {
        while self.lock().worker.holds_units() {
            tokio::time::sleep(TICK).await;
        }
    }

    /// The time of the worker's clock.
    pub fn now(&self) -> Monotonic {
        Monotonic::new(self.origin.elapsed())
    }

    /// Hands out decisions, and sends what is due.
    fn go_on(self: &Arc<Self>, core: &mut Core) {
        let now = self.now();
        while let Some((request, decision)) = core.worker.next_decision() {
            // A request that was cancelled at this moment takes nothing.
            if let Err(Decision::Admit(admission)) = request.send(decision) {
                core.worker.refund(admission.into_held(), now);
            }
        }
        while let Some(call) = core.worker.next_call(now) {
            let counters = Arc::clone(self);
            tokio::spawn(async move { counters.call(call).await });
        }
        while let Some(fetch) = core.worker.next_fetch(now) {
            let counters = Arc::clone(self);
            tokio::spawn(async move { counters.fetch(fetch).await });
        }
        for notice in core.worker.take_notices() {
            tracing::warn!("{}: {notice}", core.worker.config().domain);
        }
        if !core.is_ticking && !core.worker.is_idle() {
            core.is_ticking = true;
            self.begin_ticks.notify_one();
        }
    }

    async fn call(self: Arc<Self>, call: OutgoingCall) {
        let OutgoingCall { id, request, .. } = call;
        let carried_out = self.endpoint.call(request, Instant::now()).await;
        let mut core = self.lock();
        match carried_out {
            Ok(carried_out) => core.carried_out(id, carried_out, self.now()),
            Err(refusal) => core.worker.call_not_sent(id, &refused(&refusal), self.now()),
        }
        self.go_on(&mut core);
    }

    async fn fetch(self: Arc<Self>, fetch: OutgoingFetch) {
        let OutgoingFetch { id, domain, report, timeout, .. } = fetch;
        let report = report.unwrap_or_default();
        let dials = self.endpoint.dials(&domain, report.as_bytes());
        let dials = tokio::time::timeout(timeout, dials).await;
        let mut core = self.lock();
        let now = self.now();
        match dials {
            Ok(Ok(dials)) => {
                // Writing numbers and strings into memory cannot fail.
                let body = serde_json::to_vec(&dials).unwrap_or_default();
                let (by, size) = (AnsweredBy::Store, body.len());
                core.worker.call_ended(id, &CallEnd::Answered { status: 200, by, body, size }, now);
            }
            Ok(Err(refusal)) => core.worker.call_not_sent(id, &refused(&refusal), now),
            Err(_) => core.worker.call_not_sent(id, &CallFault::TimedOut, now),
        }
        self.go_on(&mut core);
    }

    /// Time has passed. Returns whether the next tick must come.
    fn tick(self: &Arc<Self>) -> bool {
        let mut core = self.lock();
        core.worker.tick(self.now());
        // Reports count only what metrics have taken. The metrics of the service count by
        // themselves.
        core.worker.take_tally();
        self.go_on(&mut core);
        core.is_ticking = !core.worker.is_idle();
        core.is_ticking
    }

    /// After a panic the state of the worker is unknown, so a new one takes over. Requests that
    /// wait for the old one are decided as if the store had failed, and its units are lost, so that
    /// no limit is exceeded.
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|poisoned| {
            self.core.clear_poison();
            let mut core = poisoned.into_inner();
            let seed = RandomState::new().hash_one(self.now());
            core.worker = core.worker.successor(seed);
            tracing::error!(
                "the counters of {} panicked; please report this",
                core.worker.config().domain
            );
            core
        })
    }

    /// The decision on a request whose worker panicked.
    fn without_worker(&self) -> Decision {
        match self.config().store.on_failure {
            OnFailure::Deny => Decision::Unavailable(Uncounted { policy: 0, key: "".into() }),
            OnFailure::Allow | OnFailure::Local => Decision::Admit(Admission::default()),
        }
    }
}

impl Core {
    fn carried_out(&mut self, id: CallId, carried_out: CarriedOut, now: Monotonic) {
        // A call that has ended before is dropped, and with that refunded.
        if self.worker.awaits(id) {
            self.worker.carried_out(id, carried_out.take(), now);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let (mut core, now) = (self.counters.lock(), self.counters.now());
            core.worker.cancel(ticket, now);
            // The decision may have been sent already.
            self.decision.close();
            if let Ok(Decision::Admit(admission)) = self.decision.try_recv() {
                core.worker.refund(admission.into_held(), now);
            }
            self.counters.go_on(&mut core);
        }
    }
}

/// Ticks the worker while it needs time, until its domain is gone and it has refunded what it
/// leased.
async fn tick(counters: Weak<DomainCounters>) {
    /// How often an idle domain looks whether it is gone.
    const LOOK: Duration = Duration::from_secs(1);
    /// The counters of a domain that is gone need time no longer than this.
    const LINGER: Duration = Duration::from_secs(60);
    while let Some(counters) = counters.upgrade() {
        if tokio::time::timeout(LOOK, counters.begin_ticks.notified()).await.is_err() {
            continue;
        }
        let mut used = Instant::now();
        loop {
            tokio::time::sleep(TICK).await;
            if Arc::strong_count(&counters) > 1 {
                used = Instant::now();
            }
            // After a panic, the next tick finds a new worker.
            let goes_on = catch_unwind(AssertUnwindSafe(|| counters.tick())).unwrap_or(true);
            if !goes_on || used.elapsed() > LINGER {
                break;
            }
        }
    }
}

fn refused(refusal: &Refusal) -> CallFault<'static> {
    CallFault::Declined(refusal.to_string())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use quotagate_protocol::{Mode, Window};
    use quotagate_quota::config::{HostedPolicy, Precision, Reach, RedisStore, StoreConfig};
    use quotagate_store::server::Connections;

    use super::*;

    #[tokio::test]
    async fn worker_that_panicked_has_a_successor() {
        let store = quotagate_store::open(&"redis://127.0.0.1:1".parse().unwrap(), "qg");
        let endpoint = Arc::new(CallEndpoint::new(store, Arc::<Connections>::default()));
        let (url, prefix) = ("redis://127.0.0.1:1".into(), "qg".into());
        let store = StoreConfig {
            reach: Reach::Redis(RedisStore { url, password_file: None, prefix }),
            timeout: Duration::from_secs(20),
            on_failure: OnFailure::Deny,
            local_share: 0.1,
        };
        let window = Window::new(60, 0).unwrap();
        let policy = HostedPolicy {
            name: "p".into(),
            quota: 5,
            window: window.clone(),
            mode: Mode::Enforce,
            partition_by: Vec::new(),
            precision: Precision::Exact,
            count_denied: false,
        };
        let config = Config::hosted("d", store, vec![policy]);
        let counter = Counter { key: "d:p:{*}".into(), quota: 5, window };
        let check = Check { policy: 0, counter, cost: NonZeroU64::MIN, mode: Mode::Enforce };
        let counters = DomainCounters::open(Arc::new(config), endpoint);
        let (waiting, asked) = (Arc::clone(&counters), vec![check]);
        let waiting = tokio::spawn(async move { waiting.decide(asked).await });
        tokio::task::yield_now().await;
        let poisoned = Arc::clone(&counters);
        let panicked = std::thread::spawn(move || {
            let _core = poisoned.core.lock();
            panic!("as a test");
        });
        assert!(panicked.join().is_err());
        counters.begin();
        assert!(!counters.core.is_poisoned());
        let decision = waiting.await.unwrap();
        assert!(matches!(decision, Decision::Unavailable(_)), "{decision:?}");
    }
}
