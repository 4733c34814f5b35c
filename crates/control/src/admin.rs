//! The admin address. Health, metrics and the live page are open to everyone who reaches it by one
//! of its names. The paths of operators, under `/v1/`, are guarded.

mod error;
pub mod events;
pub mod guard;
pub mod operator;
mod page;
pub mod permits;
mod routes;

use std::sync::Arc;

use axum::extract::{RawQuery, Request, State};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use quotagate_protocol::RESERVE_PATH;
use quotagate_protocol::dials::{DOCUMENT_PATH, TELEMETRY_PATH};
use quotagate_store::server::{Arriving, ListenAddr};
use serde::Serialize;
use serde_json::Value;
use tower::ServiceExt;
use tower_http::set_header::SetResponseHeaderLayer;

pub use self::error::Refusal;
use self::error::RefusedTry;
use self::guard::{Guard, HostNames, Reach};
use self::operator::Access;
use crate::audit::{AuditLine, Outcome};
use crate::control::Control;
use crate::metrics::Format;
use quotagate_operate::api::{self, MAX_REASON};
use quotagate_operate::clean_text;

/// What the audit log says of a change of a partition that is wrong.
const WRONG_CHANGE: &str = "the change is wrong, or there is nothing to change";

/// Checks that every request passes: all of [`Guard`]'s under `/v1/`, and the host elsewhere.
struct Admission {
    control: Arc<Control>,
    guard: Guard,
    reach: Reach,
}

/// All paths of an admin address with this `reach`.
pub fn router(control: Arc<Control>, guard: Guard, reach: Reach) -> Router {
    let fixed =
        |name, value| SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value));
    let admission = Admission { control: Arc::clone(&control), guard, reach };
    routes::router()
        .layer(fixed(CACHE_CONTROL, "no-store"))
        .layer(fixed(X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .route("/", get(page::serve))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .fallback(|| async { Refusal::NoSuchPath })
        .layer(from_fn_with_state(Arc::new(admission), admit))
        .with_state(control)
}

/// Serves `router` only to requests that name this address, or one of these hosts.
pub fn by_own_hosts(router: Router, hosts: HostNames, address: &ListenAddr) -> Router {
    let (reach, hosts) = (Reach::of(address), Arc::new(hosts));
    router.layer(from_fn(move |request: Request, next: Next| {
        let hosts = Arc::clone(&hosts);
        async move { serve_own_hosts(&hosts, reach, request, next).await }
    }))
}

async fn serve_own_hosts(
    hosts: &HostNames,
    reach: Reach,
    request: Request,
    next: Next,
) -> Response {
    match hosts.check(&request, reach) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Answers a request with `router`.
pub async fn respond(router: Router, request: axum::http::Request<Arriving>) -> Response {
    // A router never fails.
    let Ok(response) = router.oneshot(request).await;
    match response.headers().get(ALLOW).and_then(|methods| methods.to_str().ok()) {
        Some(methods) if response.status() == StatusCode::METHOD_NOT_ALLOWED => {
            Refusal::Method(methods.to_owned()).into_response()
        }
        _ => response,
    }
}

/// Passes a request on with its operator, and writes refused tries to the audit log.
async fn admit(
    State(admission): State<Arc<Admission>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Admission { control, guard, reach } = &*admission;
    match request.uri().path() {
        // A proxy is configured with the wrong address.
        RESERVE_PATH | TELEMETRY_PATH | DOCUMENT_PATH => {
            return Refusal::AdminAddress.into_response();
        }
        path if path.starts_with(api::ROOT) => {}
        // It says nothing, and load balancers may name any host.
        "/healthz" => return next.run(request).await,
        _ => return serve_own_hosts(&guard.hosts, *reach, request, next).await,
    }
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    let mut attempt = Access::new(&request);
    let response = match guard.check(&request, *reach) {
        Ok(operator) => {
            attempt.operator = Arc::new(operator);
            request.extensions_mut().insert(attempt.clone());
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    let status = response.status();
    let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    if let Some(audit) = control.audit.as_ref().filter(|_| is_denied || !reads)
        && let Some(RefusedTry { error, wish }) = response.extensions().get::<RefusedTry>()
    {
        let outcome = if status.is_server_error() { Outcome::Failed } else { Outcome::Refused };
        let text = |name: &str| {
            let text = wish.as_ref()?.get(name).and_then(Value::as_str)?;
            Some(clean_text(text, MAX_REASON))
        };
        let (said, reason, domain) = (text("by"), text("reason"), text("domain"));
        let actor = attempt.operator.name.clone().or_else(|| said.clone());
        let author = attempt.author(domain.as_deref(), said, reason);
        // The partition may be a secret that was typed by mistake. So it is left out, and with it
        // every text that may repeat it.
        let is_wrong = status.is_client_error() && !is_denied;
        let names_partition = wish.as_ref().is_some_and(|wish| wish.get("partition").is_some());
        let said = match names_partition {
            true if is_wrong => WRONG_CHANGE.to_owned(),
            true => without_partitions(error),
            false => error.clone(),
        };
        let line = AuditLine::tried(outcome, actor, author, said);
        audit.write(AuditLine { domain, policy: text("policy"), ..line }).await;
    }
    response
}

/// A text without what stands in braces, as partitions do in keys.
fn without_partitions(text: &str) -> String {
    let mut parts = text.split('{');
    let mut said = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        said.push_str("{..}");
        said.push_str(part.rsplit_once('}').map_or("", |(_, rest)| rest));
    }
    said
}

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Whether the store can count every request; with `?partial`, whether it can count any.
async fn readiness(State(control): State<Arc<Control>>, RawQuery(query): RawQuery) -> Response {
    let names = query.unwrap_or_default();
    let partial = names.split('&').any(|name| name.split('=').next() == Some("partial"));
    let mut health = control.store.health();
    if control.connections.is_draining() {
        health.faults.insert(0, "the store is shutting down".to_owned());
        health.outage = true;
    }
    let ready = health.faults.is_empty() || (partial && health.counts_some());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let readiness = Readiness { ready, faults: health.faults, warnings: health.warnings };
    (status, Json(readiness)).into_response()
}

async fn metrics(State(control): State<Arc<Control>>, headers: HeaderMap) -> Response {
    let format = Format::accepted(&headers);
    let text = control.metrics.render(&*control.store, &control.operate, format);
    ([(CONTENT_TYPE, format.content_type())], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::without_partitions;

    #[test]
    fn audit_log_names_no_partition_of_a_change_that_failed() {
        for (text, said) in [
            ("shop:p:{jwt.sub=x} has another type", "shop:p:{..} has another type"),
            ("a {b{c} d:{e}f} g", "a {..}{..} d:{..} g"),
            ("no end {jwt.sub=x", "no end {..}"),
            ("127.0.0.1:6379 does not answer", "127.0.0.1:6379 does not answer"),
        ] {
            assert_eq!(without_partitions(text), said);
        }
    }
}
