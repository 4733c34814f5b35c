//! The address that proxies call.

use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap, ORIGIN};
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::connections::Connections;
use super::deadlines::Deadlines;
use super::hooks::Hooks;
use super::reply::Refusal;
use super::token::Tokens;
use crate::store::Store;

/// Most calls at once, so that their bodies of at most 1 MiB fill no more than 1 GiB; a worker of
/// Envoy has 4. A call is over when it is carried out and its answer is fetched.
const CALLS: usize = 1024;

/// Answers proxies over a store. Needs a Tokio runtime.
pub struct CallEndpoint {
    pub(super) store: Arc<dyn Store>,
    pub(super) hooks: Arc<dyn Hooks>,
    pub(super) connections: Arc<Connections>,
    pub(super) deadlines: Arc<Deadlines>,
    /// One for each call under way.
    pub(super) permits: Arc<Semaphore>,
    tokens: Option<Tokens>,
    _timer: AbortOnDropHandle<()>,
}

impl CallEndpoint {
    /// Answers every proxy over `store`, without hooks.
    pub fn new(store: Arc<dyn Store>, connections: Arc<Connections>) -> Self {
        let deadlines = Arc::new(Deadlines::default());
        let timer = Arc::clone(&deadlines);
        Self {
            store,
            hooks: Arc::new(()),
            connections,
            deadlines,
            permits: Arc::new(Semaphore::new(CALLS)),
            tokens: None,
            _timer: AbortOnDropHandle::new(tokio::spawn(async move { timer.run().await })),
        }
    }

    /// Asks proxies for one of these tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: Option<Tokens>) -> Self {
        self.tokens = tokens;
        self
    }

    /// Tells `hooks` of every call.
    #[must_use]
    pub fn hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = hooks;
        self
    }

    /// Whether these headers are a proxy's.
    ///
    /// # Errors
    /// Where no token is shown, or a web page calls: one in a browser that can reach this port can
    /// be anybody's.
    pub(super) fn authorize(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let given = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        if self.tokens.as_ref().is_some_and(|tokens| !tokens.admits(given)) {
            return Err(Refusal::Token);
        }
        if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
            return Err(Refusal::Page);
        }
        Ok(())
    }
}
