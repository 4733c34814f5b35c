//! The address that proxies call.

use std::future::Future;
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap, ORIGIN};
use quotagate_protocol::ReserveRequest;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::connections::Connections;
use super::deadlines::Deadlines;
use super::grant::DomainScope;
use super::hooks::Hooks;
use super::log_pace::LogPace;
use super::refusal::Refusal;
use super::token::Tokens;
use crate::store::Store;

/// Most calls at once. An Envoy worker has at most 4. A call begins when its body has arrived, and
/// ends when it has been carried out.
const CALLS: usize = 1024;
/// Most KiB of replies with a published document that are on their way at once: a whole fleet asks
/// at the same moment. The others ask again a second later.
pub(super) const DOCUMENTS_KIB: usize = 64 * 1024;

/// Answers proxies over a store: by HTTP ([`accept`](Self::accept)), and callers in this process
/// ([`call`](Self::call)). Made in the Tokio runtime that does the work.
pub struct CallEndpoint {
    pub(super) store: Arc<dyn Store>,
    pub(super) hooks: Arc<dyn Hooks>,
    pub(super) connections: Arc<Connections>,
    pub(super) deadlines: Arc<Deadlines>,
    /// One permit for each call under way.
    pub(super) permits: Arc<Semaphore>,
    /// One permit for each KiB of a reply with a document.
    pub(super) document_permits: Arc<Semaphore>,
    pub(super) invalid_refunds: LogPace,
    pub(super) invalid_charges: LogPace,
    tokens: Option<Tokens>,
    /// The runtime of all work, because a caller may drop a call on a thread without one.
    runtime: Handle,
    _timer: AbortOnDropHandle<()>,
}

impl CallEndpoint {
    /// Serves every proxy from `store`, without tokens and hooks.
    pub fn new(store: Arc<dyn Store>, connections: Arc<Connections>) -> Self {
        let deadlines = Arc::new(Deadlines::default());
        let timer = Arc::clone(&deadlines);
        Self {
            store,
            hooks: Arc::new(()),
            connections,
            deadlines,
            permits: Arc::new(Semaphore::new(CALLS)),
            document_permits: Arc::new(Semaphore::new(DOCUMENTS_KIB)),
            invalid_refunds: LogPace::default(),
            invalid_charges: LogPace::default(),
            tokens: None,
            runtime: Handle::current(),
            _timer: AbortOnDropHandle::new(tokio::spawn(async move { timer.run().await })),
        }
    }

    /// Requires one of these tokens from every proxy.
    #[must_use]
    pub fn tokens(mut self, tokens: Option<Tokens>) -> Self {
        self.tokens = tokens;
        self
    }

    /// Reports every call to `hooks`.
    #[must_use]
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = hooks;
        self
    }

    /// Starts work of a call that outlives its caller. The shutdown waits for it.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.connections.spawn_on(work, &self.runtime)
    }

    /// The domains that the proxy may name which sends a request with these headers.
    ///
    /// # Errors
    /// When no valid token is shown, or when a web page calls: a browser that can reach this port
    /// may show any page.
    pub(super) fn authorize(&self, headers: &HeaderMap) -> Result<CalledDomains, Refusal> {
        let given = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let domains = match &self.tokens {
            Some(tokens) => tokens.called_domains(given).ok_or(Refusal::Token)?,
            None => DomainScope::All,
        };
        if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
            return Err(Refusal::Page);
        }
        Ok(CalledDomains(domains))
    }
}

/// The domains that a proxy may name.
pub(super) struct CalledDomains(DomainScope);

impl CalledDomains {
    /// Checks that a domain is one of them.
    ///
    /// # Errors
    /// If not.
    pub fn check(&self, domain: &str) -> Result<(), Refusal> {
        if self.0.has(domain) { Ok(()) } else { Err(Refusal::Domain(self.0.clone())) }
    }

    /// Checks the domain of every item of a call.
    ///
    /// # Errors
    /// If one is of another domain.
    pub fn check_call(&self, call: &ReserveRequest) -> Result<(), Refusal> {
        let adjustments = call.refunds.iter().chain(&call.charges).map(|item| &*item.key);
        let mut keys = adjustments.chain(call.reservations.iter().map(|item| &*item.key));
        // No domain has a colon in its name.
        keys.try_for_each(|key| self.check(key.split(':').next().unwrap_or_default()))
    }
}
