//! What one Envoy worker's root and its streams share: the driver of the pure core, its calls and
//! its clock.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use log::warn;
use proxy_wasm::hostcalls;
use proxy_wasm::types::Action;
use quotagate_quota::access_log;
use quotagate_quota::config::{ClusterStore, Config, Reach};
use quotagate_quota::decision::Decision;
use quotagate_quota::driver::{self, Driver, HostWork, TICK};
use quotagate_quota::exchange::{Arrival, Exchange, StreamState};
use quotagate_quota::response::Now;
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{CallId, MAX_IN_FLIGHT};

use crate::call::{self, StoreAddress};
use crate::facts::Reading;
use crate::redirects::Redirects;
use crate::statistics::Statistics;
use crate::{good_documents, host, process};

/// Most streams resumed or answered in one callback, since Envoy runs what follows from each nested
/// on the stack.
const MAX_RESUMES: usize = 32;
/// Most calls under way. More than these belong to a drained root, and their replies never arrive.
const MAX_CALLS: usize = 16 * MAX_IN_FLIGHT;
/// How long a root that was replaced waits for its last calls.
const LAST_CALLS: Duration = Duration::from_secs(1);

/// A request of a worker.
#[derive(Clone)]
pub struct Waiting {
    /// Its stream.
    pub stream: u32,
    /// Its state.
    pub exchange: Rc<RefCell<Exchange>>,
}

/// The state that a root shares with its streams.
pub struct Plugin {
    pub root: u32,
    pub driver: RefCell<Driver<u32, Waiting>>,
    /// The Envoy cluster of the store, and the value of `authorization` in calls to it.
    cluster: Box<str>,
    authorization: Option<Box<str>>,
    statistics: RefCell<Statistics>,
    /// The reading that would have been cheapest for the last request.
    pub reading: Cell<Reading>,
    /// Memory in which one value of a header after the other is written.
    pub scratch: RefCell<String>,
    /// Requests that Envoy redirected internally.
    pub redirects: Redirects,
    calls: RefCell<Vec<(u32, CallId)>>,
    /// A shared queue of this root: a message to it causes a new callback on this worker. It is
    /// registered when a callback is first needed, so that the main thread has none. Envoy removes
    /// it with the last VM of its `vm_id`.
    queue: Cell<Option<u32>>,
    /// Whether a message was sent whose callback has not come. A tick forgets that, in case the
    /// message was lost.
    callback_pending: Cell<bool>,
    /// When Envoy may delete the root at the latest, once it wants to.
    ends_by: Cell<Option<Monotonic>>,
    origin: Instant,
    random: u64,
}

impl Plugin {
    /// The state of the root context `root`.
    pub fn new(root: u32, mut config: Config) -> Self {
        let random = RandomState::new().hash_one(root);
        config.process = process::id();
        let store = config.store.reach.called_by_envoy().ok().cloned();
        if store.is_none() {
            // The document was refused, and names no cluster that can be used: no calls, and no
            // reports.
            config.store.reach = Reach::Nowhere;
        }
        Self {
            root,
            authorization: store.as_ref().and_then(ClusterStore::authorization),
            cluster: store.map(|store| store.name).unwrap_or_default(),
            driver: RefCell::new(
                Driver::new(Arc::new(config), random).with_index(process::worker()),
            ),
            statistics: RefCell::default(),
            reading: Cell::new(Reading::Single),
            scratch: RefCell::default(),
            redirects: Redirects::new(random),
            calls: RefCell::default(),
            queue: Cell::new(None),
            callback_pending: Cell::new(false),
            ends_by: Cell::new(None),
            origin: Instant::now(),
            random,
        }
    }

    /// Takes up what this filter took up last in this process, and begins to ask for the published
    /// document if the embedded one is live. Call it before [`take_up`](Self::take_up).
    pub fn inherit(&self) {
        let mut driver = self.driver.borrow_mut();
        if let Some(embedded) = driver.embedded() {
            if let Some(document) = good_documents::published(&embedded.domain) {
                driver.inherit(Arc::new(document));
            }
            set_tick(TICK);
        }
    }

