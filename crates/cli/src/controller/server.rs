//! The controller's metrics and health, over HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use super::metrics::ControllerMetrics;
use super::watched::Watched;

/// Serves metrics and health until the runtime ends.
///
/// # Errors
/// When the address cannot be listened on.
pub(super) async fn serve(
    address: SocketAddr,
    metrics: Arc<ControllerMetrics>,
    watched: Arc<Watched>,
) -> Result<(), String> {
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| format!("--metrics {address}: cannot listen: {error}"))?;
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Too many open files: others will be closed.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            };
            let (metrics, watched) = (Arc::clone(&metrics), Arc::clone(&watched));
            let answer = service_fn(move |request: Request<Incoming>| {
                let (status, text) = reply(request.uri().path(), &metrics, &watched);
                async move {
                    let mut response = Response::new(Full::new(Bytes::from(text)));
                    *response.status_mut() = status;
                    Ok::<_, Infallible>(response)
                }
            });
            let mut server = http1::Builder::new();
            // It also bounds how long a client may take to send its headers.
            server.timer(TokioTimer::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), answer));
        }
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
