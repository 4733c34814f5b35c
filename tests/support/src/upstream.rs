//! The sample upstream: answers every request with 200 and one line.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, TcpListener as StdListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, sync::oneshot};

/// A request with this header is answered with its value as status, for policies that count by status.
pub const STATUS_HEADER: &str = "x-answer-status";

/// Headers that start so come back on the answer without the prefix: `x-answer-header-etag: 1` gives `etag: 1`.
pub const HEADER_PREFIX: &str = "x-answer-header-";

/// A running upstream (HTTP/1.1 with keep-alive, on a thread of its own), ended when dropped.
#[derive(Debug)]
pub struct Upstream {
    port: u16,
    requests: Arc<AtomicU64>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Upstream {
    /// Starts one on a free port.
    ///
    /// # Errors
    /// When the system refuses a socket or a thread.
    pub fn start() -> Result<Self> {
        Self::start_on(0)
    }

    /// Starts one on this port of 127.0.0.1.
    ///
    /// # Errors
    /// When the port is taken, or the system refuses a thread.
    pub fn start_on(port: u16) -> Result<Self> {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, port))
            .with_context(|| format!("the upstream cannot listen on 127.0.0.1:{port}"))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let requests = Arc::new(AtomicU64::new(0));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let count = Arc::clone(&requests);
        let thread = thread::Builder::new().name("upstream".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    // Only a listener that cannot be used at all ends the loop; its connections then fail.
                    _ = serve(listener, count) => {}
                }
            });
        })?;
        Ok(Self { port, requests, stop: Some(stop), thread: Some(thread) })
    }

    /// Its port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many requests have reached it.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may have ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: StdListener, count: Arc<AtomicU64>) -> io::Result<Infallible> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        // Errors of accept are those of one connection, or pass.
        let Ok((stream, _)) = listener.accept().await else { continue };
        stream.set_nodelay(true)?;
        let count = Arc::clone(&count);
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(request, &count));
            // A client that goes away in the middle is none of our business.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    count: &AtomicU64,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    count.fetch_add(1, Ordering::Relaxed);
    let (parts, body) = request.into_parts();
    body.collect().await?;
    let mut response = Response::new(Full::new(Bytes::from_static(b"hello from the upstream\n")));
    let status =
        parts.headers.get(STATUS_HEADER).and_then(|value| StatusCode::from_bytes(value.as_bytes()).ok());
    *response.status_mut() = status.unwrap_or(StatusCode::OK);
    for (name, value) in &parts.headers {
        if let Some(name) = name.as_str().strip_prefix(HEADER_PREFIX)
            && let Ok(name) = name.parse::<hyper::header::HeaderName>()
        {
            response.headers_mut().append(name, value.clone());
        }
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::{Client, Request};

    #[test]
    fn it_answers_what_it_is_asked_for() {
        let upstream = Upstream::start().unwrap();
        let mut client = Client::connect(upstream.port()).unwrap();
        let plain = client.send(&Request::get("/")).unwrap();
        assert_eq!((plain.status, plain.text().as_str()), (200, "hello from the upstream\n"));
        let asked = Request::post("/login", b"body").header("x-answer-status", "401");
        let asked = client.send(&asked.header("x-answer-header-x-ratelimit-limit", "7")).unwrap();
        assert_eq!((asked.status, asked.header("x-ratelimit-limit")), (401, Some("7")));
        assert_eq!(upstream.requests(), 2);
    }
}
