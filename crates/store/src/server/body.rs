//! Bodies of requests: their size, the time they take, and the JSON in them.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::refusal::Refusal;
use super::requests::Crowded;

/// The longest that a body may take to arrive.
pub const MAX_ARRIVAL: Duration = Duration::from_secs(5);

/// Receives a body of at most `most` bytes.
///
/// # Errors
/// When the body is larger, breaks off or takes too long.
pub async fn receive<B>(body: B, most: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let too_large = || Refusal::TooLarge(format!("the body must be at most {most} bytes long"));
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    match timeout(MAX_ARRIVAL, join_parts(Limited::new(body, most))).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) if is_crowded(&*error) => Err(Refusal::Busy),
        Ok(Err(error)) => Err(Refusal::Body(error.to_string())),
        Err(_) => Err(Refusal::Slow(MAX_ARRIVAL.as_secs())),
    }
}

/// The whole body. Copies its parts, because a small one keeps a whole buffer of its connection.
async fn join_parts<B: Body<Data = Bytes>>(body: B) -> Result<Bytes, B::Error> {
    let mut body = pin!(body);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}

/// Whether a body ended because others need the memory. A router may have wrapped the error.
fn is_crowded(error: &(dyn Error + 'static)) -> bool {
    error.is::<Crowded>() || error.source().is_some_and(is_crowded)
}

/// Reads a body as JSON.
///
/// # Errors
/// The path of the first wrong field, and the reason.
pub fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    // Text as a whole, because the parser would look for invalid text in each name of a field. A
    // second pass finds the path of a wrong field, so good bodies do not pay for it.
    let good = std::str::from_utf8(body).ok().and_then(|text| serde_json::from_str(text).ok());
    good.map_or_else(|| fault_of(body), Ok)
}

/// Reads a body that is not what it should be.
fn fault_of<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let mut text = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        Refusal::Malformed { field: error.path().to_string(), reason: error.inner().to_string() }
    })?;
    let trailing = |error: serde_json::Error| Refusal::Malformed {
        field: ".".to_owned(),
        reason: error.to_string(),
    };
    text.end().map_err(trailing).map(|()| value)
}
