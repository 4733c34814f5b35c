//! A store beside Envoy, reached through one of Envoy's clusters.
//!
//! A callout of a stream would end with its stream, so callouts belong to the filter configuration.
//! Envoy makes those on its main thread.
//!
//! Envoy destroys a configuration on the thread that lets go of it last, and then cancels its
//! pending callouts, whose connections belong to the main thread. Elsewhere that is a data race
//! that crashes Envoy, so [`Callouts::close`] returns only when none is pending.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use quotagate_protocol::RESERVE_PATH;
use quotagate_quota::config::ClusterStore;
use quotagate_quota::driver::{Outgoing, call_headers};
use quotagate_quota::worker::{CallEnd, CallFault, CallId};

use crate::abi::{FilterConfig, NotStarted};
use crate::inbox::{Letter, Recipient};
use crate::log;
use crate::main_thread::MainThread;

/// Most calls that wait for the main thread. Beyond that, calls fail.
const MAX_QUEUED: usize = 4096;
/// How much later than its time limit Envoy may end a callout, because its main thread is busy.
const GRACE: Duration = Duration::from_secs(10);

/// The callouts of all filter configurations that exist, in the order of their making.
static OPEN: Mutex<Vec<Weak<Callouts>>> = Mutex::new(Vec::new());

/// The callouts of one filter configuration.
pub struct Callouts {
    cluster: Box<str>,
    authorization: Option<Box<str>>,
    main: ThreadId,
    wakes: Arc<MainThread>,
    queue: Mutex<VecDeque<Callout>>,
    under_way: Mutex<HashMap<u64, UnderWay>>,
    /// Notified when a callout has ended.
    ended: Condvar,
}

/// A callout that is not made yet.
struct Callout {
    sender: Weak<dyn Recipient>,
    id: CallId,
    path: String,
    body: Vec<u8>,
    timeout: Duration,
}

/// A callout that Envoy has started.
struct UnderWay {
    sender: Weak<dyn Recipient>,
    id: CallId,
    /// When it ends at the latest, unless the main thread is busy.
    until: Instant,
}

/// Whether Envoy still has callouts of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Closed {
    /// All have ended, or Envoy may cancel them here.
    Whole,
    /// Envoy's main thread ended them too late. It may still report their ends.
    Pending,
}

impl Callouts {
    /// Callouts of this filter configuration to this store. Call it on Envoy's main thread.
    pub fn open(store: &ClusterStore, wakes: Arc<MainThread>) -> Arc<Self> {
        let callouts = Arc::new(Self {
            cluster: store.name.clone(),
            authorization: store.authorization(),
            main: thread::current().id(),
            wakes,
            queue: Mutex::default(),
            under_way: Mutex::default(),
            ended: Condvar::new(),
        });
        let mut open = lock(&OPEN);
        open.retain(|callouts| callouts.strong_count() > 0);
        open.push(Arc::downgrade(&callouts));
        callouts
    }

    /// Sends a message.
    pub fn send(&self, sender: &Arc<dyn Recipient>, message: Outgoing) {
        let sender = Arc::downgrade(sender);
        self.queue(match message {
            Outgoing::Call(call) => {
                let (id, body, timeout) = (call.id, call.body(), call.timeout);
                Callout { sender, id, path: RESERVE_PATH.to_owned(), body, timeout }
            }
            Outgoing::Fetch(fetch) => {
                let (id, path, timeout) = (fetch.id, fetch.path(), fetch.timeout);
                let body = fetch.report.unwrap_or_default().into_bytes();
                Callout { sender, id, path, body, timeout }
            }
        });
    }

    fn queue(&self, callout: Callout) {
        if let Err(callout) = self.enqueue(callout)
            && let Some(successor) = self.successor()
        {
            // If that one is closed meanwhile, the call fails by the worker's own time limit.
            let _ = successor.enqueue(callout);
        }
    }

