//! The admin address. Health, metrics and the live page are open to everyone who reaches it. The
//! paths of operators, under `/v1/`, are guarded.

mod error;
pub mod events;
pub mod guard;
mod page;
mod routes;

use std::sync::Arc;

use axum::extract::{RawQuery, Request, State};
use axum::http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::body::Incoming;
use quotagate_protocol::RESERVE_PATH;
use quotagate_protocol::dials::TELEMETRY_PATH;
use serde::Serialize;
use tower::ServiceExt;
use tower_http::set_header::SetResponseHeaderLayer;

pub use self::error::Refusal;
use self::guard::{Guard, Reach};
use crate::control::Control;
use crate::metrics::Format;
use quotagate_operate::api;

/// All paths of an admin address with this `reach`.
pub fn router(control: Arc<Control>, guard: Guard, reach: Reach) -> Router {
    let fixed =
        |name, value| SetResponseHeaderLayer::overriding(name, HeaderValue::from_static(value));
    routes::router()
        .layer(fixed(CACHE_CONTROL, "no-store"))
        .layer(fixed(X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .route("/", get(page::serve))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readiness))
        .route("/metrics", get(metrics))
        .fallback(|| async { Refusal::NoSuchPath })
        .layer(from_fn_with_state(Arc::new((guard, reach)), admit))
        .with_state(control)
}

/// Answers a request with `router`.
pub async fn respond(router: Router, request: Request<Incoming>) -> Response {
    // A router never fails.
    let Ok(response) = router.oneshot(request).await;
    match response.headers().get(ALLOW).and_then(|methods| methods.to_str().ok()) {
        Some(methods) if response.status() == StatusCode::METHOD_NOT_ALLOWED => {
            Refusal::Method(methods.to_owned()).into_response()
        }
        _ => response,
    }
}

async fn admit(
    State(admission): State<Arc<(Guard, Reach)>>,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let (guard, reach) = &*admission;
    match request.uri().path() {
        // A proxy is configured with the wrong address.
        RESERVE_PATH | TELEMETRY_PATH => return Err(Refusal::AdminAddress),
        path if path.starts_with(api::ROOT) => guard.check(&request, *reach)?,
        _ => {}
    }
    Ok(next.run(request).await)
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
