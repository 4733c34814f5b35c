//! The controller's metrics and health, over HTTP.

use std::sync::Arc;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use quotagate_store::server::{Arriving, Callers, Connections, ListenAddr, Listener};

use super::metrics::ControllerMetrics;
use super::watched::Watched;

/// Serves metrics and health until the runtime ends.
///
/// # Errors
/// When the address cannot be listened on.
pub(super) async fn serve(
    address: &ListenAddr,
    metrics: Arc<ControllerMetrics>,
    watched: Arc<Watched>,
) -> Result<(), String> {
    let listener = Listener::bind(address)
        .await
        .map_err(|error| format!("--metrics: cannot listen on {address}: {error}"))?;
    let respond = move |request: Request<Arriving>| {
        let (status, text) = reply(request.uri().path(), &metrics, &watched);
        let mut response = Response::new(Full::new(Bytes::from(text)));
        *response.status_mut() = status;
        std::future::ready(response)
    };
    tokio::spawn(async move {
        let connections = Connections::default();
        connections.accept(&listener, Callers::Operators, respond).await;
    });
    Ok(())
}

fn reply(path: &str, metrics: &ControllerMetrics, watched: &Watched) -> (StatusCode, String) {
    match path {
        "/metrics" => match metrics.text() {
            Ok(text) => (StatusCode::OK, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        },
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match watched.unknown() {
            unknown if unknown.is_empty() => (StatusCode::OK, "ok\n".to_owned()),
            unknown => {
                let text = format!("the cluster is not known: {}\n", unknown.join("; "));
                (StatusCode::SERVICE_UNAVAILABLE, text)
            }
        },
        _ => (StatusCode::NOT_FOUND, "try /metrics, /healthz or /readyz\n".to_owned()),
    }
}