    /// Adds a call to those that wait for the main thread.
    ///
    /// # Errors
    /// The call, if the configuration is closed.
    fn enqueue(&self, callout: Callout) -> Result<(), Callout> {
        let mut queue = lock(&self.queue);
        // With the queue locked: the main thread is closed before `close` empties the queue. So no
        // call comes into a queue that nobody empties any more.
        let Some(scheduler) = self.wakes.scheduler() else { return Err(callout) };
        // What has no room fails by the worker's own time limit.
        if queue.len() < MAX_QUEUED {
            queue.push_back(callout);
        }
        drop(queue);
        scheduler.commit();
        Ok(())
    }

    /// The newest configuration with the same store that is open.
    fn successor(&self) -> Option<Arc<Self>> {
        let open: Vec<_> = lock(&OPEN).iter().filter_map(Weak::upgrade).collect();
        open.into_iter().rev().find(|other| {
            let is_same =
                other.cluster == self.cluster && other.authorization == self.authorization;
            is_same && other.wakes.is_open()
        })
    }

    /// Whether calls reach the store: by this configuration, or by another one once it is closed.
    pub fn is_reachable(&self) -> bool {
        self.wakes.is_open() || self.successor().is_some()
    }

    /// Makes the callouts that wait, on the main thread.
    pub fn make(&self, config: &FilterConfig<'_>) {
        loop {
            let Some(Callout { sender, id, path, body, timeout }) = lock(&self.queue).pop_front()
            else {
                return;
            };
            let headers = call_headers(&path, self.authorization.as_deref());
            let fault = match config.call(&self.cluster, &headers, &body, timeout) {
                Ok(number) => {
                    let until = Instant::now() + timeout;
                    lock(&self.under_way).insert(number, UnderWay { sender, id, until });
                    continue;
                }
                Err(NotStarted::NoCluster) => CallFault::NoCluster,
                Err(NotStarted::NoHost) => CallFault::NoHost,
            };
            if let Some(sender) = sender.upgrade() {
                sender.deliver(Letter::Failed(id, fault));
            }
        }
    }

    /// A callout has ended, on the main thread.
    pub fn ended(&self, number: u64, end: CallEnd) {
        let Some(call) = lock(&self.under_way).remove(&number) else { return };
        self.ended.notify_all();
        if let Some(sender) = call.sender.upgrade() {
            sender.deliver(Letter::Ended(call.id, end));
        }
    }

    /// Envoy destroys the filter configuration, after its last stream. Calls that wait, and later
    /// ones, leave by another configuration with the same store. [`MainThread::close`] comes first.
    ///
    /// The caller may hold the core of a shard, because committing a scheduler may destroy the
    /// configuration. So this locks none. Elsewhere than on the main thread it waits until no
    /// callout is pending. The main thread needs no lock that the caller may hold to end them.
    pub fn close(&self) -> Closed {
        let waiting = std::mem::take(&mut *lock(&self.queue));
        for callout in waiting {
            self.queue(callout);
        }
        if thread::current().id() == self.main {
            // Envoy reports no end of those that it cancels.
            let canceled = std::mem::take(&mut *lock(&self.under_way));
            for call in canceled.into_values() {
                if let Some(sender) = call.sender.upgrade() {
                    sender.deliver(Letter::Ended(call.id, CallEnd::Reset));
                }
            }
            return Closed::Whole;
        }
        let mut under_way = lock(&self.under_way);
        let Some(until) = under_way.values().map(|call| call.until).max() else {
            return Closed::Whole;
        };
        let until = until + GRACE;
        while !under_way.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(under_way);
                log::error(
                    "Envoy's main thread did not end the calls of an old configuration: Envoy may \
                     crash when it cancels them on a worker",
                );
                return Closed::Pending;
            }
            let waited = self.ended.wait_timeout(under_way, left);
            (under_way, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        Closed::Whole
    }
}

/// Nothing panics while one of these is locked.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
