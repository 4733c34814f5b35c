//! What one Envoy worker's root and its streams share: the worker of the pure core, its calls and
//! its clock.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use log::warn;
use proxy_wasm::hostcalls;
use quotagate_quota::access_log;
use quotagate_quota::config::{Config, Reach};
use quotagate_quota::decision::Decision;
use quotagate_quota::exchange::{Arrival, Exchange, Patience};
use quotagate_quota::mark;
use quotagate_quota::response::{self, Now};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{CallFault, CallId, MAX_IN_FLIGHT, Worker};

use crate::call::{self, StoreAddress};
use crate::facts::Reading;
use crate::host;
use crate::redirects::Redirects;
use crate::statistics::Statistics;

/// The period of ticks. Envoy keeps periods of 10 ms and more.
const TICK: Duration = Duration::from_millis(10);
/// Ticking stops after this many ticks without work.
const IDLE_TICKS: u32 = 100;
/// Most streams resumed or answered in one callback, since Envoy runs what follows from each nested
/// on the stack.
const MAX_RESUMES: usize = 32;
/// Most calls under way. More than these belong to a drained root, and their replies never arrive.
const MAX_CALLS: usize = 16 * MAX_IN_FLIGHT;

/// A request of a worker.
pub struct Waiting {
    /// Its stream.
    pub stream: u32,
    /// Its state.
    pub exchange: Rc<RefCell<Exchange>>,
}

/// The state that a root shares with its streams.
pub struct Plugin {
    pub root: u32,
    pub worker: RefCell<Worker<Waiting>>,
    /// The Envoy cluster of the store, and the value of `authorization` in calls to it.
    cluster: Box<str>,
    authorization: Option<Box<str>>,
    statistics: RefCell<Statistics>,
    /// The reading that would have been cheapest for the last request.
    pub reading: Cell<Reading>,
    /// Requests that Envoy redirected internally.
    pub redirects: Redirects,
    calls: RefCell<Vec<(u32, CallId)>>,
    /// The streams whose request bodies are read, and how long.
    bodies: RefCell<BTreeMap<u32, (Patience, Waiting)>>,
    /// A shared queue of this root: a message to it causes a new callback on this worker. It is
    /// registered with the first decision that needs it, so that the main thread has none.
    queue: Cell<Option<u32>>,
    /// Whether a message is in the queue.
    callback_pending: Cell<bool>,
    ticking: Cell<bool>,
    idle_ticks: Cell<u32>,
    origin: Instant,
    random: u64,
}

impl Plugin {
    /// The state of the root context `root`.
    pub fn new(root: u32, mut config: Config) -> Self {
        let random = RandomState::new().hash_one(root);
        let store = config.store.reach.called_by_envoy().ok().cloned();
        if store.is_none() {
            // The document was refused, and names no cluster that can be used: no calls, and no
            // reports.
            config.store.reach = Reach::Nowhere;
        }
        let authorization = store.as_ref().and_then(|store| store.token.as_ref());
        Self {
            root,
            authorization: authorization.map(|token| format!("Bearer {token}").into()),
            cluster: store.map(|store| store.name).unwrap_or_default(),
            worker: RefCell::new(Worker::new(Arc::new(config), random)),
            statistics: RefCell::default(),
            reading: Cell::new(Reading::Single),
            redirects: Redirects::new(random),
            calls: RefCell::default(),
            bodies: RefCell::default(),
            queue: Cell::new(None),
            callback_pending: Cell::new(false),
            ticking: Cell::new(false),
            idle_ticks: Cell::new(0),
            origin: Instant::now(),
            random,
        }
    }

    /// The time for the worker.
    pub fn now(&self) -> Monotonic {
        Monotonic::new(self.origin.elapsed())
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(self.worker.borrow().config())
    }

    /// The time for response headers.
    pub fn response_time(&self) -> Now {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Now { monotonic: self.now(), epoch }
    }

    /// Sends the calls and the fetch of dials that are due, and logs notices. The active context
    /// must be the root.
    pub fn dispatch(&self) {
        let mut worker = self.worker.borrow_mut();
        let now = self.now();
        let store =
            StoreAddress { cluster: &self.cluster, authorization: self.authorization.as_deref() };
        while let Some(call) = worker.next_call(now) {
            let sent = call::send(&store, &call.body(), call.timeout);
            self.await_or_fail(&mut worker, call.id, sent, now);
        }
        if let Some(fetch) = worker.next_fetch(now) {
            let sent = call::fetch(&store, &fetch);
            self.await_or_fail(&mut worker, fetch.id, sent, now);
        }
        for notice in worker.take_notices() {
            warn!("quotagate: {notice}");
        }
        drop(worker);
        self.wake();
    }

    fn await_or_fail(
        &self,
        worker: &mut Worker<Waiting>,
        id: CallId,
        sent: Result<u32, CallFault<'_>>,
        now: Monotonic,
    ) {
        match sent {
            Ok(token) => {
                let mut calls = self.calls.borrow_mut();
                if calls.len() >= MAX_CALLS {
                    calls.remove(0);
                }
                calls.push((token, id));
            }
            Err(fault) => {
                worker.call_not_sent(id, &fault, now);
            }
        }
    }

    /// Starts ticking if the worker needs it. Call it in a callback of the root or of one of its
    /// streams.
    pub fn wake(&self) {
        if !self.ticking.get() && !self.is_idle() {
            self.ticking.set(true);
            set_tick(TICK);
        }
    }

    fn is_idle(&self) -> bool {
        self.worker.borrow().is_idle() && self.bodies.borrow().is_empty()
    }

