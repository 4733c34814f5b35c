//! `POST /v1/telemetry?domain=..`: what proxies report, and the dials they get.

use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::{Request, Response, StatusCode};
use quotagate_protocol::dials::MAX_REPORT;

use super::body::receive;
use super::endpoint::CallEndpoint;
use super::refusal::Refusal;
use super::reply::{Payload, json};

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
    let report = match receive(body, MAX_REPORT).await {
        // A report decides nothing, so one that is too long is ignored.
        Err(Refusal::TooLarge(_)) => Bytes::new(),
        report => report?,
    };
    let reply = endpoint.dials(domain.unwrap_or_default(), &report).await?;
    Ok(json(StatusCode::OK, serde_json::to_vec(&reply).map_err(|_| Refusal::Failed)?, None))
}
