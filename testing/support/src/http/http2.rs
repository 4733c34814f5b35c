//! A blocking HTTP/2 client without TLS (prior knowledge), for what only HTTP/2 shows: trailers,
//! and answers that are nothing but trailers.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Body, Incoming},
    client::conn::http2,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, runtime::Runtime, task::yield_now, time::timeout};

use crate::http::{Request, Response};

const TIMEOUT: Duration = Duration::from_secs(90);

/// A connection that carries one request after another.
#[derive(Debug)]
pub struct Http2Client {
    runtime: Runtime,
    sender: http2::SendRequest<Full<Bytes>>,
}

/// A response with trailers, which HTTP/1.1 clients here cannot show.
#[derive(Debug)]
pub struct Answer {
    /// Status, headers and body.
    pub response: Response,
    /// The trailers.
    pub trailers: Vec<(String, Vec<u8>)>,
    /// The headers were the whole answer: gRPC's `Trailers-Only`.
    pub headers_only: bool,
}

/// A response whose headers have come, and whose body may still go on.
#[derive(Debug)]
pub struct OpenStream {
    head: Response,
    /// The stream is open for as long as this lives.
    body: Incoming,
}

impl Http2Client {
    /// Connects to 127.0.0.1:`port`.
    ///
    /// # Errors
    /// When no HTTP/2 server listens there.
    pub fn connect(port: u16) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            stream.set_nodelay(true)?;
            let (sender, connection) =
                http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
            // If the connection ends, its requests fail.
            tokio::spawn(connection);
            anyhow::Ok(sender)
        });
        Ok(Self { runtime, sender: sender.with_context(|| format!("no HTTP/2 on port {port}"))? })
    }

    /// Sends a request and waits for the whole answer.
    ///
    /// # Errors
    /// When HTTP/2 cannot carry the request, or no whole answer comes within 90 s.
    pub fn send(&mut self, request: &Request) -> Result<Answer> {
        let request = request.for_http2()?;
        let Self { runtime, sender } = self;
        runtime.block_on(async {
            timeout(TIMEOUT, async {
                sender.ready().await?;
                let (head, body) = sender.send_request(request).await?.into_parts();
                let headers_only = body.is_end_stream();
                let body = body.collect().await?;
                let trailers = body.trailers().map(pairs).unwrap_or_default();
                let response = Response {
                    status: head.status.as_u16(),
                    headers: pairs(&head.headers),
                    body: body.to_bytes().to_vec(),
                };
                Ok(Answer { response, trailers, headers_only })
            })
            .await
            .context("no whole answer in time")?
        })
    }

    /// Sends a request so many times, at once, and waits for the headers of all answers.
    ///
    /// # Errors
    /// When HTTP/2 cannot carry the request, or an answer does not begin within 90 s.
    pub fn open(&mut self, streams: usize, request: &Request) -> Result<Vec<OpenStream>> {
        let request = request.for_http2()?;
        let Self { runtime, sender } = self;
        runtime.block_on(async {
            timeout(TIMEOUT, async {
                let mut answers = Vec::new();
                for _ in 0..streams {
                    sender.ready().await?;
                    answers.push(sender.send_request(request.clone()));
                }
                let mut open = Vec::new();
                for answer in answers {
                    let (head, body) = answer.await?.into_parts();
                    let (status, headers) = (head.status.as_u16(), pairs(&head.headers));
                    open.push(OpenStream {
                        head: Response { status, headers, body: Vec::new() },
                        body,
                    });
                }
                Ok(open)
            })
            .await
            .context("not all answers in time")?
        })
    }

    /// Leaves these streams. The connection stays.
    pub fn close(&mut self, streams: Vec<OpenStream>) {
        self.runtime.block_on(async {
            streams.into_iter().for_each(|stream| drop(stream.body));
            // The connection now tells the server that they are over.
            for _ in 0..10 {
                yield_now().await;
            }
        });
    }
}

impl OpenStream {
    /// Its headers, without a body.
    #[must_use]
    pub fn head(&self) -> &Response {
        &self.head
    }
}

impl Answer {
    /// `grpc-status`, from the headers or the trailers.
    #[must_use]
    pub fn grpc_status(&self) -> Option<&str> {
        let trailer = self.trailers.iter().find(|(name, _)| name == "grpc-status");
        let trailer = trailer.and_then(|(_, value)| std::str::from_utf8(value).ok());
        trailer.or_else(|| self.response.header("grpc-status"))
    }
}

fn pairs(headers: &hyper::HeaderMap) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|(name, value)| (name.to_string(), value.as_bytes().to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        envoy::{Envoy, EnvoyOptions},
        upstream::Upstream,
    };

    #[test]
    fn upstream_answers_with_trailers() {
        let upstream = Upstream::start().unwrap();
        let mut client = Http2Client::connect(upstream.port()).unwrap();
        let request = Request::post("/a.B/C", b"").header("x-answer-trailer-grpc-status", "16");
        let answer = client.send(&request.header("host", "a.example")).unwrap();
        assert_eq!(answer.trailers, [("grpc-status".to_owned(), b"16".to_vec())]);
        assert!(!answer.headers_only && answer.response.header("grpc-status").is_none());
    }

    #[test]
    fn streams_are_open_until_they_are_closed() {
        let upstream = Upstream::start().unwrap();
        let mut client = Http2Client::connect(upstream.port()).unwrap();
        let held = Request::get("/").header("x-answer-hold", "");
        let open = client.open(20, &held).unwrap();
        assert!(open.iter().all(|stream| stream.head().status == 200));
        assert_eq!(upstream.peak(), 20);
        client.close(open);
        let open = client.open(20, &held).unwrap();
        assert_eq!((open.len(), upstream.peak()), (20, 20));
    }

    #[test]
    fn one_connection_carries_many_requests() {
        let upstream = Upstream::start().unwrap();
        let options = EnvoyOptions::new(upstream.port(), 1).bare();
        let envoy = Envoy::start(&options).unwrap();
        let mut client = Http2Client::connect(envoy.port()).unwrap();
        for body in ["", "a"] {
            let request =
                Request::post("/p?q", body.as_bytes()).header("x-answer-header-grpc-status", "7");
            let answer = client.send(&request.header("host", "a.example")).unwrap();
            assert_eq!((answer.response.status, answer.grpc_status()), (200, Some("7")));
            assert!(!answer.headers_only && answer.response.text().starts_with("hello"));
        }
        // Envoy itself refuses a forged token: a gRPC client gets headers only.
        let request = Request::post("/a.B/C", b"")
            .header("content-type", "application/grpc")
            .bearer("no.such.token");
        let answer = client.send(&request).unwrap();
        assert_eq!((answer.grpc_status(), answer.headers_only), (Some("16"), true));
    }
}