    /// The body of a request is read from now on.
    pub fn read_body_of(&self, waiting: Waiting) {
        let patience = Patience::new(self.now());
        self.bodies.borrow_mut().insert(waiting.stream, (patience, waiting));
    }

    /// More of the body of a request has come.
    pub fn body_came(&self, stream: u32, bytes: usize) {
        if let Some((patience, _)) = self.bodies.borrow_mut().get_mut(&stream) {
            patience.came(bytes, self.now());
        }
    }

    /// The body of a request is not read any more.
    pub fn stop_reading(&self, stream: u32) {
        self.bodies.borrow_mut().remove(&stream);
    }

    /// Submits requests whose bodies take too long, at most [`MAX_RESUMES`], in a callback of the
    /// root.
    pub fn give_up_reading(&self) {
        let now = self.now();
        let late: Vec<u32> = {
            let bodies = self.bodies.borrow();
            let is_late = |(_, (patience, _)): &(&u32, &(Patience, Waiting))| patience.is_over(now);
            bodies.iter().filter(is_late).map(|(id, _)| *id).take(MAX_RESUMES).collect()
        };
        for id in late {
            let Some((_, waiting)) = self.bodies.borrow_mut().remove(&id) else { continue };
            if !host::enter(id) {
                continue;
            }
            let who = Waiting { stream: id, exchange: Rc::clone(&waiting.exchange) };
            let arrival = waiting.exchange.borrow_mut().request_body_late(
                who,
                &mut self.worker.borrow_mut(),
                now,
            );
            if matches!(arrival, Some(Arrival::Decided | Arrival::Counting)) {
                let exchange = waiting.exchange.borrow();
                self.conclude(&exchange, true, &self.config());
            }
        }
    }

    /// Carries out the decision of a request, in a callback of the root. Returns whether it resumed
    /// or answered the stream.
    fn carry_out(&self, waiting: &Waiting, decision: Decision, config: &Config) -> bool {
        // A stream that is gone needs nothing, and the stream that is active instead must not get
        // its answer. `on_done` ran before, and `Worker::cancel` refunded the units.
        let there = host::enter(waiting.stream);
        let mut exchange = waiting.exchange.borrow_mut();
        let held = exchange.decided(decision, there, &mut self.worker.borrow_mut(), self.now());
        if there {
            self.conclude(&exchange, held, config);
        }
        held
    }

    /// Shows the decision of the active stream in the access log. Resumes or answers it if it is
    /// held.
    fn conclude(&self, exchange: &Exchange, held: bool, config: &Config) {
        let Some(decision) = exchange.decision() else { return };
        host::note(access_log::entry(config, decision));
        if held {
            match response::answer(config, decision, || self.response_time()) {
                Some(answer) => host::send(&answer, host::is_grpc_request),
                None => {
                    if let Some(mark) = mark::exceeded(config, decision) {
                        host::mark(&mark);
                    }
                    host::resume_request();
                }
            }
        }
    }

    /// Adds the worker's counts to Envoy's metrics.
    pub fn flush_statistics(&self) {
        let tally = self.worker.borrow_mut().take_tally();
        if !tally.is_empty() {
            let config = self.config();
            self.statistics.borrow_mut().add(&config, tally);
        }
    }

    /// Resumes or answers decided requests, at most [`MAX_RESUMES`], and schedules a callback for
    /// the rest.
    pub fn answer(&self) {
        let mut resumed = 0;
        let config = self.config();
        while resumed < MAX_RESUMES {
            let decided = self.worker.borrow_mut().next_decision();
            let Some((waiting, decision)) = decided else { break };
            if self.carry_out(&waiting, decision, &config) {
                resumed += 1;
            }
        }
        self.schedule_answers();
        host::enter(self.root);
    }

    /// Takes the message that caused a callback. `false`: `queue` is not the queue of this root.
    pub fn take_message(&self, queue: u32) -> bool {
        let own = self.queue.get() == Some(queue);
        if own {
            self.callback_pending.set(false);
            // The message is empty. Taking it empties the queue.
            let _ = hostcalls::dequeue_shared_queue(queue);
        }
        own
    }

    /// Schedules a callback if decisions are left.
    pub fn schedule_answers(&self) {
        if self.callback_pending.get() || !self.worker.borrow().has_decisions() {
            return;
        }
        let queue = self.queue.get().or_else(|| {
            hostcalls::register_shared_queue(&format!(
                "quotagate.{:016x}.{}",
                self.random, self.root
            ))
            .ok()
        });
        self.queue.set(queue);
        // Without the queue, or room in it, the next tick answers.
        let pending =
            queue.is_some_and(|queue| hostcalls::enqueue_shared_queue(queue, None).is_ok());
        self.callback_pending.set(pending);
    }

    /// Takes out the call with this token of the host.
    pub fn take_call(&self, token: u32) -> Option<CallId> {
        let mut calls = self.calls.borrow_mut();
        let index = calls.iter().position(|(known, _)| *known == token)?;
        Some(calls.remove(index).1)
    }

    /// Stops the ticking after a second without work.
    pub fn rest_when_idle(&self) {
        let idle = if self.is_idle() { self.idle_ticks.get() + 1 } else { 0 };
        self.idle_ticks.set(idle);
        if idle >= IDLE_TICKS {
            self.idle_ticks.set(0);
            self.ticking.set(false);
            set_tick(Duration::ZERO);
        }
    }
}

fn set_tick(period: Duration) {
    // Envoy reports no error for this.
    let _ = hostcalls::set_tick_period(period);
}
