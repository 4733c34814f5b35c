//! The store's library in this process.
//!
//! Configurations with the same store share it. It closes its connections when the last of them is
//! gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use quotagate_operate::Operate;
use quotagate_operate::document::open_store_url;
use quotagate_quota::config::RedisStore;
use quotagate_quota::worker::{AnsweredBy, CallEnd, CallFault, OutgoingCall, OutgoingFetch};
use quotagate_store::server::{CallEndpoint, Connections, Hooks, Refusal};
use quotagate_store::url::StoreUrl;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::inbox::{Letter, Recipient};
use crate::runtime;

/// How long operating rests after a panic.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// A store that is open.
pub struct Library {
    endpoint: Arc<CallEndpoint>,
    /// Reads dials, and publishes what this proxy sees.
    _background: AbortOnDropHandle<()>,
}

/// What distinguishes stores: URL, password file, prefix.
type Key = (Box<str>, Option<Box<str>>, Box<str>);

impl Library {
    /// Opens a store, or returns the open one. It connects in the background.
    ///
    /// # Errors
    /// What is wrong with the URL or the password file, without secrets, and the field.
    pub fn open(store: &RedisStore) -> Result<Arc<Self>, String> {
        static OPEN: Mutex<Option<HashMap<Key, Weak<Library>>>> = Mutex::new(None);
        let url = check(store)?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        open.retain(|_, library| library.strong_count() > 0);
        let key = (store.url.clone(), store.password_file.clone(), store.prefix.clone());
        if let Some(library) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(library);
        }
        let library = runtime::enter(|| {
            let store = quotagate_store::open(&url, &store.prefix);
            let operate = Arc::new(Operate::in_proxy(Arc::clone(&store)));
            let hooks: Arc<dyn Hooks> = Arc::clone(&operate) as _;
            let endpoint = CallEndpoint::new(store, Arc::<Connections>::default()).hooks(hooks);
            let background = tokio::spawn(async move {
                loop {
                    // It ends only by a panic.
                    runtime::guarded("operating", operate.run()).await;
                    sleep(AFTER_PANIC).await;
                }
            });
            Arc::new(Self {
                endpoint: Arc::new(endpoint),
                _background: AbortOnDropHandle::new(background),
            })
        });
        let library = library.ok_or("the runtime thread does not run")?;
        open.insert(key, Arc::downgrade(&library));
        Ok(library)
    }

    /// Carries out a call on the runtime thread.
    pub fn call(&self, sender: Arc<dyn Recipient>, call: OutgoingCall) {
        let endpoint = Arc::clone(&self.endpoint);
        let received = Instant::now();
        runtime::spawn("a call", async move {
            let OutgoingCall { id, request, .. } = call;
            // Boxed only now, because a task is moved several times before it begins.
            sender.deliver(match Box::pin(endpoint.call(request, received)).await {
                Ok(carried_out) => Letter::CarriedOut(id, carried_out),
                Err(refusal) => Letter::Failed(id, refused(&refusal)),
            });
        });
    }

    /// Takes the report on the runtime thread, and returns the dials.
    pub fn fetch(&self, sender: Arc<dyn Recipient>, fetch: OutgoingFetch) {
        let endpoint = Arc::clone(&self.endpoint);
        runtime::spawn("a fetch", async move {
            let OutgoingFetch { id, domain, report, timeout, has_digest, number } = fetch;
            let report = report.unwrap_or_default();
            let body = async {
                match has_digest {
                    Some(digest) => Ok(endpoint.document(&domain, &digest, number).await?.into()),
                    None => {
                        let dials = endpoint.dials(&domain, report.as_bytes()).await?;
                        // Writing numbers and strings into memory cannot fail.
                        Ok(serde_json::to_vec(&dials).unwrap_or_default())
                    }
                }
            };
            sender.deliver(match tokio::time::timeout(timeout, body).await {
                Ok(Ok(body)) => {
                    let (by, size) = (AnsweredBy::Store, body.len());
                    Letter::Ended(id, CallEnd::Answered { status: 200, by, body, size })
                }
                Ok(Err(refusal)) => Letter::Failed(id, refused(&refusal)),
                Err(_) => Letter::Failed(id, CallFault::TimedOut),
            });
        });
    }
}

/// Checks a store without opening it.
///
/// # Errors
/// What is wrong with the URL or the password file, without secrets, and the field.
pub fn check(store: &RedisStore) -> Result<StoreUrl, String> {
    open_store_url(store).map_err(|fault| fault.to_string())
}

fn refused(refusal: &Refusal) -> CallFault<'static> {
    CallFault::Declined(refusal.to_string())
}
