//! One Envoy worker's quotas under one configuration.
//!
//! | thread | does |
//! | --- | --- |
//! | the Envoy worker | locks the core in its hooks; empties the inbox; resumes and answers streams |
//! | the runtime thread | fills the inbox, wakes a stream that waits; tries to lock the core |
//! | the tick thread | tries to lock the core for ticks; wakes a stream that waits |
//! | Envoy's main thread | fills the inbox; tries to lock the core for metrics |
//!
//! Nobody waits long: the core is never locked during a call to the store, or a host call that runs
//! other filters. The order of locks is core, then exchange of a stream, then waiting, then the
//! scheduler of a stream. The [inbox](Mailbox) is locked last, alone, and so are the locks of
//! [`LiveDocuments`].

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Decision};
use quotagate_quota::driver::{
    Arriving, ClientMark, Driver, HostWork, RESTING_TICK, RequestBody, TICK,
};
use quotagate_quota::exchange::{Arrival, StreamState};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::Counted;
use tokio::time::sleep;

use crate::abi::{FilterConfig, Host};
use crate::clock::{millis, millis_of, now};
use crate::documents::{CheckedDocument, LiveDocuments};
use crate::facts::RequestFacts;
use crate::inbox::{Letter, Mailbox, Recipient};
use crate::link::Link;
use crate::log;
use crate::main_thread::MainThread;
use crate::metrics::{Metrics, MetricsSchedule};
use crate::panics::guard;
use crate::redirects::Redirect;
use crate::runtime;
use crate::test_faults;
use crate::waiter::{RequestState, Waiter};

/// A shard of an old configuration keeps its leases no longer than this.
const LINGER: Duration = Duration::from_secs(60);

/// The driver of one Envoy worker. It identifies streams by their number.
pub type StreamDriver = Driver<u64, u64>;

/// One Envoy worker's quotas under one configuration.
pub struct Shard {
    link: Link,
    core: Mutex<Core>,
    inbox: Mailbox,
    /// The streams that wait for their decision, by their number.
    waiting: Mutex<BTreeMap<u64, Arc<Waiter>>>,
    /// How many they are. Most hooks only ask whether there is one.
    waits: AtomicUsize,
    /// Whether a stream was woken and has not run yet.
    is_woken: AtomicBool,
    /// The streams that it counts and that are not over.
    streams: AtomicUsize,
    /// The filter state of requests that Envoy redirects internally. It differs by shard, since
    /// another one may serve the same request.
    redirect: String,
    /// How many [`Redirect`]s of this shard Envoy keeps. 0 spares each request a look-up.
    redirects: AtomicUsize,
    /// When the worker was last ticked, in milliseconds of [`now`].
    ticked_ms: AtomicU64,
    metrics: MetricsSchedule,
    /// When its configuration was destroyed.
    closed: OnceLock<Monotonic>,
    /// What it does with published documents, if its embedded document is live.
    live: OnceLock<Arc<LiveDocuments>>,
    /// Whether a published document is being checked.
    is_checking: AtomicBool,
}

struct Core {
    driver: StreamDriver,
    /// Streams that are not among those that wait, by their numbers: their body was read, or shadow
    /// policies asked the store about them. They stay until they are decided or leave.
    aside: BTreeMap<u64, Arc<Waiter>>,
    /// Whether policies needed all headers of the last request.
    needs_all_headers: bool,
    ticked: Monotonic,
    /// Since when a request waits for others of the same turn of the event loop.
    gathers: Option<Monotonic>,
    /// Requests that waited for a worker that panicked.
    orphans: Vec<Decided>,
}

/// A request that was decided, and the configuration to answer it with.
type Decided = (Arc<Waiter>, Arc<Config>);

