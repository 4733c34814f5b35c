//! A stream to an xDS server.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use futures_util::stream;
use hyper::client::conn::http2;
use hyper::http::uri::{PathAndQuery, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost_types::{Struct, Value, value::Kind};
use quotagate_store::server::{Stream, spread};
use quotagate_store::tls::TlsFiles;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use super::messages::{DiscoveryRequest, DiscoveryResponse, ErrorDetail, RULES, STREAM, XdsNode};
use super::resources::read_resources;
use crate::files::RulesByDomain;
use crate::grpc::MessageCodec;
use crate::rules::SharedDomains;

/// The longest time until a connection is made.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a silent connection is probed, and how long it may take to answer. Servers in Go end
/// connections that are probed more often than every five minutes.
const PROBE: Duration = Duration::from_secs(6 * 60);
const PROBE_ANSWER: Duration = Duration::from_secs(20);
/// The shortest time between two attempts.
const SHORTEST: Duration = Duration::from_millis(100);
/// Most faults, and bytes, of the reason for which resources are refused.
const MAX_FAULTS: usize = 50;
const MAX_REASON: usize = 16 << 10;

/// The server, and how to talk to it.
#[derive(Clone, Debug)]
pub struct XdsOptions {
    /// `host:port`.
    pub server: String,
    /// The id of this node.
    pub node: String,
    /// The metadata of this node.
    pub metadata: BTreeMap<String, String>,
    /// Headers of each stream.
    pub headers: MetadataMap,
    /// The files for TLS; `None` is without TLS.
    pub tls: Option<TlsFiles>,
    /// The largest message, in bytes.
    pub max_message: usize,
    /// How long to wait before the next attempt, if the server cannot be reached.
    pub retry: Duration,
    /// How long to wait before the next stream, if one ends.
    pub backoff: Backoff,
    /// What happens to a domain that several resources name.
    pub shared: SharedDomains,
}

/// The times between streams.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The first one. Each further one is twice as long, until rules come.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
    /// Each is longer or shorter by up to this part of it, at random: 0 to 1.
    pub jitter: f64,
}

/// Why there is no stream.
enum StreamEnd {
    /// The server cannot be reached.
    Unreachable(String),
    /// A stream ended.
    Ended(String),
}

/// Whether a text may be the address of a server: `host:port`.
pub fn is_server(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    !host.is_empty() && port.parse::<u16>().is_ok() && text.parse::<Uri>().is_ok_and(is_plain)
}

fn is_plain(uri: Uri) -> bool {
    uri.authority().is_some_and(|authority| !authority.as_str().contains('@'))
        && uri.scheme().is_none()
}

/// Gives all rules to `take` whenever the server sends some. Errors are the faults that keep them
/// from being used. Returns to the server whether `take` did. Never returns.
pub async fn follow(
    options: &XdsOptions,
    take: &mut (impl FnMut(Result<RulesByDomain, Vec<String>>) + Send),
) {
    let mut ended = 0;
    let mut said = String::new();
    loop {
        let mut taken = |read: Result<_, _>| {
            ended = 0;
            if read.is_ok() {
                said.clear();
            }
            take(read);
        };
        let (reason, wait) = match options.converse(&mut taken).await {
            StreamEnd::Unreachable(reason) => (reason, options.retry),
            StreamEnd::Ended(reason) => {
                let wait = options.backoff.first.saturating_mul(1 << u32::min(ended, 20));
                ended += 1;
                (reason, wait.min(options.backoff.longest))
            }
        };
        let wait = spread(wait, options.backoff.jitter).max(SHORTEST);
        // A server that is away for hours is one line, until it has sent rules again.
        if reason == said {
            tracing::debug!("xDS server {}: {reason}", options.server);
        } else {
            tracing::warn!(
                "xDS server {}: {reason}; the rules in force stay, and the next attempt is in {wait:.1?}",
                options.server
            );
            said = reason;
        }
        sleep(wait).await;
    }
}