    /// Takes up the published document that has come, if this form of the filter can carry it out.
    pub fn take_up(&self, carried_out: impl FnOnce(Config) -> Result<Config, Vec<String>>) {
        let (document, embedded) = {
            let driver = self.driver.borrow();
            let Some(document) = driver.document() else { return };
            (Arc::clone(document), driver.embedded().cloned())
        };
        let Some(embedded) = embedded else { return };
        self.flush_statistics();
        let config = document.config(&embedded).map_err(Vec::from).and_then(carried_out);
        if self.driver.borrow_mut().take_up(&document, config, self.now()) {
            good_documents::keep_published(&embedded.domain, &document);
        }
    }

    /// The time for the worker.
    pub fn now(&self) -> Monotonic {
        Monotonic::new(self.origin.elapsed())
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<Config> {
        Arc::clone(self.driver.borrow().config())
    }

    /// The time for response headers.
    pub fn response_time(&self) -> Now {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Now { monotonic: self.now(), epoch }
    }

    /// Whether [`dispatch`](Self::dispatch) has something to do. It needs the context of the root,
    /// and to change that twice costs more than this.
    pub fn has_messages(&self, now: Monotonic) -> bool {
        self.driver.borrow_mut().has_messages(now)
    }

    /// Schedules a callback that sends the next call, if more requests may join it: several shared
    /// the last one. The callback comes after all that this turn of Envoy's event loop reads.
    /// `false`: nothing was scheduled, and the call should leave now.
    pub fn schedule_call(&self) -> bool {
        self.driver.borrow().gathers() && self.schedule_callback()
    }

    /// Sends the calls and the fetch of dials that are due, and logs notices. The active context
    /// must be the root.
    pub fn dispatch(&self) {
        let mut driver = self.driver.borrow_mut();
        let now = self.now();
        let store =
            StoreAddress { cluster: &self.cluster, authorization: self.authorization.as_deref() };
        while let Some(message) = driver.next_send(now) {
            match call::send(&store, &message) {
                (id, Ok(token)) => self.expect_end(token, id),
                (id, Err(fault)) => driver.call_not_sent(id, &fault, now),
            }
        }
        for notice in driver.take_notices() {
            warn!("quotagate: {notice}");
        }
        drop(driver);
        self.wake();
    }

    fn expect_end(&self, token: u32, id: CallId) {
        let mut calls = self.calls.borrow_mut();
        if calls.len() >= MAX_CALLS {
            calls.remove(0);
        }
        calls.push((token, id));
    }

    /// Starts ticking if the driver needs it. Call it in a callback of the root or of one of its
    /// streams.
    pub fn wake(&self) {
        if self.driver.borrow_mut().begins_ticks(HostWork::None) {
            // Envoy keeps periods of 10 ms and more.
            set_tick(TICK);
        }
    }

    /// Submits requests whose bodies take too long, at most [`MAX_RESUMES`], in a callback of the
    /// root.
    pub fn give_up_reading(&self) {
        let now = self.now();
        let driver = self.driver.borrow();
        let late: Vec<_> = driver.late_bodies(now).take(MAX_RESUMES).cloned().collect();
        drop(driver);
        for who in late {
            if !host::enter(who.stream) {
                self.driver.borrow_mut().stop_reading(&who.stream);
                continue;
            }
            let mut exchange = who.exchange.borrow_mut();
            let arrival =
                self.driver.borrow_mut().request_body_late(who.for_driver(&mut exchange), now);
            if matches!(arrival, Some(Arrival::Decided | Arrival::Counting)) {
                self.conclude(&exchange, true, &self.config());
            }
        }
    }

    /// Carries out the decision of a request, in a callback of the root. Returns whether it resumed
    /// or answered the stream.
    fn carry_out(
        &self,
        waiting: &Waiting,
        decision: Decision,
        config: &Arc<Config>,
        now: Monotonic,
    ) -> bool {
        // A stream that is gone needs nothing, and the stream that is active instead must not get
        // its answer. `on_done` ran before, and `Worker::cancel` refunded the units.
        let exists = host::enter(waiting.stream);
        let state = if exists { StreamState::Open } else { StreamState::Gone };
        let mut exchange = waiting.exchange.borrow_mut();
        let held = self.driver.borrow_mut().decided(&mut exchange, decision, state, now);
        if exists {
            self.conclude(&exchange, held, config);
        }
        exchange.release_config();
        held
    }

    /// Shows the decision of the active stream in the access log. Resumes or answers it if it is
    /// held.
    fn conclude(&self, exchange: &Exchange, held: bool, in_force: &Arc<Config>) {
        let Some(decision) = exchange.decision() else { return };
        let config = exchange.config_or(in_force);
        host::note(access_log::entry(config, decision));
        if held {
            let action = driver::Action::on_decision(exchange, config, || self.response_time());
            if host::carry_out(action, host::is_grpc_request) == Action::Continue {
                host::resume_request();
            }
        }
    }

    /// Adds the worker's counts to Envoy's metrics.
    pub fn flush_statistics(&self) {
        let tally = self.driver.borrow_mut().take_tally();
        if !tally.is_empty() {
            let config = self.config();
            self.statistics.borrow_mut().add(&config, tally);
        }
    }

    /// Assumes that no message is in the queue, in each tick. If the last one was lost, the next
    /// callback can be scheduled again.
    pub fn forget_message(&self) {
        self.callback_pending.set(false);
    }

    /// Resumes or answers decided requests, at most [`MAX_RESUMES`], and schedules a callback for
    /// the rest.
    pub fn answer(&self) {
        let mut resumed = 0;
        let (config, now) = (self.config(), self.now());
        while resumed < MAX_RESUMES {
            let decided = self.driver.borrow_mut().next_decision();
            let Some((waiting, decision)) = decided else { break };
            if self.carry_out(&waiting, decision, &config, now) {
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
            // The message is empty, and each message has a callback of its own.
            let _ = hostcalls::dequeue_shared_queue(queue);
        }
        own
    }

    /// Schedules a callback if decisions are left.
    pub fn schedule_answers(&self) {
        if self.driver.borrow().has_decisions() {
            // Without it, the next tick answers.
            self.schedule_callback();
        }
    }

    /// Causes a callback of the root on this worker, after all that this turn of Envoy's event loop
    /// reads. `false` if there is no queue.
    fn schedule_callback(&self) -> bool {
        if self.callback_pending.get() {
            return true;
        }
        let queue = self.queue.get().or_else(|| {
            hostcalls::register_shared_queue(&format!(
                "quotagate.{:016x}.{}",
                self.random, self.root
            ))
            .ok()
        });
        self.queue.set(queue);
        let pending =
            queue.is_some_and(|queue| hostcalls::enqueue_shared_queue(queue, None).is_ok());
        self.callback_pending.set(pending);
        pending
    }

    /// Takes out the call with this token of the host.
    pub fn take_call(&self, token: u32) -> Option<CallId> {
        let mut calls = self.calls.borrow_mut();
        let index = calls.iter().position(|(known, _)| *known == token)?;
        Some(calls.remove(index).1)
    }

    /// Envoy wants to delete the root, as its last stream has ended. It would then cut the calls
    /// under way. If one of them frees slots, these would stay taken for 9 s. `false`: not yet, and
    /// [`end_after_calls`](Self::end_after_calls) lets it.
    pub fn may_end(&self) -> bool {
        if self.calls.borrow().is_empty() {
            return true;
        }
        self.ends_by.set(Some(self.now() + LAST_CALLS));
        set_tick(TICK);
        false
    }

    /// Lets Envoy delete the root if it wants to, and no call is under way or they take too long.
    /// Call it last in a callback of the root.
    pub fn end_after_calls(&self) {
        let Some(ends_by) = self.ends_by.get() else { return };
        if self.calls.borrow().is_empty() || self.now() >= ends_by {
            self.ends_by.set(None);
            host::done(self.root);
        }
    }

    /// Stops the ticking after a second without work.
    pub fn rest_when_idle(&self) {
        if self.ends_by.get().is_some() {
            return;
        }
        let mut driver = self.driver.borrow_mut();
        if !driver.needs_next_tick(HostWork::None) {
            set_tick(driver.resting_period().unwrap_or_default());
        }
    }
}

impl Waiting {
    /// The request with its state, which is borrowed already.
    pub const fn for_driver<'s>(
        &'s self,
        exchange: &'s mut Exchange,
    ) -> driver::Stream<'s, u32, Self> {
        driver::Stream { id: self.stream, who: self, exchange }
    }
}

fn set_tick(period: Duration) {
    // Envoy reports no error for this.
    let _ = hostcalls::set_tick_period(period);
}
