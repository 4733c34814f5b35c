//! The admin address: is it alive, is it ready, what did it do.

use std::sync::Arc;

use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;

use super::App;
use super::page;
use super::reply::{Payload, Refusal, json, text};

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Answers a request on the admin address.
///
/// # Errors
/// For a path or a method that it does not know.
pub fn serve<B>(app: &Arc<App>, request: &Request<B>) -> Result<Response<Payload>, Refusal> {
    let answer: fn(&App) -> Response<Payload> = match request.uri().path() {
        page::PATH => |_| page::serve(),
        "/healthz" => |_| text(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".to_owned()),
        "/readyz" => readiness,
        "/metrics" => |app| {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            text(StatusCode::OK, kind, app.metrics.render())
        },
        _ => return Err(Refusal::NoSuchPath),
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Err(Refusal::Method("GET"));
    }
    Ok(answer(app))
}

fn readiness(app: &App) -> Response<Payload> {
    let health = app.store.health();
    let ready = health.faults.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let readiness = Readiness { ready, faults: health.faults, warnings: health.warnings };
    json(status, serde_json::to_vec(&readiness).unwrap_or_default(), None)
}
