//! `GET /healthz` of the call address: whether a call would be counted here.
//!
//! For load balancers that choose among stores. Neither a token nor Redis is asked, and the answer
//! names no server: `/readyz` of the admin address has the reasons.

use hyper::{Response, StatusCode};

use super::endpoint::CallEndpoint;
use super::refusal::Refusal;
use super::reply::{Payload, json};

/// The path.
pub const HEALTH_PATH: &str = "/healthz";

/// Says that calls are counted, at least for a part of all counters.
///
/// # Errors
/// When the store is shutting down, or can count nothing.
pub fn serve(endpoint: &CallEndpoint) -> Result<Response<Payload>, Refusal> {
    if endpoint.connections.is_draining() {
        return Err(Refusal::Down("the store is shutting down".to_owned()));
    }
    if !endpoint.store.health().counts_some() {
        return Err(Refusal::Down("nothing can be counted".to_owned()));
    }
    Ok(json(StatusCode::OK, br#"{"ready":true}"#.to_vec(), None))
}
