//! An xDS server with rules for rate limit services, as Envoy Gateway is one.
//!
//! Its messages are written from the published definitions, and not those of the product, so that a
//! wrong tag shows.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use anyhow::{Context, Result, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, channel::Channel};
use hyper::{
    HeaderMap, Request, Response,
    body::{Body, Incoming},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use prost_types::{Any, Struct};
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    runtime,
    sync::{oneshot, watch},
};
use tokio_rustls::TlsAcceptor;

const PATH: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The type of its resources.
pub const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The rules of a domain.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitConfig {
    /// The name of the resource.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// Its descriptors.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<RateLimitDescriptor>,
}

/// A descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The limit.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<RateLimitPolicy>,
    /// Inner descriptors.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Only counts.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Metrics name values.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// Refuses only with all others of its kind.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
    /// For answers.
    #[prost(message, optional, tag = "8")]
    pub metadata: Option<Struct>,
}

/// A limit.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitPolicy {
    /// 1 second, 2 minute, 3 hour, 4 day, 5 month, 6 year, 7 week.
    #[prost(int32, tag = "1")]
    pub unit: i32,
    /// So many in the unit.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// No limit.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// The name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The limits that it replaces.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<RateLimitReplace>,
}

/// The name of a limit.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RateLimitReplace {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}

/// What a client said.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// The version that it uses.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// Who it is.
    #[prost(message, optional, tag = "2")]
    pub node: Option<XdsClientNode>,
    /// What it asks for.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The response that it answers.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why it refuses that.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<Status>,
}

/// A client.
#[derive(Clone, PartialEq, Message)]
pub struct XdsClientNode {
    /// Its id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Its metadata.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
}

/// A fault.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Status {
    /// Its code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// Its text.
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<Any>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

/// A running server. It ends, with its connections, when it is dropped.
#[derive(Debug)]
pub struct XdsServer {
    port: u16,
    shared: Arc<ServerShared>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct ServerShared {
    snapshot: watch::Sender<Option<(String, Vec<Any>)>>,
    /// Counts up to end all connections.
    cut: watch::Sender<u64>,
    heard: Mutex<Heard>,
}

#[derive(Debug, Default)]
struct Heard {
    requests: Vec<DiscoveryRequest>,
    /// The headers of each stream.
    streams: Vec<HeaderMap>,
}

impl XdsServer {
    /// Starts one on a free port, or on this one, with these certificates if it speaks TLS. It has
    /// nothing to send.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(port: u16, tls: Option<Arc<ServerConfig>>) -> Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let socket = bind(address)?;
        let port = socket.local_addr()?.port();
        let shared = Arc::new(ServerShared {
            snapshot: watch::channel(None).0,
            cut: watch::channel(0).0,
            heard: Mutex::default(),
        });
        let (end, ended) = oneshot::channel();
        let own = Arc::clone(&shared);
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(socket) else { return };
                tokio::select! {
                    () = accept(listener, tls.map(TlsAcceptor::from), own) => {}
                    _ = ended => {}
                }
            });
        });
        Ok(Self { port, shared, end: Some(end), thread: Some(thread) })
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends these rules to all clients, and to those that come.
    pub fn send(&self, version: &str, rules: &[RateLimitConfig]) {
        let any = |rules: &RateLimitConfig| Any {
            type_url: TYPE.to_owned(),
            value: rules.encode_to_vec(),
        };
        self.send_any(version, rules.iter().map(any).collect());
    }

    /// Sends these resources, right or wrong.
    pub fn send_any(&self, version: &str, resources: Vec<Any>) {
        self.shared.snapshot.send_replace(Some((version.to_owned(), resources)));
    }

    /// Ends all connections at once, in the middle of whatever they do.
    pub fn cut(&self) {
        self.shared.cut.send_modify(|cuts| *cuts += 1);
    }

    /// All that clients said.
    #[must_use]
    pub fn requests(&self) -> Vec<DiscoveryRequest> {
        self.shared.heard().requests.clone()
    }

    /// How many streams there were.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.shared.heard().streams.len()
    }

    /// A header of the last stream.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let heard = self.shared.heard();
        Some(heard.streams.last()?.get(name)?.to_str().ok()?.to_owned())
    }

    /// Whether a client uses this version.
    #[must_use]
    pub fn is_used(&self, version: &str) -> bool {
        let requests = self.requests();
        requests.last().is_some_and(|request| {
            request.version_info == version && request.error_detail.is_none()
        })
    }

    /// Why a client refused something last.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let requests = self.requests();
        let mut errors = requests.into_iter().rev().filter_map(|request| request.error_detail);
        errors.next().map(|error| error.message)
    }
}

