//! `POST /v1/telemetry?domain=..`: what proxies report, and the dials they get.

use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::{Request, Response, StatusCode};
use quotagate_quota::protocol::dials::MAX_REPORT;

use super::body::receive;
use super::endpoint::CallEndpoint;
use super::reply::{Payload, Refusal, json};
use crate::key::is_domain;

/// Answers a proxy.
///
/// # Errors
/// When the caller is not authorized, names no domain, or the dials of the domain are not known.
pub async fn serve<B>(
    endpoint: &Arc<CallEndpoint>,
    request: Request<B>,
) -> Result<Response<Payload>, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    endpoint.authorize(request.headers())?;
    let (head, body) = request.into_parts();
    let mut parameters = head.uri.query().unwrap_or_default().split('&');
    let domain = parameters.find_map(|parameter| parameter.strip_prefix("domain="));
    let domain = domain.filter(|domain| is_domain(domain)).ok_or_else(|| Refusal::Malformed {
        field: "domain".to_owned(),
        reason: "must be 1 to 64 of the characters a-z 0-9 . _ -".to_owned(),
    })?;
    let report = match receive(body, MAX_REPORT).await {
        // A report decides nothing, so one that is too long is ignored.
        Err(Refusal::TooLarge(_)) => Bytes::new(),
        report => report?,
    };
    let reply = endpoint.hooks.dials(domain, &report).await.map_err(Refusal::Down)?;
    Ok(json(StatusCode::OK, serde_json::to_vec(&reply).map_err(|_| Refusal::Failed)?, None))
}
