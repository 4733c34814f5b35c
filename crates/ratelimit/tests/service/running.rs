//! A service with its listeners, and calls over gRPC.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Buf, Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use quotagate_control::App;
use quotagate_ratelimit::domain::CountingOptions;
use quotagate_ratelimit::files::RuleFolder;
use quotagate_ratelimit::health::HealthNeeds;
use quotagate_ratelimit::messages::{RateLimitRequest, RateLimitResponse, SHOULD_RATE_LIMIT};
use quotagate_ratelimit::rules::SharedDomains;
use quotagate_ratelimit::serve::{Listeners, RuleSource, ServiceOptions, serve};
use quotagate_ratelimit::service::AnswerOptions;
use quotagate_ratelimit::xds::{Backoff, XdsOptions};
use quotagate_store::server::{ConnectionAge, ListenAddr, Listener};
use quotagate_store::store::Store;
use quotagate_store::tls::{ServerTls, TlsFiles};
use quotagate_support::xds::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, XdsServer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tonic::metadata::MetadataMap;
use tracing::subscriber::DefaultGuard;

use crate::bench::{counting, descriptor, memory};

const LIMIT: Duration = Duration::from_secs(60);

/// The log of all tasks of this thread, until this is dropped.
pub struct LogLines {
    file: NamedTempFile,
    _recording: DefaultGuard,
}

impl LogLines {
    pub fn record() -> Self {
        // With a single subscriber, tracing asks the thread that first logs a line whether anybody
        // wants it, and caches the answer for all threads. That may be a thread without one.
        let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry());
        let file = NamedTempFile::new().unwrap();
        let writer = Arc::new(file.reopen().unwrap());
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(writer).finish();
        Self { file, _recording: tracing::subscriber::set_default(log) }
    }

    /// How many lines have this part.
    pub fn count(&self, part: &str) -> usize {
        let text = std::fs::read_to_string(self.file.path()).unwrap();
        text.lines().filter(|line| line.contains(part)).count()
    }
}

/// How a service starts.
pub struct Start {
    pub rules: RuleSource,
    pub follows_published: bool,
    pub tls: Option<TlsFiles>,
    pub age: Option<ConnectionAge>,
    pub health: HealthNeeds,
    pub waits_for_rules: bool,
    pub store: Arc<dyn Store>,
    pub counting: CountingOptions,
}

/// A service that runs until this is dropped.
pub struct Running {
    grpc: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
    pub store: Arc<dyn Store>,
    pub stop: Option<oneshot::Sender<Duration>>,
    pub task: JoinHandle<()>,
}

/// A connection to the gRPC address.
pub struct GrpcClient(http2::SendRequest<Full<Bytes>>);

impl Start {
    pub fn new(rules: RuleSource) -> Self {
        let health = HealthNeeds { rules: true, store: true };
        Self {
            waits_for_rules: matches!(rules, RuleSource::Folder(_)),
            rules,
            follows_published: false,
            tls: None,
            age: None,
            health,
            store: memory(),
            counting: counting(),
        }
    }

    /// With the rules of one file.
    pub fn with_file(text: &str) -> (Self, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rules.yaml"), text).unwrap();
        let path = folder.path().to_owned();
        let shared = SharedDomains::Refuse;
        let rules = RuleFolder { path, siblings: false, ignores_dot_files: false, shared };
        (Self::new(RuleSource::Folder(rules)), folder)
    }

    /// With rules of this server.
    pub fn with_server(server: &XdsServer) -> Self {
        Self::new(RuleSource::Xds(Box::new(options(server.port()))))
    }

    pub async fn run(self) -> Running {
        let any: ListenAddr = "127.0.0.1:0".parse().unwrap();
        let bind = async || Listener::bind(&any).await.unwrap();
        let tls = self.tls.map(|files| ServerTls::open(files).unwrap());
        let grpc = bind().await.tls(tls).age(self.age);
        let (http, debug, admin) = (bind().await, bind().await, bind().await);
        let address = |listener: &Listener| match listener.address() {
            ListenAddr::Tcp(address) => *address,
            ListenAddr::Unix(_) => unreachable!(),
        };
        let addresses = (address(&grpc), address(&http), address(&admin));
        let listeners = Listeners { grpc, http, debug: Some(debug), metrics: None };
        let options = ServiceOptions {
            waits_for_rules: self.waits_for_rules,
            rules: self.rules,
            follows_published: self.follows_published,
            counting: self.counting,
            answers: AnswerOptions::default(),
            health: self.health,
        };
        let (stop, stopped) = oneshot::channel();
        let shutdown = async { stopped.await.unwrap_or_default() };
        let store = Arc::clone(&self.store);
        let (app, listen) = (App::new(self.store, None), async { Ok::<_, Infallible>(listeners) });
        let served = serve(admin, listen, options, app, shutdown);
        let task = tokio::spawn(async move {
            let Ok(()) = served.await;
        });
        let (grpc, http, admin) = addresses;
        Running { grpc, http, admin, store, stop: Some(stop), task }
    }
}

impl Running {
    /// Connects without TLS.
    pub async fn connect(&self) -> GrpcClient {
        let stream = TcpStream::connect(self.grpc).await.unwrap();
        handshake(stream).await.unwrap()
    }

