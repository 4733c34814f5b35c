//! `GET /v1/dials?domain=..` of the call address: what proxies report, and the dials they get.

use std::sync::Arc;

use hyper::{Request, Response, StatusCode};
use quotagate_quota::protocol::dials::REPORT_HEADER;

use super::endpoint::CallEndpoint;
use super::reply::{Payload, Refusal, json};
use crate::key::is_domain;

/// Answers a proxy.
///
/// # Errors
/// Where it may not ask, names no domain, or the dials of its domain are not known.
pub async fn serve<B>(
    endpoint: &Arc<CallEndpoint>,
    request: &Request<B>,
) -> Result<Response<Payload>, Refusal> {
    endpoint.authorize(request.headers())?;
    let mut parameters = request.uri().query().unwrap_or_default().split('&');
    let domain = parameters.find_map(|parameter| parameter.strip_prefix("domain="));
    let domain = domain.filter(|domain| is_domain(domain)).ok_or_else(|| Refusal::Malformed {
        field: "domain".to_owned(),
        reason: "must be 1 to 64 of the characters a-z 0-9 . _ -".to_owned(),
    })?;
    let report = request.headers().get(REPORT_HEADER).map_or(&b""[..], |report| report.as_bytes());
    let reply = endpoint.hooks.dials(domain, report).await.map_err(Refusal::Down)?;
    Ok(json(StatusCode::OK, serde_json::to_vec(&reply).map_err(|_| Refusal::Failed)?, None))
}