impl Drop for XdsServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ServerShared {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A socket that can be bound again at once after its server has ended.
fn bind(address: SocketAddr) -> Result<std::net::TcpListener> {
    let socket = socket2::Socket::new(
        socket2::Domain::IPV4,
        socket2::Type::STREAM,
        Some(socket2::Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into()).with_context(|| format!("cannot listen on {address}"))?;
    socket.listen(128)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<ServerShared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, shared) = (tls.clone(), Arc::clone(&shared));
        let mut cut = shared.cut.subscribe();
        cut.borrow_and_update();
        tokio::spawn(async move {
            tokio::select! {
                _ = connection(stream, tls, shared) => {}
                _ = cut.changed() => {}
            }
        });
    }
}

async fn connection(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    shared: Arc<ServerShared>,
) -> Result<()> {
    match tls {
        Some(tls) => serve(tls.accept(stream).await?, shared).await,
        None => serve(stream, shared).await,
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    shared: Arc<ServerShared>,
) -> Result<()> {
    let service = service_fn(move |request| respond(request, Arc::clone(&shared)));
    let serving = http2::Builder::new(TokioExecutor::new());
    Ok(serving.serve_connection(TokioIo::new(stream), service).await?)
}

/// Answers a stream. Like servers in Go, it sends no headers before the first message.
async fn respond(
    request: Request<Incoming>,
    shared: Arc<ServerShared>,
) -> Result<Response<impl Body<Data = Bytes, Error = std::convert::Infallible>>> {
    ensure!(request.uri().path() == PATH, "{} is no method", request.uri().path());
    shared.heard().streams.push(request.headers().clone());
    let mut snapshots = shared.snapshot.subscribe();
    tokio::spawn(hear(request.into_body(), Arc::clone(&shared)));
    snapshots.wait_for(Option::is_some).await?;
    snapshots.mark_changed();
    let (mut sender, body) = Channel::new(1);
    tokio::spawn(async move {
        let mut nonce = 0_u64;
        while snapshots.changed().await.is_ok() {
            let Some((version_info, resources)) = snapshots.borrow_and_update().clone() else {
                continue;
            };
            nonce += 1;
            let nonce = nonce.to_string();
            let response =
                DiscoveryResponse { version_info, resources, type_url: TYPE.to_owned(), nonce };
            let mut framed = BytesMut::new();
            framed.put_u8(0);
            framed.put_u32(u32::try_from(response.encoded_len()).unwrap_or(u32::MAX));
            framed.extend(response.encode_to_vec());
            if sender.send_data(framed.freeze()).await.is_err() {
                return;
            }
        }
    });
    Ok(Response::builder().header("content-type", "application/grpc").body(body)?)
}

/// Records what a client says.
async fn hear(mut body: Incoming, shared: Arc<ServerShared>) {
    let mut heard = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        heard.extend(frame.into_data().unwrap_or_default());
        while let Some(length) = heard.get(1..5).map(|mut length| length.get_u32() as usize) {
            if heard.len() < 5 + length {
                break;
            }
            heard.advance(5);
            if let Ok(request) = DiscoveryRequest::decode(heard.split_to(length)) {
                shared.heard().requests.push(request);
            }
        }
    }
}
