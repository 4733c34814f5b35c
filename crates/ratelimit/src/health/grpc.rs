//! `grpc.health.v1.Health`, for load balancers that speak gRPC.
//!
//! Names and tags are those of `grpc/health/v1/health.proto`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Ready, ready};
use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tonic::server::{ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};

use super::HealthState;
use crate::messages::SERVICE;

/// The path of the method that answers once.
pub(crate) const CHECK: &str = "/grpc.health.v1.Health/Check";
/// The path of the method that answers again whenever the answer changes.
pub(crate) const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// The services that have a health: the server itself, and the two names of its service.
const SERVICES: [&str; 3] = ["", "ratelimit", SERVICE];
/// Most watches at once. A load balancer has one for each of its connections.
const WATCHES: usize = 1024;
/// How often a watch looks.
const EVERY: Duration = Duration::from_secs(1);

/// Asks for the health of a service.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

/// The health of a service.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(crate) struct HealthResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// A permit for each watch.
static WATCHED: Semaphore = Semaphore::const_new(WATCHES);

/// Either method.
pub(crate) struct HealthMethod(pub(crate) Arc<HealthState>);

impl HealthState {
    fn status(&self, service: &str) -> ServingStatus {
        match (SERVICES.contains(&service), self.faults().is_empty()) {
            (false, _) => ServingStatus::ServiceUnknown,
            (true, true) => ServingStatus::Serving,
            (true, false) => ServingStatus::NotServing,
        }
    }
}

impl UnaryService<HealthRequest> for HealthMethod {
    type Response = HealthResponse;
    type Future = Ready<Result<Response<HealthResponse>, Status>>;

    fn call(&mut self, request: Request<HealthRequest>) -> Self::Future {
        ready(match self.0.status(&request.get_ref().service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found("unknown service")),
            status => Ok(Response::new(HealthResponse { status: status.into() })),
        })
    }
}

impl ServerStreamingService<HealthRequest> for HealthMethod {
    type Response = HealthResponse;
    type ResponseStream = BoxStream<'static, Result<HealthResponse, Status>>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<HealthRequest>) -> Self::Future {
        let service = request.into_inner().service;
        let Ok(permit) = WATCHED.try_acquire() else {
            let text = format!("{WATCHES} watches are under way: ask with Check");
            return ready(Err(Status::resource_exhausted(text)));
        };
        let changes = move |(health, last): (Arc<HealthState>, Option<ServingStatus>)| {
            let _permit = &permit;
            let service = service.clone();
            async move {
                loop {
                    let status = health.status(&service);
                    if last != Some(status) {
                        let response = HealthResponse { status: status.into() };
                        return Some((Ok(response), (health, Some(status))));
                    }
                    // A watch must not keep the server from ending.
                    if health.connections.is_draining() {
                        return None;
                    }
                    sleep(EVERY).await;
                }
            }
        };
        ready(Ok(Response::new(stream::unfold((Arc::clone(&self.0), None), changes).boxed())))
    }
}
