//! The routes of the call endpoint.

use std::sync::Arc;
use std::time::Instant;

use hyper::{Method, Request, Response};
use quotagate_protocol::RESERVE_PATH;
use quotagate_protocol::dials::{DOCUMENT_PATH, TELEMETRY_PATH};

use super::connections::{Callers, STREAMS};
use super::endpoint::CallEndpoint;
use super::health::{self, HEALTH_PATH};
use super::hooks::Event;
use super::listener::Listener;
use super::refusal::Refusal;
use super::reply::Payload;
use super::requests::Arriving;
use super::{reserve, telemetry};

impl CallEndpoint {
    /// Serves `listener` until this future is dropped.
    pub async fn accept(self: Arc<Self>, listener: Listener) {
        let endpoint = self;
        let connections = Arc::clone(&endpoint.connections);
        let respond = move |request| {
            let endpoint = Arc::clone(&endpoint);
            async move { endpoint.respond(request).await }
        };
        connections.accept(&listener, Callers::Proxies(STREAMS), respond).await;
    }

    /// Answers a request. Errors become answers, too.
    async fn respond(self: Arc<Self>, request: Request<Arriving>) -> Response<Payload> {
        let received = Instant::now();
        let path = request.uri().path();
        let is_call = !matches!(path, TELEMETRY_PATH | DOCUMENT_PATH | HEALTH_PATH);
        let answer = match (path, request.method()) {
            (RESERVE_PATH, &Method::POST) => reserve::serve(&self, request, received).await,
            (TELEMETRY_PATH, &Method::POST) => telemetry::serve(&self, request).await,
            (DOCUMENT_PATH, &Method::POST) => telemetry::serve_document(&self, request).await,
            (HEALTH_PATH, &Method::GET | &Method::HEAD) => health::serve(&self),
            (RESERVE_PATH | TELEMETRY_PATH | DOCUMENT_PATH, _) => Err(Refusal::Method("POST")),
            (HEALTH_PATH, _) => Err(Refusal::Method("GET, HEAD")),
            (path, _) if is_admin(path) => Err(Refusal::CallAddress),
            _ => Err(Refusal::NoSuchPath),
        };
        let answer = answer.unwrap_or_else(|refusal| refusal.answer());
        if is_call {
            let status = answer.status().as_u16();
            self.hooks.observe(Event::Answered { status, took: received.elapsed() });
        }
        answer
    }
}

/// Whether the admin address may serve this path.
fn is_admin(path: &str) -> bool {
    matches!(path, "/" | "/readyz" | "/metrics") || path.starts_with("/v1/")
}
