//! The HTTP listeners: `/json` and `/healthcheck`, and for debugging `/rlconfig`.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use quotagate_control::is_json;
use quotagate_store::server::receive;

use crate::health::HealthState;
use crate::json;
use crate::messages::Code;
use crate::rules::{Rule, RuleLimit};
use crate::service::{Domains, RateLimitService};

/// Most bytes of a body of `/json`. A fault may take six times as many.
const MAX_JSON: usize = 256 << 10;

/// What all listeners need.
#[derive(Clone)]
pub struct ServiceState {
    /// Answers requests.
    pub service: Arc<RateLimitService>,
    /// Whether it can.
    pub health: Arc<HealthState>,
}

/// The paths for clients and load balancers.
pub fn router(state: ServiceState) -> Router {
    Router::new()
        .route("/json", any(rate_limit))
        .route("/healthcheck", get(health))
        .with_state(state)
}

/// The paths for debugging.
pub fn debug_router(state: ServiceState) -> Router {
    let index = "/rlconfig: print out the currently loaded configuration for debugging\n";
    Router::new()
        .route("/", get(move || async move { index }))
        .route("/rlconfig", get(rules))
        .with_state(state)
}

async fn rate_limit(State(state): State<ServiceState>, headers: HeaderMap, body: Body) -> Response {
    let bad = |text: String| (StatusCode::BAD_REQUEST, format!("{text}\n")).into_response();
    // A browser that can reach this port may show any page.
    if headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site") {
        let text = "calls do not come from web pages: send neither Origin nor Sec-Fetch-Site\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    if !is_json(&headers) {
        let text = "a call needs Content-Type: application/json\n";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, text).into_response();
    }
    drop(headers);
    let body = match receive(body, MAX_JSON).await {
        Ok(body) => body,
        Err(refusal) => return (refusal.status(), format!("{refusal}\n")).into_response(),
    };
    let request = match json::request(&body) {
        Ok(request) => request,
        Err(fault) => return bad(fault),
    };
    match state.service.should_rate_limit(&request).await {
        Ok(answer) => {
            let status = if answer.overall_code() == Code::OverLimit {
                StatusCode::TOO_MANY_REQUESTS
            } else {
                StatusCode::OK
            };
            let text = json::response(&answer).to_string();
            (status, [(CONTENT_TYPE, "application/json")], text).into_response()
        }
        Err(error) => bad(error.to_string()),
    }
}

async fn health(State(state): State<ServiceState>) -> Response {
    match state.health.faults() {
        faults if faults.is_empty() => "OK".into_response(),
        faults => {
            let text = faults.join("\n") + "\n";
            (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
        }
    }
}

async fn rules(State(state): State<ServiceState>) -> String {
    state.service.domains().map(|domains| written_rules(&domains)).unwrap_or_default()
}

/// All rules, a line each, sorted.
pub fn written_rules(domains: &Domains) -> String {
    let rules = domains.values().flat_map(|domain| domain.rules.rules());
    let mut lines: Vec<String> = rules.map(line).collect();
    lines.sort();
    lines.concat()
}

/// A rule as the original writes it, with the end of the line.
pub fn line(rule: &Rule) -> String {
    let (unit, hits) = match rule.limit {
        RuleLimit::Unlimited => ("UNKNOWN", 0),
        RuleLimit::Hits(hits, unit) => (unit.name(), hits),
    };
    let Rule { path, shadow_mode, quota_mode, .. } = rule;
    format!(
        "{path}: unit={unit} requests_per_unit={hits}, shadow_mode: {shadow_mode}, quota_mode: {quota_mode}\n"
    )
}
