//! The sample upstream: answers every request with 200 and one line, or with what headers of the
//! request ask for, and echoes what comes over a WebSocket. It speaks HTTP/1.1 and, for trailers,
//! HTTP/2. It knows how many requests ran at once.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::ready,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response, StatusCode,
    body::{Body as HttpBody, Frame, Incoming},
    header::{CONNECTION, HeaderValue, UPGRADE},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{io, net::TcpListener, sync::oneshot, time::sleep};

/// The upstream answers a request with this header with its value as the status, for policies that
/// count by status.
pub const STATUS_HEADER: &str = "x-answer-status";

/// The upstream answers a request with this header after so many milliseconds, at most
/// [`MAX_DELAY`].
pub const DELAY_HEADER: &str = "x-answer-delay-ms";

/// The upstream answers a request with this header with its value as the body.
pub const BODY_HEADER: &str = "x-answer-body";

/// The longest delay of an answer.
pub const MAX_DELAY: Duration = Duration::from_secs(10);

/// The upstream answers a request with this header with headers at once. The body has no bytes, and
/// ends only when the client leaves.
pub const HOLD_HEADER: &str = "x-answer-hold";

/// The upstream also counts requests with this header by its value, see [`Upstream::tally`] and
/// [`Upstream::order`].
pub const TALLY_HEADER: &str = "x-tally";

/// Headers with this prefix come back in the answer without it: `x-answer-header-etag: 1` gives
/// `etag: 1`.
pub const HEADER_PREFIX: &str = "x-answer-header-";

/// Headers with this prefix come back as trailers: `x-answer-trailer-grpc-status: 16` is how gRPC
/// fails.
pub const TRAILER_PREFIX: &str = "x-answer-trailer-";

type Body = BoxBody<Bytes, Infallible>;

/// What has reached an upstream.
#[derive(Debug, Default)]
struct Requests {
    all: AtomicU64,
    running: AtomicU64,
    peak: AtomicU64,
    tally: Mutex<Tally>,
}

/// Requests by the value of their [`TALLY_HEADER`].
#[derive(Debug, Default)]
struct Tally {
    counts: BTreeMap<String, u64>,
    /// The values in the order in which they came first.
    order: Vec<String>,
}

impl Requests {
    fn count(self: &Arc<Self>, headers: &HeaderMap) -> Running {
        self.all.fetch_add(1, Ordering::Relaxed);
        let running = self.running.fetch_add(1, Ordering::Relaxed) + 1;
        self.peak.fetch_max(running, Ordering::Relaxed);
        if let Some(name) = headers.get(TALLY_HEADER).and_then(|value| value.to_str().ok()) {
            let mut tally = self.tally();
            let Tally { counts, order } = &mut *tally;
            let count = counts.entry(name.to_owned()).or_default();
            *count += 1;
            if *count == 1 {
                order.push(name.to_owned());
            }
        }
        Running(Arc::clone(self))
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that has reached the upstream, until its answer is made or its client has left.
#[derive(Debug)]
struct Running(Arc<Requests>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A body without bytes that does not end.
struct Held {
    _running: Running,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        // The connection polls this, and drops it when the client leaves.
        Poll::Pending
    }
}

/// A running upstream (HTTP/1.1 with keep-alive, or HTTP/2 without TLS, on a thread of its own),
/// ended when dropped.
#[derive(Debug)]
pub struct Upstream {
    port: u16,
    requests: Arc<Requests>,
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
        Self::start_at((Ipv4Addr::LOCALHOST, port).into())
    }

    /// Starts one on this address.
    ///
    /// # Errors
    /// When the port is taken, or the system refuses a thread.
    pub fn start_at(address: SocketAddr) -> Result<Self> {
        let listener = StdListener::bind(address)
            .with_context(|| format!("the upstream cannot listen on {address}"))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let requests = Arc::new(Requests::default());
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let count = Arc::clone(&requests);
        let thread = thread::Builder::new().name("upstream".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    // The loop ends only if the listener cannot be used at all; its connections
                    // then fail.
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
        self.requests.all.load(Ordering::Relaxed)
    }

    /// How many requests have reached it, by the value of their [`TALLY_HEADER`].
    #[must_use]
    pub fn tally(&self) -> BTreeMap<String, u64> {
        self.requests.tally().counts.clone()
    }

    /// The values of the [`TALLY_HEADER`] in the order in which they came first.
    #[must_use]
    pub fn order(&self) -> Vec<String> {
        self.requests.tally().order.clone()
    }

    /// The most requests that ran at once: each from its arrival until its answer was made. A
    /// WebSocket runs until it is closed.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.requests.peak.load(Ordering::Relaxed)
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

async fn serve(listener: StdListener, count: Arc<Requests>) -> std::io::Result<Infallible> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        // An error of `accept` belongs to one connection, or passes.
        let Ok((stream, _)) = listener.accept().await else { continue };
        stream.set_nodelay(true)?;
        let count = Arc::clone(&count);
        tokio::spawn(async move {
            let answer = service_fn(move |request| answer(request, Arc::clone(&count)));
            // A client that leaves in the middle is no error.
            let server = auto::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection_with_upgrades(TokioIo::new(stream), answer).await;
        });
    }
}

async fn answer(
    mut request: Request<Incoming>,
    count: Arc<Requests>,
) -> Result<Response<Body>, hyper::Error> {
    let running = count.count(request.headers());
    if let Some(protocol) = request.headers().get(UPGRADE).cloned() {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            echo(upgraded).await;
            drop(running);
        });
        return Ok(switching(protocol));
    }
    let (parts, body) = request.into_parts();
    if parts.headers.contains_key(HOLD_HEADER) {
        let mut response = Response::new(Held { _running: running }.boxed());
        response.headers_mut().extend(prefixed(&parts.headers, HEADER_PREFIX));
        return Ok(response);
    }
    body.collect().await?;
    sleep(delay(&parts.headers)).await;
    let given = parts.headers.get(BODY_HEADER).map(|text| Bytes::copy_from_slice(text.as_bytes()));
    let body = Full::new(given.unwrap_or(Bytes::from_static(b"hello from the upstream\n")));
    let trailers = prefixed(&parts.headers, TRAILER_PREFIX);
    let mut response = Response::new(match trailers.is_empty() {
        true => body.boxed(),
        false => body.with_trailers(ready(Some(Ok(trailers)))).boxed(),
    });
    let status = parts
        .headers
        .get(STATUS_HEADER)
        .and_then(|value| StatusCode::from_bytes(value.as_bytes()).ok());
    *response.status_mut() = status.unwrap_or(StatusCode::OK);
    response.headers_mut().extend(prefixed(&parts.headers, HEADER_PREFIX));
    drop(running);
    Ok(response)
}

