//! The gRPC listener.

use std::marker::PhantomData;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use hyper::body::Incoming;
use hyper::{Request, Response};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};

use crate::health::grpc::{CHECK, HealthMethod, WATCH};
use crate::http::ServiceState;
use crate::messages::{RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT};
use crate::service::RateLimitService;

/// Answers a gRPC call. Calls of other methods get the status `UNIMPLEMENTED`.
pub async fn respond(state: ServiceState, request: Request<Incoming>) -> Response<Body> {
    let ServiceState { service, health } = state;
    match request.uri().path() {
        SHOULD_RATE_LIMIT => {
            Grpc::new(MessageCodec::default()).unary(Method(service), request).await
        }
        CHECK => Grpc::new(MessageCodec::default()).unary(HealthMethod(health), request).await,
        WATCH => {
            let mut grpc = Grpc::new(MessageCodec::default());
            grpc.server_streaming(HealthMethod(health), request).await
        }
        _ => Status::unimplemented("this is a rate limit service").into_http(),
    }
}

/// The only method of the rate limit service.
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