    /// Connects with TLS to a server of this name. The error is that of the handshake or of the
    /// first call: in TLS 1.3, clients learn with it that their certificate is refused.
    pub async fn connect_tls(
        &self,
        config: &Arc<ClientConfig>,
        name: &'static str,
    ) -> Result<(GrpcClient, Vec<u8>), String> {
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = vec![b"h2".to_vec()];
        let stream = TcpStream::connect(self.grpc).await.map_err(|error| error.to_string())?;
        let name = ServerName::try_from(name).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
        let certificate = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
        let mut client = handshake(stream).await?;
        client.call("/unknown", Vec::new()).await?;
        Ok((client, certificate))
    }

    /// Whether `/healthcheck` is good, and what it says.
    pub async fn health(&self) -> (bool, String) {
        let request = Request::get("/healthcheck").body(Full::default()).unwrap();
        answer(self.http, request).await
    }

    /// Changes the published documents as an operator does. Returns whether that was made, and the
    /// answer.
    pub async fn documents(&self, method: &str, wish: &Value) -> (bool, String) {
        let request = Request::builder().method(method).uri("/v1/documents");
        let request = request.header("content-type", "application/json");
        let request = request.body(Full::from(wish.to_string())).unwrap();
        answer(self.admin, request).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether an HTTP/1 request succeeds, and the body of its answer.
async fn answer(address: SocketAddr, mut request: Request<Full<Bytes>>) -> (bool, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    request.headers_mut().insert("host", "localhost".parse().unwrap());
    let response = sender.send_request(request).await.unwrap();
    let is_good = response.status() == 200;
    let text = response.into_body().collect().await.unwrap().to_bytes();
    (is_good, String::from_utf8(text.to_vec()).unwrap())
}

async fn handshake<S>(stream: S) -> Result<GrpcClient, String>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let made = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = made.map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    Ok(GrpcClient(sender))
}

impl GrpcClient {
    /// Starts a call.
    pub async fn start(
        &mut self,
        path: &str,
        message: Vec<u8>,
    ) -> Result<Response<Incoming>, String> {
        let mut framed = vec![0];
        framed.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend(message);
        let request = Request::post(format!("http://service{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(framed.into()))
            .unwrap();
        self.0.send_request(request).await.map_err(|error| error.to_string())
    }

    /// The status of a call, and the message that came back.
    pub async fn call(&mut self, path: &str, message: Vec<u8>) -> Result<(String, Bytes), String> {
        let (head, body) = self.start(path, message).await?.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = |of: &HeaderMap| Some(of.get("grpc-status")?.to_str().unwrap().to_owned());
        let status = status(&head.headers).or_else(|| status(&trailers)).unwrap();
        let mut bytes = body.to_bytes();
        bytes.advance(bytes.len().min(5));
        Ok((status, bytes))
    }

    /// The answer to a request of the domain `d` with this descriptor; `None` without rules.
    pub async fn ask(&mut self, text: &str) -> Result<Option<RateLimitResponse>, String> {
        let descriptors = vec![descriptor(text)];
        let request = RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 0 };
        let (status, answer) = self.call(SHOULD_RATE_LIMIT, request.encode_to_vec()).await?;
        Ok((status == "0").then(|| RateLimitResponse::decode(answer).unwrap()))
    }

    /// The limit of the key `k`, if there is one.
    pub async fn limit(&mut self) -> Option<u32> {
        let answer = self.ask("k=v").await.unwrap()?;
        Some(answer.statuses[0].current_limit.as_ref()?.requests_per_unit)
    }

    /// Whether the connection still serves.
    pub async fn is_open(&mut self) -> bool {
        self.0.ready().await.is_ok() && self.call("/unknown", Vec::new()).await.is_ok()
    }
}

/// How tests talk to the server on this port.
pub fn options(port: u16) -> XdsOptions {
    let short = Duration::from_millis(100);
    XdsOptions {
        server: format!("localhost:{port}"),
        node: "test-node".to_owned(),
        metadata: std::iter::once(("zone".to_owned(), "a".to_owned())).collect(),
        headers: MetadataMap::new(),
        tls: None,
        max_message: 1 << 20,
        retry: short,
        backoff: Backoff { first: short, longest: short, jitter: 0.5 },
        shared: SharedDomains::Refuse,
    }
}

/// The rules of the domain `d`: so many a year for the key `k`.
pub fn rules(limit: u32) -> RateLimitConfig {
    named("d-rules", "d", vec![entry("k", 6, limit)])
}

pub fn named(name: &str, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: name.to_owned(), domain: domain.to_owned(), descriptors }
}

pub fn entry(key: &str, unit: i32, limit: u32) -> RateLimitDescriptor {
    let policy = RateLimitPolicy { unit, requests_per_unit: limit, ..RateLimitPolicy::default() };
    let rate_limit = Some(policy);
    RateLimitDescriptor { key: key.to_owned(), rate_limit, ..RateLimitDescriptor::default() }
}

/// Waits until this is true.
pub async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let came = tokio::time::timeout(LIMIT, waiting).await;
    assert!(came.is_ok(), "{what} did not come within {LIMIT:?}");
}
