//! `POST /v1/telemetry?domain=..`: what proxies report, and the dials they get.
//! `POST /v1/document?domain=..&digest=..&number=..`: the published document.

use std::sync::Arc;

use hyper::body::{Body, Bytes};
use hyper::{Request, Response, StatusCode, Uri};
use quotagate_protocol::dials::MAX_REPORT;

use super::body::receive;
use super::endpoint::CallEndpoint;
use super::refusal::Refusal;
use super::reply::{Payload, bounded_json, json};

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
    let domains = endpoint.authorize(request.headers())?;
    let domain = parameter(request.uri(), "domain=").to_owned();
    domains.check(&domain)?;
    // Without the head, which is not needed while the body arrives.
    let report = match receive(request.into_body(), MAX_REPORT).await {
        // Nothing is counted by reports, so one that is too long is ignored.
        Err(Refusal::TooLarge(_)) => Bytes::new(),
        report => report?,
    };
    let reply = endpoint.dials(&domain, &report).await?;
    Ok(json(StatusCode::OK, serde_json::to_vec(&reply).map_err(|_| Refusal::Failed)?, None))
}

/// Answers a proxy that asks for the published document.
///
/// # Errors
/// When the caller is not authorized, names no domain, the document is not known, or too many
/// replies with one are on their way.
pub async fn serve_document<B>(
    endpoint: &Arc<CallEndpoint>,
    request: Request<B>,
) -> Result<Response<Payload>, Refusal> {
    let domains = endpoint.authorize(request.headers())?;
    let value = |name| parameter(request.uri(), name);
    // Without a number, it is the document that all proxies take up.
    let (domain, digest, number) = (value("domain="), value("digest="), value("number=").parse());
    domains.check(domain)?;
    let reply = endpoint.document(domain, digest, number.unwrap_or_default()).await?;
    // A reply without a document takes none.
    let kib = u32::try_from(reply.len() / 1024).map_err(|_| Refusal::Failed)?;
    let permits = Arc::clone(&endpoint.document_permits).try_acquire_many_owned(kib);
    Ok(bounded_json(reply, permits.map_err(|_| Refusal::BusyDocuments)?))
}

/// The value of a parameter; empty if it is absent. `name` ends with `=`.
fn parameter<'u>(uri: &'u Uri, name: &str) -> &'u str {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters.find_map(|parameter| parameter.strip_prefix(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use futures_util::future::{BoxFuture, FutureExt, ready};
    use http_body_util::BodyExt;
    use quotagate_protocol::dials::DialsReply;

    use super::super::endpoint::DOCUMENTS_KIB;
    use super::super::hooks::{Event, Hooks};
    use super::*;

    struct Published(Bytes);

    impl Hooks for Published {
        fn observe(&self, _: Event<'_>) {}

        fn version(&self, _: &str) -> u64 {
            0
        }

        fn dials<'a>(
            &'a self,
            _: &'a str,
            _: &'a [u8],
        ) -> BoxFuture<'a, Result<DialsReply, String>> {
            ready(Ok(DialsReply::default())).boxed()
        }

        fn document<'a>(
            &'a self,
            _: &'a str,
            _: &'a str,
            _: u64,
        ) -> BoxFuture<'a, Result<Bytes, String>> {
            ready(Ok(self.0.clone())).boxed()
        }
    }

    #[tokio::test]
    async fn replies_with_a_document_are_bounded_until_they_are_on_their_way() {
        let endpoint = |kib: usize| {
            let store = crate::open(&"memory:".parse().unwrap(), "qg");
            let hooks = Arc::new(Published(vec![b' '; kib * 1024].into()));
            Arc::new(CallEndpoint::new(store, Arc::default()).hooks(hooks))
        };
        let ask = async |endpoint: &Arc<CallEndpoint>| {
            let request = Request::post("/v1/document?domain=d&digest=x").body(()).unwrap();
            serve_document(endpoint, request).await.map_err(|refusal| refusal.code())
        };
        let large = endpoint(1024);
        let mut on_their_way = Vec::new();
        for _ in 0..DOCUMENTS_KIB / 1024 {
            on_their_way.push(ask(&large).await.unwrap());
        }
        assert_eq!(ask(&large).await.err(), Some(503));
        // The connection has taken a part of one, and then all of it.
        let mut body = on_their_way.pop().unwrap().into_body();
        let frame = body.frame().await.unwrap().unwrap();
        let mut bytes = frame.into_data().unwrap_or_else(|_| panic!("no data"));
        drop(body);
        bytes.advance(1024);
        assert_eq!(ask(&large).await.err(), Some(503));
        drop(bytes);
        assert!(ask(&large).await.is_ok());
        // Smaller ones share the same bytes.
        let small = endpoint(4);
        let mut all = Vec::new();
        for _ in 0..2 * DOCUMENTS_KIB / 1024 {
            all.push(ask(&small).await.unwrap());
        }
    }
}