/// The headers whose names start with `prefix`, without it.
fn prefixed(headers: &HeaderMap, prefix: &str) -> HeaderMap {
    let names = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().strip_prefix(prefix)?, value)));
    let mut found = HeaderMap::new();
    for (name, value) in names {
        if let Ok(name) = name.parse::<hyper::header::HeaderName>() {
            found.append(name, value.clone());
        }
    }
    found
}

fn delay(headers: &HeaderMap) -> Duration {
    let value = headers.get(DELAY_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    value.map_or(Duration::ZERO, Duration::from_millis).min(MAX_DELAY)
}

fn switching(protocol: HeaderValue) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::new()).boxed());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, protocol);
    response
}

/// Echoes all bytes until the client leaves.
async fn echo(upgraded: hyper::upgrade::OnUpgrade) {
    let Ok(upgraded) = upgraded.await else { return };
    let (mut from, mut to) = io::split(TokioIo::new(upgraded));
    // A client that leaves in the middle is no error.
    let _ = io::copy(&mut from, &mut to).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::{Client, Request},
        wait,
    };
    use std::time::Instant;

    #[test]
    fn hostile_store_answers_as_requested() {
        let upstream = Upstream::start().unwrap();
        let mut client = Client::connect(upstream.port()).unwrap();
        let plain = client.send(&Request::get("/")).unwrap();
        assert_eq!((plain.status, plain.text().as_str()), (200, "hello from the upstream\n"));
        let asked = Request::post("/login", b"body").header("x-answer-status", "401");
        let asked = client.send(&asked.header("x-answer-header-x-ratelimit-limit", "7")).unwrap();
        assert_eq!((asked.status, asked.header("x-ratelimit-limit")), (401, Some("7")));
        let own = client.send(&Request::get("/").header(BODY_HEADER, "{}")).unwrap();
        assert_eq!(own.text(), "{}");
        assert_eq!(upstream.requests(), 3);
        let slow = Request::get("/").header(DELAY_HEADER, "50").header(TALLY_HEADER, "slow");
        let slow = client.start(&slow);
        let asked = Instant::now();
        slow.and_then(|()| client.finish()).unwrap();
        assert!(asked.elapsed() >= Duration::from_millis(50));
        assert_eq!(upstream.tally(), BTreeMap::from([("slow".to_owned(), 1)]));
        assert_eq!((upstream.order(), upstream.peak()), (vec!["slow".to_owned()], 1));
    }

    #[test]
    fn upstream_knows_how_many_requests_ran_at_once() {
        let upstream = Upstream::start().unwrap();
        let mut clients = [(); 3].map(|()| Client::connect(upstream.port()).unwrap());
        let [left, held, switched] = &mut clients;
        left.start(&Request::get("/").header(DELAY_HEADER, "9000")).unwrap();
        held.start(&Request::get("/").header(HOLD_HEADER, "")).unwrap();
        assert_eq!(held.finish_without_body().unwrap().status, 200);
        assert_eq!(switched.send(&Request::websocket("/chat")).unwrap().status, 101);
        assert_eq!(upstream.peak(), 3);
        drop(clients);
        let running = || upstream.requests.running.load(Ordering::Relaxed);
        wait::until_true("all to have ended", MAX_DELAY / 2, || Ok(running() == 0)).unwrap();
    }

    #[test]
    fn upstream_echoes_over_an_upgraded_connection() {
        let upstream = Upstream::start().unwrap();
        let mut client = Client::connect(upstream.port()).unwrap();
        let switched = client.send(&Request::websocket("/chat")).unwrap();
        assert_eq!((switched.status, switched.header("upgrade")), (101, Some("websocket")));
        assert_eq!(client.exchange(b"\x81\x02hi").unwrap(), b"\x81\x02hi");
    }
}