impl Shard {
    /// The shard of this Envoy worker, which has counted nothing.
    pub fn new(
        worker: usize,
        config: Arc<Config>,
        link: Link,
        main: Option<Arc<MainThread>>,
    ) -> Arc<Self> {
        let index = u32::try_from(worker).unwrap_or(u32::MAX);
        let core = Core {
            driver: Driver::new(config, seed()).with_index(index),
            aside: BTreeMap::new(),
            needs_all_headers: false,
            ticked: now(),
            gathers: None,
            orphans: Vec::new(),
        };
        Arc::new(Self {
            link,
            core: Mutex::new(core),
            inbox: Mailbox::default(),
            waiting: Mutex::default(),
            waits: AtomicUsize::new(0),
            is_woken: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            redirect: format!("quotagate.redirected.{:016x}", seed()),
            redirects: AtomicUsize::new(0),
            ticked_ms: AtomicU64::new(0),
            metrics: MetricsSchedule::new(main),
            closed: OnceLock::new(),
            live: OnceLock::new(),
            is_checking: AtomicBool::new(false),
        })
    }

    /// Takes up the document that this filter took up last in this process, and from now on
    /// those that operators publish, without traffic, too. Call it on Envoy's main thread, before
    /// the first request.
    pub fn follow(self: &Arc<Self>, live: &Arc<LiveDocuments>, inherited: Option<CheckedDocument>) {
        // Once only, by the setup that made it.
        let _ = self.live.set(Arc::clone(live));
        if let Some((document, config)) = inherited {
            let mut core = self.core.lock().unwrap_or_else(|poisoned| self.mend(poisoned));
            core.driver.inherit(Arc::clone(&document));
            core.driver.take_up(&document, config, now());
        }
        let shard = Arc::downgrade(self);
        runtime::spawn("published documents", async move {
            while let Some(shard) = shard.upgrade().filter(|shard| shard.closed.get().is_none()) {
                if let Some(mut core) = shard.try_lock() {
                    shard.turn(&mut core, |_, _| ());
                }
                shard.after_unlock();
                drop(shard);
                sleep(RESTING_TICK).await;
            }
        });
    }

    /// After a check that panicked: refuses the document that has come.
    fn refuse_unchecked(self: &Arc<Self>) {
        self.with_core(|core, now| {
            if let Some(document) = core.driver.document().cloned() {
                let fault = "configuration: the check of the document panicked".to_owned();
                core.driver.take_up(&document, Err(vec![fault]), now);
            }
        });
    }

    /// Checks the published document that has come, without locking the core meanwhile, and takes
    /// it up.
    fn check_document(self: &Arc<Self>) {
        let Some(live) = self.live.get() else { return };
        let arrived = {
            let core = self.core.lock().unwrap_or_else(|poisoned| self.mend(poisoned));
            core.driver.document().cloned()
        };
        let Some(document) = arrived else { return };
        let config = live.check(&document);
        if self.with_core(|core, now| core.driver.take_up(&document, config, now)) {
            live.keep(&document);
        }
    }

    /// A request arrives; `whole`: without a body. Returns the configuration that it was evaluated
    /// with.
    pub fn arrive(
        self: &Arc<Self>,
        stream: &RequestState,
        host: &mut Host<'_>,
        whole: bool,
    ) -> (Arrival, Arc<Config>) {
        let earlier = if self.redirects.load(Ordering::Relaxed) == 0 {
            None
        } else {
            host.redirect(&self.redirect).and_then(Redirect::take)
        };
        let arrived = self.with_core(|core, now| {
            test_faults::trip("arrive");
            let config = Arc::clone(core.driver.observe_traffic(now));
            if config.marks {
                host.remove_mark();
            }
            let evaluation = {
                let facts = RequestFacts::new(host, core.needs_all_headers);
                let evaluation = config.evaluate_in(core.driver.scratch(), &facts);
                core.needs_all_headers = facts.needs_all();
                evaluation
            };
            let body = if whole { RequestBody::Absent } else { RequestBody::Follows };
            // Envoy chose the route again before policies saw it.
            let mark = ClientMark::Harmless;
            let arriving = Arriving { evaluation, earlier, body, mark };
            let arrival = stream.drive(|stream| core.driver.arrive(stream, arriving, now));
            self.wait(core, stream, host, &arrival, now);
            (arrival, config)
        });
        self.streams.fetch_add(1, Ordering::Relaxed);
        arrived
    }

