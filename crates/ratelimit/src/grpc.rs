//! The gRPC listener.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use hyper::body::Incoming;
use hyper::{Request, Response};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};

use crate::messages::{RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT};
use crate::service::RateLimitService;

/// Answers a gRPC call. Calls of other methods get the status `UNIMPLEMENTED`.
pub async fn respond(service: Arc<RateLimitService>, request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        SHOULD_RATE_LIMIT => Grpc::new(MessageCodec).unary(Method(service), request).await,
        _ => Status::unimplemented("this is a rate limit service").into_http(),
    }
}

/// The only method of the service.
struct Method(Arc<RateLimitService>);

impl UnaryService<RateLimitRequest> for Method {
    type Response = RateLimitResponse;
    type Future = BoxFuture<'static, Result<tonic::Response<RateLimitResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let service = Arc::clone(&self.0);
        async move {
            let answer = service.should_rate_limit(request.get_ref()).await;
            // The code that the original service answers with.
            let status = |error| Status::new(Code::Unknown, format!("{error}"));
            answer.map(tonic::Response::new).map_err(status)
        }
        .boxed()
    }
}

/// Reads requests and writes answers as Protocol Buffers.
#[derive(Clone, Copy)]
struct MessageCodec;

impl Codec for MessageCodec {
    type Encode = RateLimitResponse;
    type Decode = RateLimitRequest;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for MessageCodec {
    type Item = RateLimitResponse;
    type Error = Status;

    fn encode(
        &mut self,
        answer: RateLimitResponse,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        // The buffer grows, so there is always room.
        answer.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for MessageCodec {
    type Item = RateLimitRequest;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<RateLimitRequest>, Status> {
        let request = RateLimitRequest::decode(buffer);
        request.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
