//! The admin address: is it alive, is it ready, what did it do, which are open to everyone who reaches it; and what
//! operators do, which is guarded.

pub mod guard;
mod routes;

use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::{Method, Request, Response, StatusCode};
use quotagate_quota::protocol::RESERVE_PATH;
use quotagate_quota::protocol::dials::DIALS_PATH;
use serde::Serialize;

use self::guard::Reach;
use super::App;
use super::metrics::Format;
use super::page;
use super::query::Query;
use super::reply::{Payload, Refusal, json, text};
use crate::api;

#[derive(Serialize)]
struct Readiness {
    ready: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    faults: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Answers a request on the admin address, which those within `reach` can connect to.
///
/// # Errors
/// For a path or a method that it does not know, and where operators may not or cannot do what they wish.
pub async fn serve<B>(app: &Arc<App>, request: Request<B>, reach: Reach) -> Result<Response<Payload>, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if is_a_proxys(&request) {
        return Err(Refusal::AdminAddress);
    }
    if request.uri().path().starts_with(api::ROOT) {
        app.guard.check(&request, reach)?;
        return routes::serve(app, request).await;
    }
    let answer: fn(&App) -> Response<Payload> = match request.uri().path() {
        page::PATH => |_| page::serve(),
        "/healthz" => |_| text(StatusCode::OK, "text/plain; charset=utf-8", "ok\n".to_owned()),
        "/readyz" if Query::of(request.uri()).get("partial").is_some() => |app| readiness(app, true),
        "/readyz" => |app| readiness(app, false),
        "/metrics" => match Format::accepted(request.headers()) {
            Format::Open => |app| metrics(app, Format::Open),
            Format::Plain => |app| metrics(app, Format::Plain),
        },
        _ => return Err(Refusal::NoSuchPath),
    };
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return Err(Refusal::Method("GET"));
    }
    Ok(answer(app))
}

fn metrics(app: &App, format: Format) -> Response<Payload> {
    let page = app.metrics.render(&*app.store, &app.operate, format);
    text(StatusCode::OK, format.content_type(), page)
}

/// Whether a proxy asks, which was given the wrong address.
fn is_a_proxys<B>(request: &Request<B>) -> bool {
    match request.uri().path() {
        RESERVE_PATH => true,
        DIALS_PATH => request.method() == Method::GET,
        _ => false,
    }
}

/// Whether something is at this path of the admin address.
pub fn serves(path: &str) -> bool {
    matches!(path, page::PATH | "/healthz" | "/readyz" | "/metrics") || routes::allowed(path).is_some()
}

/// Whether the next request can be counted; with `partial`, whether the next request of anybody can.
fn readiness(app: &App, partial: bool) -> Response<Payload> {
    let mut health = app.store.health();
    if app.ending.is_draining() {
        health.faults.insert(0, "the store is ending: it was asked to stop".to_owned());
        health.outage = true;
    }
    let ready = health.faults.is_empty() || (partial && !health.outage);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let readiness = Readiness { ready, faults: health.faults, warnings: health.warnings };
    json(status, serde_json::to_vec(&readiness).unwrap_or_default(), None)
}