    /// The next piece of a request's body has come. `None`: more is needed.
    pub fn request_body(
        self: &Arc<Self>,
        stream: &RequestState,
        host: &Host<'_>,
        end: bool,
    ) -> Option<Arrival> {
        self.with_core(|core, now| {
            let mut arrival = None;
            let mut read = |chunk: &[u8], end| {
                if arrival.is_none() {
                    let driver = &mut core.driver;
                    arrival = stream.drive(|stream| driver.request_body(stream, chunk, end, now));
                }
            };
            host.request_body(|chunk| read(chunk, false));
            if end {
                read(&[], true);
            }
            self.wait(core, stream, host, arrival.as_ref()?, now);
            arrival
        })
    }

    /// A stream was woken. Stops reading its request's body if that takes too long.
    pub fn late_body(self: &Arc<Self>, stream: &RequestState, host: &Host<'_>) -> Option<Arrival> {
        self.with_core(|core, now| {
            let driver = &mut core.driver;
            let arrival = stream.drive(|stream| driver.request_body_late(stream, now))?;
            test_faults::trip("late");
            self.wait(core, stream, host, &arrival, now);
            Some(arrival)
        })
    }

    /// Keeps a stream that something will be reported for: its decision, its body, or what shadow
    /// policies say.
    fn wait(
        &self,
        core: &mut Core,
        stream: &RequestState,
        host: &Host<'_>,
        arrival: &Arrival,
        now: Monotonic,
    ) {
        match arrival {
            Arrival::Waiting => {
                let waiter = stream.share(host);
                waiter.prepare_to_wake(host);
                let mut waiting = self.waiting();
                waiting.insert(stream.number, Arc::clone(waiter));
                self.waits.store(waiting.len(), Ordering::Relaxed);
                drop(waiting);
                core.gathers.get_or_insert(now);
                test_faults::trip("waits");
            }
            Arrival::Reading | Arrival::Counting => {
                let waiter = stream.share(host);
                if *arrival == Arrival::Reading {
                    waiter.prepare_to_wake(host);
                }
                stream.is_aside.set(true);
                core.aside.insert(stream.number, Arc::clone(waiter));
            }
            _ => {}
        }
    }

    /// Runs `act` on the driver, then sends the calls that are due.
    pub fn work<R>(self: &Arc<Self>, act: impl FnOnce(&mut StreamDriver, Monotonic) -> R) -> R {
        self.with_core(|core, now| act(&mut core.driver, now))
    }

    /// Ticks the worker if requests wait and the tick thread is late. For hooks that need nothing
    /// else of the shard, so that any traffic of an Envoy worker keeps its deadlines.
    pub fn keep_time(self: &Arc<Self>) {
        // A look at the clock costs more than one at the requests.
        if self.waits.load(Ordering::Relaxed) == 0 {
            return;
        }
        let since = millis(now()).saturating_sub(self.ticked_ms.load(Ordering::Relaxed));
        if since >= 2 * millis_of(TICK) {
            self.with_core(|_, _| ());
        }
    }

    /// Keeps the admission of a stream that ends with an internal redirect, for the stream that
    /// follows. If Envoy cannot keep it (before 1.39), this pass is abandoned, and the next one
    /// counts again.
    pub fn redirect(self: &Arc<Self>, host: &Host<'_>, admission: Admission) {
        if let Some(redirect) = host.redirect(&self.redirect) {
            redirect.keep(admission);
            return;
        }
        self.redirects.fetch_add(1, Ordering::Relaxed);
        let shard = Arc::clone(self);
        let redirect = Redirect::new(admission, move |admission| {
            guard("end of a redirect", (), move || {
                shard.redirects.fetch_sub(1, Ordering::Relaxed);
                if let Some(admission) = admission {
                    shard.work(|driver, now| driver.abandon(admission, now));
                }
            });
        });
        host.keep_redirect(&self.redirect, Box::new(redirect));
    }

