//! `POST /v1/reserve`.

use std::sync::Arc;
use std::time::Instant;

use hyper::body::{Body, Bytes};
use hyper::{Request, Response, StatusCode};
use quotagate_protocol::MAX_BODY;

use super::body::{read_json, receive};
use super::call::CarriedOut;
use super::endpoint::CallEndpoint;
use super::refusal::Refusal;
use super::reply::{Payload, json};

/// Carries out a call that arrived at `received`.
///
/// # Errors
/// Why nothing was granted to the caller.
pub async fn serve<B>(
    endpoint: &Arc<CallEndpoint>,
    request: Request<B>,
    received: Instant,
) -> Result<Response<Payload>, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let domains = endpoint.authorize(request.headers())?;
    // The head is dropped before the body is waited for.
    let body = receive(request.into_body(), MAX_BODY).await?;
    // After the body, so that one that does not arrive keeps no one out.
    let permit = endpoint.permit()?;
    let request = read_json(&body)?;
    drop(body);
    domains.check_call(&request)?;
    let CarriedOut { reply, held } = endpoint.carry_out(request, received, permit).await?;
    let body = serde_json::to_vec(&reply).map_err(|_| Refusal::Failed)?;
    Ok(json(StatusCode::OK, body, Some(Box::new(held))))
}
