//! Bodies of requests. Those that do not arrive at once may be large or slow, so only some of them
//! are received at a time.

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes};
use quotagate_store::server::{MAX_ARRIVAL, Refusal};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The longest message, in bytes: that of gRPC, unless a server says otherwise.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;

/// How many bodies that arrive in parts may be under way, so that what they hold is bounded. Bodies
/// of Envoy arrive in one part, and need no permit.
static IN_PARTS: Semaphore = Semaphore::const_new(32);
/// How many may wait for that. Each holds its first part.
static WAITING: Semaphore = Semaphore::const_new(1024);

/// Receives a body of at most `most` bytes.
///
/// # Errors
/// When the body is larger, breaks off or takes too long, or when too many others are under way.
pub(crate) async fn receive<B>(body: B, most: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let received = timeout(MAX_ARRIVAL, receive_parts(body, most)).await;
    received.unwrap_or_else(|_| Err(Refusal::Slow(MAX_ARRIVAL.as_secs())))
}

async fn receive_parts<B>(mut body: B, most: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let first = match body.frame().await {
        None => return Ok(Bytes::new()),
        Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        Some(Err(error)) => return Err(Refusal::Body(error.into().to_string())),
    };
    let too_large = || Refusal::TooLarge(format!("the body must be at most {most} bytes long"));
    let left = most.checked_sub(first.len()).ok_or_else(too_large)?;
    if body.is_end_stream() {
        return Ok(first);
    }
    let waits = WAITING.try_acquire().map_err(|_| Refusal::Busy)?;
    // The semaphore is never closed.
    let _permit = IN_PARTS.acquire().await;
    drop(waits);
    let rest = quotagate_store::server::receive(body, left).await.map_err(|error| match error {
        Refusal::TooLarge(_) => too_large(),
        other => other,
    })?;
    Ok([first, rest].concat().into())
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;

    use super::*;

    #[tokio::test]
    async fn body_in_one_part_is_bounded_like_one_in_several() {
        let body = || Full::new(Bytes::from_static(b"abcd"));
        assert_eq!(receive(body(), 4).await.unwrap(), "abcd");
        let refusal = receive(body(), 3).await.unwrap_err();
        assert_eq!(refusal.to_string(), "the body must be at most 3 bytes long");
    }
}