impl XdsOptions {
    /// Connects, and talks to the server until that fails.
    async fn converse(
        &self,
        take: &mut (impl FnMut(Result<RulesByDomain, Vec<String>>) + Send),
    ) -> StreamEnd {
        let connected = timeout(CONNECT, self.connect()).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = match connected {
            Ok(stream) => TokioIo::new(stream),
            Err(error) => return StreamEnd::Unreachable(format!("cannot connect: {error}")),
        };
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PROBE)
            .keep_alive_timeout(PROBE_ANSWER)
            .handshake(stream)
            .await;
        let (sender, connection) = match handshake {
            Ok(made) => made,
            Err(error) => return StreamEnd::Unreachable(format!("speaks no HTTP/2: {error}")),
        };
        let _driving = AbortOnDropHandle::new(tokio::spawn(connection));
        match self.receive(sender, take).await {
            Ok(()) => StreamEnd::Ended("the server ended the stream".to_owned()),
            Err(status) if status.code() == Code::OutOfRange => StreamEnd::Ended(format!(
                "{}: set XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES to more than {}",
                status.message(),
                self.max_message
            )),
            Err(status) => StreamEnd::Ended(format!("{}: {}", status.code(), status.message())),
        }
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(&self.server).await?;
        stream.set_nodelay(true)?;
        let host = self.server.rsplit_once(':').map_or(&*self.server, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(match &self.tls {
            None => Box::new(stream),
            Some(files) => Box::new(files.connect(host, stream).await?),
        })
    }

    /// Receives rules until the stream ends, and says what became of them.
    async fn receive(
        &self,
        mut sender: http2::SendRequest<Body>,
        take: &mut (impl FnMut(Result<RulesByDomain, Vec<String>>) + Send),
    ) -> Result<(), Status> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let origin = format!("{scheme}://{}", self.server).parse();
        let origin = origin.map_err(|error| Status::internal(format!("{error}")))?;
        let send = tower::service_fn(move |request| sender.send_request(request));
        let grpc = Grpc::<_>::with_origin(send, origin);
        let mut grpc = grpc.max_decoding_message_size(self.max_message);
        let (say, mut said) = mpsc::channel(1);
        // Not the last version that was good: another server may use its number for other rules.
        let mut version = String::new();
        let gone = |_| Status::unavailable("the connection ended");
        say.send(self.request(&version)).await.map_err(gone)?;
        let mut request = Request::new(stream::poll_fn(move |context| said.poll_recv(context)));
        *request.metadata_mut() = self.headers.clone();
        let path = PathAndQuery::from_static(STREAM);
        // Returns with the first rules: servers in Go send no headers before that.
        let responses = grpc.streaming(request, path, MessageCodec::default()).await?;
        let mut responses = responses.into_inner();
        let mut refused_before = None;
        while let Some(DiscoveryResponse { version_info, resources, nonce }) =
            responses.message().await?
        {
            let shared = self.shared;
            // Thousands of rules take a while, and requests must not wait for them.
            let read = spawn_blocking(move || read_resources(&resources, shared)).await;
            let read = read.map_err(|error| Status::internal(error.to_string()))?;
            let read = read.map_err(|faults| faults.iter().map(ToString::to_string).collect());
            let refused = read.as_ref().err().map(|faults: &Vec<String>| reason(faults));
            if refused.is_none() {
                version = version_info;
            }
            take(read);
            // Many servers send refused rules again at once.
            if refused.is_some() && refused == refused_before {
                sleep(self.backoff.first.max(SHORTEST)).await;
            }
            refused_before.clone_from(&refused);
            let error_detail =
                refused.map(|message| ErrorDetail { code: Code::InvalidArgument as i32, message });
            let answer =
                DiscoveryRequest { response_nonce: nonce, error_detail, ..self.request(&version) };
            say.send(answer).await.map_err(gone)?;
        }
        Ok(())
    }

    fn request(&self, version: &str) -> DiscoveryRequest {
        let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
        let fields = self.metadata.iter().map(|(name, value)| (name.clone(), text(value)));
        DiscoveryRequest {
            version_info: version.to_owned(),
            node: Some(XdsNode {
                id: self.node.clone(),
                metadata: Some(Struct { fields: fields.collect() }),
            }),
            type_url: RULES.to_owned(),
            ..DiscoveryRequest::default()
        }
    }
}

/// Why rules are refused, in a message that servers take.
fn reason(faults: &[String]) -> String {
    let shown: Vec<&str> = faults.iter().take(MAX_FAULTS).map(String::as_str).collect();
    let mut text = shown.join("\n");
    if let Some(more) = faults.len().checked_sub(MAX_FAULTS + 1) {
        text.push_str(&format!("\nand {} more faults", more + 1));
    }
    let mut end = MAX_REASON.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}
