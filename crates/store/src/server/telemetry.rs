//! `POST /v1/telemetry?domain=..`: what proxies report, and the dials they get.
//! `POST /v1/document?domain=..&digest=..&number=..`: the published document.

use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::{Request, Response, StatusCode, Uri};
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
    let domain = parameter(&head.uri, "domain=");
    let report = match receive(body, MAX_REPORT).await {
        // Nothing is counted by reports, so one that is too long is ignored.
        Err(Refusal::TooLarge(_)) => Bytes::new(),
        report => report?,
    };
    let reply = endpoint.dials(domain, &report).await?;
    Ok(json(StatusCode::OK, serde_json::to_vec(&reply).map_err(|_| Refusal::Failed)?, None))
}

/// Answers a proxy that asks for the published document.
///
/// # Errors
/// When the caller is not authorized, names no domain, or the document is not known.
pub async fn serve_document<B>(
    endpoint: &Arc<CallEndpoint>,
    request: Request<B>,
) -> Result<Response<Payload>, Refusal> {
    endpoint.authorize(request.headers())?;
    let of = |name| parameter(request.uri(), name);
    // Without a number, it is the document that all proxies take up.
    let (domain, digest, number) = (of("domain="), of("digest="), of("number=").parse());
    let reply = endpoint.document(domain, digest, number.unwrap_or_default()).await?;
    Ok(json(StatusCode::OK, reply, None))
}

/// The value of a parameter; empty if it is absent. `name` ends with `=`.
fn parameter<'u>(uri: &'u Uri, name: &str) -> &'u str {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters.find_map(|parameter| parameter.strip_prefix(name)).unwrap_or_default()
}
