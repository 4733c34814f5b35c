//! The gRPC listener.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use hyper::body::Incoming;
use hyper::{Request, Response};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::messages::{RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT};
use crate::service::RateLimitService;

/// Answers a gRPC call. Calls of other methods get the status `UNIMPLEMENTED`.
pub async fn respond(service: Arc<RateLimitService>, request: Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        SHOULD_RATE_LIMIT => Grpc::new(ProstCodec::default()).unary(Method(service), request).await,
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
