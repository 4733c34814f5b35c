//! The gRPC listener.

use std::marker::PhantomData;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::{BoxFuture, FutureExt};
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use prost::Message;
use quotagate_store::server::{Arriving, MAX_ARRIVAL, Refusal, receive};
use tokio::time::timeout;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::Grpc;
use tonic::{Code, Status};

use crate::health::grpc::{CHECK, HealthMethod, WATCH};
use crate::http::ServiceState;
use crate::messages::{
    MAX_MESSAGE, RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT, check_counts,
};
use crate::service::RateLimitService;

/// The bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Begins the content type of every call.
const GRPC: &str = "application/grpc";
/// The largest question about health, in bytes: it holds the name of a service.
const MAX_HEALTH_MESSAGE: usize = 1024;

/// Answers a gRPC call. Calls of other methods get the status `UNIMPLEMENTED`.
///
/// The future is large, and a server moves it several times before it runs, so it is in a box.
pub fn respond(
    state: ServiceState,
    request: Request<Arriving>,
) -> BoxFuture<'static, Response<Body>> {
    async move {
        let ServiceState { service, health } = state;
        let health_calls =
            || Grpc::new(MessageCodec::default()).max_decoding_message_size(MAX_HEALTH_MESSAGE);
        match request.uri().path() {
            SHOULD_RATE_LIMIT => should_rate_limit(&service, request).await,
            CHECK => in_time(health_calls().unary(HealthMethod(health), request)).await,
            WATCH => in_time(health_calls().server_streaming(HealthMethod(health), request)).await,
            _ => Status::unimplemented("this is a rate limit service").into_http(),
        }
    }
    .boxed()
}

/// The response, or the status for a message that does not arrive. A watch responds as soon as its
/// message has come.
async fn in_time(response: impl Future<Output = Response<Body>>) -> Response<Body> {
    let late = |_| Status::deadline_exceeded("the message did not arrive in time").into_http();
    timeout(MAX_ARRIVAL, response).await.unwrap_or_else(late)
}

/// The only method of the rate limit service.
async fn should_rate_limit(
    service: &RateLimitService,
    request: Request<Arriving>,
) -> Response<Body> {
    let content_type = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    if request.method() != Method::POST
        || !content_type.is_some_and(|of| of.starts_with(GRPC.as_bytes()))
    {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    match answer(service, request).await {
        Ok(answer) => written(&answer),
        Err(status) => status.into_http(),
    }
}

async fn answer(
    service: &RateLimitService,
    request: Request<Arriving>,
) -> Result<RateLimitResponse, Status> {
    let encoding = request.headers().get("grpc-encoding").map(HeaderValue::as_bytes);
    if !matches!(encoding, None | Some(b"identity")) {
        return Err(Status::unimplemented("messages must not be compressed"));
    }
    let body =
        receive(request.into_body(), MAX_MESSAGE + PREFIX).await.map_err(
            |refusal| match refusal {
                Refusal::TooLarge(_) => too_large(),
                Refusal::Slow(_) => Status::deadline_exceeded(refusal.to_string()),
                Refusal::Busy => Status::resource_exhausted(refusal.to_string()),
                other => Status::internal(other.to_string()),
            },
        )?;
    // The code that the original service answers with.
    let status = |error| Status::new(Code::Unknown, format!("{error}"));
    let message = message(body)?;
    // Before it is decoded, because an empty descriptor is two bytes of the message.
    check_counts(&message).map_err(|fault| status(service.refuse(fault)))?;
    let request = RateLimitRequest::decode(message);
    let request = request.map_err(|error| Status::internal(error.to_string()))?;
    service.should_rate_limit(&request).await.map_err(status)
}

fn too_large() -> Status {
    Status::resource_exhausted(format!("the message must be at most {MAX_MESSAGE} bytes long"))
}

/// The only message of a body.
fn message(mut body: Bytes) -> Result<Bytes, Status> {
    let message = body.split_off(PREFIX.min(body.len()));
    let Some((&compressed, length)) = body.split_first().filter(|_| body.len() == PREFIX) else {
        return Err(Status::internal("the call holds no message"));
    };
    if compressed != 0 {
        return Err(Status::internal("the message is compressed, and no grpc-encoding says how"));
    }
    let length = length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
    if length > MAX_MESSAGE {
        return Err(too_large());
    }
    if length != message.len() {
        let text = format!("the message has {} bytes, but says {length}", message.len());
        return Err(Status::internal(text));
    }
    Ok(message)
}

/// An answer with its message, and with the status in its trailers.
fn written(answer: &RateLimitResponse) -> Response<Body> {
    let length = answer.encoded_len();
    let mut body = BytesMut::with_capacity(PREFIX + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // The buffer grows, so there is always room.
    let _ = answer.encode(&mut body);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(body.freeze()).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(GRPC));
    response
}

/// Writes messages `E` and reads messages `D` as Protocol Buffers.
pub(crate) struct MessageCodec<E, D>(PhantomData<fn(E) -> D>);

impl<E, D> Default for MessageCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<E, D> Codec for MessageCodec<E, D>
where
    E: Message + 'static,
    D: Message + Default + 'static,
{
    type Encode = E;
    type Decode = D;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::default()
    }

    fn decoder(&mut self) -> Self {
        Self::default()
    }
}

impl<E: Message, D> Encoder for MessageCodec<E, D> {
    type Item = E;
    type Error = Status;

    fn encode(&mut self, message: E, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        // The buffer grows, so there is always room.
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<E, D: Message + Default> Decoder for MessageCodec<E, D> {
    type Item = D;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<D>, Status> {
        let message = D::decode(buffer);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
