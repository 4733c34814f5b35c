//! Requests as tests write them, and responses as they arrive.

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::Full;
use serde_json::Value;

/// The most headers that a message may have.
pub(crate) const MAX_HEADERS: usize = 2_000;

/// A request. Names and values are not checked: hostile bytes are sent as they are.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
}

impl Request {
    /// GET of this path.
    #[must_use]
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// POST of this body.
    #[must_use]
    pub fn post(path: &str, body: &[u8]) -> Self {
        Self::new("POST", path).header("content-length", body.len().to_string()).body(body)
    }

    /// Any method.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        Self {
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// With a header; `host` is `localhost` unless given.
    #[must_use]
    pub fn header(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.raw_header(name.as_bytes(), value.as_ref())
    }

    /// With a header of any bytes.
    #[must_use]
    pub fn raw_header(mut self, name: &[u8], value: &[u8]) -> Self {
        self.headers.push((name.to_vec(), value.to_vec()));
        self
    }

    /// With `authorization: Bearer TOKEN`.
    #[must_use]
    pub fn bearer(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    /// With these bytes after the headers; no header is added.
    #[must_use]
    pub fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    /// Sets the client's address in `X-Forwarded-For`, for an Envoy that [trusts one
    /// hop](crate::edits::trusted_hops).
    #[must_use]
    pub fn from_address(self, address: &str) -> Self {
        self.header("x-forwarded-for", address)
    }

    /// An upgrade to WebSocket; [`Client::exchange`](crate::http::Client::exchange) then speaks
    /// over it.
    #[must_use]
    pub fn websocket(path: &str) -> Self {
        let request =
            Self::get(path).header("connection", "upgrade").header("upgrade", "websocket");
        request
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "cXVvdGFnYXRlIHRlc3RzIQ==")
    }

    fn hosts(&self) -> impl Iterator<Item = &[u8]> {
        let named = |(name, _): &&(Vec<u8>, Vec<u8>)| name.eq_ignore_ascii_case(b"host");
        self.headers.iter().filter(named).map(|(_, value)| value.as_slice())
    }

    /// The HTTP/2 form: the host becomes the authority. What HTTP/2 forbids is an error.
    pub(crate) fn for_http2(&self) -> Result<hyper::Request<Full<Bytes>>> {
        let host = self.hosts().next().map_or(Ok("localhost"), std::str::from_utf8)?;
        let uri = format!("http://{host}{}", self.path);
        let mut request = hyper::Request::builder().method(self.method.as_str()).uri(uri);
        for (name, value) in
            self.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case(b"host"))
        {
            request = request.header(name.as_slice(), value.as_slice());
        }
        Ok(request.body(Full::from(self.body.clone()))?)
    }

    /// The HTTP/1.1 form.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut all = format!("{} {} HTTP/1.1\r\n", self.method, self.path).into_bytes();
        let own =
            self.hosts().next().is_none().then_some((b"host".as_slice(), b"localhost".as_slice()));
        let given = self.headers.iter().map(|(name, value)| (name.as_slice(), value.as_slice()));
        for (name, value) in given.chain(own) {
            for part in [name, b": ", value, b"\r\n"] {
                all.extend_from_slice(part);
            }
        }
        all.extend_from_slice(b"\r\n");
        all.extend_from_slice(&self.body);
        all
    }
}

/// A response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers in their order; names as received.
    pub headers: Vec<(String, Vec<u8>)>,
    /// The whole body, with its chunks joined.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of this name (in any case), where it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.header_all(name).first().copied()
    }

    /// All headers of this name (in any case) that are text.
    #[must_use]
    pub fn header_all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        named.filter_map(|(_, value)| std::str::from_utf8(value).ok()).collect()
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// When it is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| format!("not JSON: {}", self.text()))
    }
}
