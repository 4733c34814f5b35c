//! `POST /v1/telemetry?domain=..`: what proxies report, and the dials they get.
//! `POST /v1/document?domain=..&digest=..`: the published document.

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
    endpoint.authorize(request.headers())?;
    let (head, body) = request.into_parts();
    let domain = parameter(&head.uri, "domain=");
    let report = match receive(body, MAX_REPORT).await {
        // A report decides nothing, so one that is too long is ignored.
        Err(Refusal::TooLarge(_)) => Bytes::new(),
        report => report?,
    };
    let reply = endpoint.dials(domain, &report).await?;
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
    endpoint.authorize(request.headers())?;
    let (domain, digest) =
        (parameter(request.uri(), "domain="), parameter(request.uri(), "digest="));
    let permit = Arc::clone(&endpoint.documents).try_acquire_owned();
    let permit = permit.map_err(|_| Refusal::Busy)?;
    Ok(bounded_json(endpoint.document(domain, digest).await?, permit))
}

/// The value of a parameter; empty if it is absent. `name` ends with `=`.
fn parameter<'u>(uri: &'u Uri, name: &str) -> &'u str {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    parameters.find_map(|parameter| parameter.strip_prefix(name)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use futures_util::future::{BoxFuture, FutureExt, ready};
    use quotagate_protocol::dials::DialsReply;

    use super::super::endpoint::DOCUMENTS;
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

        fn document<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<Bytes, String>> {
            ready(Ok(self.0.clone())).boxed()
        }
    }

    #[tokio::test]
    async fn replies_with_a_document_are_bounded_until_they_are_on_their_way() {
        let store = crate::open(&"memory:".parse().unwrap(), "qg");
        let hooks = Arc::new(Published(Bytes::from_static(b"{}")));
        let endpoint = CallEndpoint::new(store, Arc::default()).hooks(hooks);
        let endpoint = Arc::new(endpoint);
        let ask = async || {
            let request = Request::post("/v1/document?domain=d&digest=x").body(()).unwrap();
            serve_document(&endpoint, request).await
        };
        let mut on_their_way = Vec::new();
        for _ in 0..DOCUMENTS {
            on_their_way.push(ask().await.map_err(|refusal| refusal.code()).unwrap());
        }
        assert_eq!(ask().await.map_err(|refusal| refusal.code()).err(), Some(503));
        on_their_way.pop();
        assert!(ask().await.is_ok());
    }
}
