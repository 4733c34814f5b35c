//! Counts requests of one domain: drives the [`Worker`] of the core with a store in this process.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use quotagate_quota::config::Config;
use quotagate_quota::decision::{Decision, Held};
use quotagate_quota::driver::TICK;
use quotagate_quota::evaluate::Check;
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{
    AnsweredBy, CallEnd, CallFault, CallId, Counted, OutgoingCall, OutgoingFetch, Submitted,
    Ticket, Worker,
};
use quotagate_store::server::{CallEndpoint, CarriedOut, Refusal};
use tokio::sync::{Notify, oneshot};

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

struct Core {
    worker: Worker<oneshot::Sender<Decision>>,
    is_ticking: bool,
}

/// A request that waits for its decision. Dropping it cancels the request.
struct Waiting<'c> {
    counters: &'c Arc<DomainCounters>,
    ticket: Option<Ticket>,
}

impl DomainCounters {
    /// Counters that have counted nothing.
    pub fn open(config: Arc<Config>, endpoint: Arc<CallEndpoint>) -> Arc<Self> {
        let seed = RandomState::new().hash_one(&config.domain);
        let core = Core { worker: Worker::new(config, seed), is_ticking: false };
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
        let mut waiting = Waiting { counters: self, ticket: None };
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
        let decided = decision.await;
        waiting.ticket = None;
        // The worker decides every request that waits, so the sender is never dropped.
        decided.unwrap_or_else(|_| Decision::Admit(Default::default()))
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

    /// Takes the counts of outcomes since the last call, for metrics.
    pub fn take_tally(&self) -> Vec<(Counted, u64)> {
        self.lock().worker.take_tally()
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
        self.go_on(&mut core);
        core.is_ticking = !core.worker.is_idle();
        core.is_ticking
    }

    /// A panic leaves the worker as it was between two of its events.
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut core = self.counters.lock();
            core.worker.cancel(ticket, self.counters.now());
            self.counters.go_on(&mut core);
        }
    }
}

/// Ticks the worker while it needs time, until its domain is gone.
async fn tick(counters: Weak<DomainCounters>) {
    /// How often an idle domain looks whether it is gone.
    const LOOK: Duration = Duration::from_secs(1);
    loop {
        let Some(strong) = counters.upgrade() else { return };
        if tokio::time::timeout(LOOK, strong.begin_ticks.notified()).await.is_err() {
            continue;
        }
        loop {
            tokio::time::sleep(TICK).await;
            if !strong.tick() {
                break;
            }
        }
    }
}

fn refused(refusal: &Refusal) -> CallFault<'static> {
    CallFault::Declined(refusal.to_string())
}
