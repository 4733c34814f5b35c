//! The address that proxies call.

use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, ORIGIN};
use hyper::{Method, Request, Response};
use quotagate_quota::protocol::RESERVE_PATH;
use quotagate_quota::protocol::dials::TELEMETRY_PATH;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use super::connections::Connections;
use super::deadlines::Deadlines;
use super::file_limit::connection_limits;
use super::hooks::{Event, Hooks};
use super::listener::Listener;
use super::reply::{Payload, Refusal};
use super::token::Tokens;
use super::{reserve, telemetry};
use crate::store::Store;

/// Most calls at once: their bodies of at most 1 MiB then fill at most 1 GiB. An Envoy worker has
/// at most 4. A call ends when it has been carried out and its answer was fetched.
const CALLS: usize = 1024;

/// Answers proxies over a store. Needs a Tokio runtime.
pub struct CallEndpoint {
    pub(super) store: Arc<dyn Store>,
    pub(super) hooks: Arc<dyn Hooks>,
    pub(super) connections: Arc<Connections>,
    pub(super) deadlines: Arc<Deadlines>,
    /// One permit for each call under way.
    pub(super) permits: Arc<Semaphore>,
    tokens: Option<Tokens>,
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
            tokens: None,
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

    /// Serves `listener` until this future is dropped.
    pub async fn accept(self, listener: Listener) {
        let endpoint = Arc::new(self);
        let connections = Arc::clone(&endpoint.connections);
        let respond = move |request| {
            let endpoint = Arc::clone(&endpoint);
            async move { endpoint.respond(request).await }
        };
        connections.accept(&listener, connection_limits().calls, respond).await;
    }

    /// Answers a request. Errors become answers, too.
    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Payload> {
        let received = Instant::now();
        let path = request.uri().path();
        let is_telemetry = path == TELEMETRY_PATH;
        let answer = match (path, request.method()) {
            (RESERVE_PATH, &Method::POST) => reserve::serve(&self, request, received).await,
            (TELEMETRY_PATH, &Method::POST) => telemetry::serve(&self, request).await,
            (RESERVE_PATH | TELEMETRY_PATH, _) => Err(Refusal::Method("POST")),
            (path, _) if is_admin(path) => Err(Refusal::CallAddress),
            _ => Err(Refusal::NoSuchPath),
        };
        let answer = answer.unwrap_or_else(|refusal| refusal.answer());
        if !is_telemetry {
            let status = answer.status().as_u16();
            self.hooks.observe(Event::Answered { status, took: received.elapsed() });
        }
        answer
    }

    /// Checks that a request with these headers comes from a proxy.
    ///
    /// # Errors
    /// When no valid token is shown, or when a web page calls: a browser that can reach this port
    /// may show any page.
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

/// Whether a path looks like one of the admin address.
fn is_admin(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz" | "/metrics") || path.starts_with("/v1/")
}
