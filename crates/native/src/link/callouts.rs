//! A store beside Envoy, reached through one of Envoy's clusters.
//!
//! A callout of a stream would end with its stream, so callouts belong to the filter configuration.
//! Envoy makes those on its main thread.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use quotagate_quota::config::ClusterStore;
use quotagate_quota::protocol::RESERVE_PATH;
use quotagate_quota::worker::{CallEnd, CallFault, CallId, OutgoingCall, OutgoingFetch};

use crate::abi::{ConfigScheduler, FilterConfig, NotStarted};
use crate::shard::{Letter, Shard};

/// Most calls that wait for the main thread. Beyond that, calls fail.
const MAX_QUEUED: usize = 4096;

/// The callouts of one filter configuration.
pub struct Callouts {
    cluster: Box<str>,
    authorization: Option<Box<str>>,
    scheduler: Mutex<Option<ConfigScheduler>>,
    queue: Mutex<VecDeque<Callout>>,
    under_way: Mutex<HashMap<u64, (Weak<Shard>, CallId)>>,
}

/// A callout that is not made yet.
struct Callout {
    shard: Weak<Shard>,
    id: CallId,
    path: String,
    body: Vec<u8>,
    timeout: Duration,
}

impl Callouts {
    /// Callouts of this filter configuration to this store.
    pub fn new(store: &ClusterStore, config: &FilterConfig<'_>) -> Self {
        Self {
            cluster: store.name.clone(),
            authorization: store.token.as_ref().map(|token| format!("Bearer {token}").into()),
            scheduler: Mutex::new(Some(config.scheduler())),
            queue: Mutex::default(),
            under_way: Mutex::default(),
        }
    }

    /// Sends a call.
    pub fn call(&self, shard: &Arc<Shard>, call: OutgoingCall) {
        let (body, timeout) = (call.body(), call.timeout);
        let path = RESERVE_PATH.to_owned();
        self.send(Callout { shard: Arc::downgrade(shard), id: call.id, path, body, timeout });
    }

    /// Sends a report and fetches dials.
    pub fn fetch(&self, shard: &Arc<Shard>, fetch: OutgoingFetch) {
        let path = fetch.path();
        let OutgoingFetch { id, report, timeout, .. } = fetch;
        let body = report.unwrap_or_default().into_bytes();
        self.send(Callout { shard: Arc::downgrade(shard), id, path, body, timeout });
    }

    fn send(&self, callout: Callout) {
        let mut queue = lock(&self.queue);
        // What has no room fails by the worker's own time limit.
        if queue.len() < MAX_QUEUED {
            queue.push_back(callout);
        }
        drop(queue);
        if let Some(scheduler) = &*lock(&self.scheduler) {
            scheduler.commit();
        }
    }

    /// Makes the callouts that wait, on the main thread.
    pub fn make(&self, config: &FilterConfig<'_>) {
        loop {
            let Some(Callout { shard, id, path, body, timeout }) = lock(&self.queue).pop_front()
            else {
                return;
            };
            let mut headers = vec![
                (":method", "POST"),
                (":path", &*path),
                // Not the cluster: its name may hold characters that an authority must not.
                (":authority", "quotagate"),
                ("content-type", "application/json"),
            ];
            headers.extend(self.authorization.as_deref().map(|value| ("authorization", value)));
            let fault = match config.call(&self.cluster, &headers, &body, timeout) {
                Ok(number) => {
                    lock(&self.under_way).insert(number, (shard, id));
                    continue;
                }
                Err(NotStarted::NoCluster) => CallFault::NoCluster,
                Err(NotStarted::NoHost) => CallFault::NoHost,
            };
            if let Some(shard) = shard.upgrade() {
                shard.deliver(Letter::NotSent(id, fault));
            }
        }
    }

    /// A callout has ended, on the main thread.
    pub fn ended(&self, number: u64, end: CallEnd) {
        let Some((shard, id)) = lock(&self.under_way).remove(&number) else { return };
        if let Some(shard) = shard.upgrade() {
            shard.deliver(Letter::Ended(id, end));
        }
    }

    /// Envoy destroys the filter configuration. No call leaves any more, so what the shards still
    /// lease stays counted until its window ends.
    pub fn close(&self) {
        drop(lock(&self.scheduler).take());
    }
}

/// Nothing panics while one of these is locked.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