    /// Passes the decisions that are there to `carry_out`, with their streams, in a hook of any
    /// stream of this Envoy worker in which other streams may run.
    pub fn carry_out(
        self: &Arc<Self>,
        host: &mut Host<'_>,
        carry_out: impl Fn(&mut Host<'_>, &Waiter, &Config),
    ) {
        self.is_woken.store(false, Ordering::SeqCst);
        // One at a time: what Envoy does with one stream may end another one.
        let next = |core: &mut Core, now| {
            core.gathers = None;
            self.next_decision(core, now)
        };
        while let Some((stream, config)) = self.with_core(next) {
            if self.waits_no_more(stream.number)
                && let Some(mut host) = stream.handle.enter(host)
            {
                carry_out(&mut host, &stream, &config);
            }
        }
    }

    /// The stream does not wait any more. Returns whether it did until now, so that it is held.
    fn waits_no_more(&self, number: u64) -> bool {
        let mut waiting = self.waiting();
        let did = waiting.remove(&number).is_some();
        self.waits.store(waiting.len(), Ordering::Relaxed);
        did
    }

    /// The stream has ended, or does not wait after all. If it was woken, its hook does not run any
    /// more, so another one is woken.
    pub fn leaves(self: &Arc<Self>, stream: &RequestState) {
        let number = stream.number;
        if stream.is_aside.get() {
            // After a panic the driver may still read its body.
            let forget = |core: &mut Core, _| {
                core.driver.stop_reading(&number);
                core.aside.remove(&number);
            };
            guard("request body", (), || self.with_core(forget));
        }
        if self.waits_no_more(number) {
            self.is_woken.store(false, Ordering::SeqCst);
            self.wake();
        }
    }

    /// A stream ends. Returns whether it is the last one for now.
    pub fn stream_ends(&self) -> bool {
        self.streams.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// Writes the worker's counts to Envoy's metrics when a stream ends, if that is due. The main
    /// thread writes what the last stream leaves. If it cannot, or if there are faults to count,
    /// each stream that is the last for now does.
    pub fn write_metrics(self: &Arc<Self>, host: &Host<'_>, metrics: &Metrics, is_last: bool) {
        if self.metrics.is_for_stream(is_last) {
            let (tally, config) = self.work(|driver, _| self.take_counts(driver));
            let add = |id, labels: &[&str], count| host.add_to_counter(id, labels, count);
            metrics.each(&config, tally, add);
        }
    }

    /// The same on Envoy's main thread, if a tick asked for it. This never waits for the core: its
    /// holder may wait for the main thread. Then the next tick asks again.
    pub fn write_owed_metrics(self: &Arc<Self>, config: &FilterConfig<'_>, metrics: &Metrics) {
        if !self.metrics.is_for_main() {
            return;
        }
        let Some(mut core) = self.try_lock() else { return };
        let (tally, document) = self.take_counts(&mut core.driver);
        drop(core);
        self.after_unlock();
        let add = |id, labels: &[&str], count| config.add_to_counter(id, labels, count);
        metrics.each(&document, tally, add);
    }

    fn take_counts(&self, driver: &mut StreamDriver) -> (Vec<(Counted, u64)>, Arc<Config>) {
        self.metrics.wrote();
        (driver.take_tally(), Arc::clone(driver.config()))
    }

    /// Ten milliseconds have passed, on the tick thread. Returns whether the shard needs the
    /// next tick.
    fn tick(self: &Arc<Self>) -> bool {
        // Should a wake be lost, this repeats it.
        self.is_woken.store(false, Ordering::SeqCst);
        let Some(mut core) = self.try_lock() else { return true };
        let goes_on = self.turn(&mut core, |core, now| {
            test_faults::trip("tick");
            if let Some(closed) = self.closed.get() {
                // No hook of this configuration comes any more.
                core.driver.take_tally();
                let lingers = now.since(*closed) <= LINGER && self.link.is_reachable();
                if !lingers && self.waiting().is_empty() {
                    // The old worker reaches no store any more, and would only log failed calls.
                    core.driver.replace_worker(seed());
                }
            }
            let Core { driver, aside, .. } = core;
            let late: Vec<_> = driver.late_bodies(now).copied().collect();
            for number in late {
                if !aside.get(&number).is_some_and(|stream| stream.wake()) {
                    // Envoy has destroyed it.
                    driver.stop_reading(&number);
                }
            }
            core.driver.needs_next_tick(core.work())
        });
        let has_counts = core.driver.has_tally();
        drop(core);
        self.after_unlock();
        if has_counts {
            self.metrics.ask();
        }
        goes_on
    }

    /// Its configuration was destroyed, after all of its streams. Ticks refund what it leases. This
    /// does not lock the core, which the caller may hold.
    pub fn close(&self) {
        // Once only: Envoy destroys a configuration once.
        let _ = self.closed.set(now());
    }

    /// Runs `act` on the core of an Envoy worker.
    fn with_core<R>(self: &Arc<Self>, act: impl FnOnce(&mut Core, Monotonic) -> R) -> R {
        let result = {
            let mut core = self.core.lock().unwrap_or_else(|poisoned| self.mend(poisoned));
            self.turn(&mut core, act)
        };
        self.after_unlock();
        result
    }

    /// Reads letters that came while the core was locked, unless a stream that is woken does.
    fn after_unlock(self: &Arc<Self>) {
        while self.inbox.has_letters() && !self.wake() {
            // The holder of the core looks again, too.
            let Some(mut core) = self.try_lock() else { return };
            self.turn(&mut core, |_, _| ());
        }
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Core>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(poisoned)) => Some(self.mend(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// All that happens while the core is locked once: what is due before `act`, and what follows.
    fn turn<R>(
        self: &Arc<Self>,
        core: &mut Core,
        act: impl FnOnce(&mut Core, Monotonic) -> R,
    ) -> R {
        let now = now();
        self.metrics.saw(now);
        for letter in self.inbox.take() {
            match letter {
                Letter::CarriedOut(id, call) => core.driver.carried_out(id, || call.take(), now),
                Letter::Ended(id, end) => core.driver.call_ended(id, &end, now),
                Letter::Failed(id, fault) => core.driver.call_not_sent(id, &fault, now),
            }
        }
        if core.driver.document().is_some() && !self.is_checking.swap(true, Ordering::Relaxed) {
            let shard = Arc::clone(self);
            runtime::spawn_blocking("a published document", move || {
                let check = || {
                    shard.check_document();
                    true
                };
                // A panic must not begin the same check over and over.
                if !guard("a published document", false, check) {
                    shard.refuse_unchecked();
                }
                shard.is_checking.store(false, Ordering::Relaxed);
            });
        }
        if now.since(core.ticked) >= TICK {
            core.ticked = now;
            core.driver.tick(now);
            self.ticked_ms.store(millis(now), Ordering::Relaxed);
        }
        let result = act(core, now);
        self.follow_up(core, now);
        result
    }

    /// Sends and wakes what is due.
    fn follow_up(self: &Arc<Self>, core: &mut Core, now: Monotonic) {
        // Envoy runs the stream's event after all that this turn of its event loop reads, so that
        // those requests share a call. Should the event be lost, a tick sends the call.
        let gathers = core.gathers.is_some_and(|since| now.since(since) < TICK) && self.wake();
        if !gathers {
            core.gathers = None;
            self.send_calls(core, now);
        }
        if core.has_decisions() && !self.wake() {
            // Nobody waits, so these are results of shadow policies.
            while self.next_decision(core, now).is_some() {}
        }
        let work = core.work();
        if core.driver.begins_ticks(work) {
            let shard = Arc::clone(self);
            runtime::tick(move || shard.tick());
        }
    }

    fn send_calls(self: &Arc<Self>, core: &mut Core, now: Monotonic) {
        test_faults::trip("send_calls");
        if !core.driver.has_messages(now) {
            return;
        }
        while let Some(message) = core.driver.next_send(now) {
            self.link.send(Arc::clone(self) as _, message);
        }
        for notice in core.driver.take_notices() {
            log::warn(&notice.to_string());
        }
    }

    /// The next request that is decided.
    fn next_decision(&self, core: &mut Core, now: Monotonic) -> Option<Decided> {
        if let Some(orphan) = core.orphans.pop() {
            return Some(orphan);
        }
        loop {
            let (number, mut decision) = core.driver.next_decision()?;
            let waits = || self.waiting().get(&number).cloned();
            // What shadow policies say of a stream that is gone says nothing any more.
            let Some(stream) = core.aside.remove(&number).or_else(waits) else {
                if let Decision::Admit(admission) = &mut decision {
                    core.driver.free(admission.slots.take(), now);
                }
                continue;
            };
            let exists = stream.handle.exists();
            let state = if exists { StreamState::Open } else { StreamState::Gone };
            test_faults::trip("decide");
            core.driver.decided(&mut stream.exchange(), decision, state, now);
            let config = Arc::clone(stream.exchange().config_or(core.driver.config()));
            return Some((stream, config));
        }
    }

    /// Wakes the stream that has waited the longest, so that its Envoy worker calls
    /// [`carry_out`](Self::carry_out). `false`: no stream waits.
    fn wake(&self) -> bool {
        let waiting = self.waiting();
        if waiting.is_empty() {
            return false;
        }
        if self.is_woken.swap(true, Ordering::SeqCst) {
            return true;
        }
        let found = waiting.values().any(|stream| stream.wake());
        self.is_woken.fetch_and(found, Ordering::SeqCst);
        found
    }

    /// After a panic the state of the worker is unknown. A new worker takes over, and the requests
    /// that wait are decided as if the store had failed. Units of the old one are lost, so that no
    /// quota is exceeded. Its slots expire in the store, although its streams go on: until they
    /// end, a concurrency limit can be exceeded by what they hold.
    fn mend<'c>(&self, poisoned: PoisonError<MutexGuard<'c, Core>>) -> MutexGuard<'c, Core> {
        self.core.clear_poison();
        let mut core = poisoned.into_inner();
        let decision = core.driver.replace_worker(seed());
        let config = Arc::clone(core.driver.config());
        let waiting: Vec<_> = {
            let mut waiting = self.waiting();
            waiting.retain(|_, stream| stream.handle.exists());
            waiting.values().cloned().collect()
        };
        for stream in waiting {
            let mut exchange = stream.exchange();
            core.driver.decided(&mut exchange, decision.clone(), StreamState::Open, now());
            let config = Arc::clone(exchange.config_or(&config));
            drop(exchange);
            core.orphans.push((stream, config));
        }
        core
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Waiter>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recipient for Shard {
    fn deliver(self: Arc<Self>, letter: Letter) {
        self.inbox.put(letter);
        // The tasks of the runtime thread have no hook that catches and counts a panic.
        guard("reply", (), || self.after_unlock());
    }
}

impl Core {
    fn has_decisions(&self) -> bool {
        self.driver.has_decisions() || !self.orphans.is_empty()
    }

    fn work(&self) -> HostWork {
        if self.orphans.is_empty() { HostWork::None } else { HostWork::Pending }
    }
}

fn seed() -> u64 {
    RandomState::new().hash_one(now())
}
