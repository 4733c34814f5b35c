//! Calls of a rate limit service, and the frames of HTTP/2 by hand: for load that costs its client
//! little, and for what no library sends.

use anyhow::{Result, bail};

use crate::http::{Request, http2::Answer};

/// The path of the service's method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The bytes before the first frame of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of the head of a frame.
pub const FRAME_HEAD: usize = 9;

/// Kinds of frames.
pub mod kind {
    /// A part of a message.
    pub const DATA: u8 = 0;
    /// Headers, or trailers.
    pub const HEADERS: u8 = 1;
    /// The end of a stream, without an answer.
    pub const RESET: u8 = 3;
    /// Settings of a connection.
    pub const SETTINGS: u8 = 4;
    /// Asks for an answer.
    pub const PING: u8 = 6;
    /// The end of a connection.
    pub const GOAWAY: u8 = 7;
    /// Lets the other side send more.
    pub const WINDOW_UPDATE: u8 = 8;
    /// More headers.
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub mod flag {
    /// Answers a PING or SETTINGS.
    pub const ACK: u8 = 1;
    /// Nothing of the stream follows.
    pub const END_STREAM: u8 = 1;
    /// No more headers follow.
    pub const END_HEADERS: u8 = 4;
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// The bytes that follow.
    pub length: usize,
    /// One of [`kind`].
    pub kind: u8,
    /// Some of [`flag`].
    pub flags: u8,
    /// The number of the stream, 0 for the connection.
    pub stream: u32,
}

impl FrameHead {
    /// Reads the head of a frame; `None` if bytes are missing.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, d, e, f, g] = bytes.first_chunk::<FRAME_HEAD>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        Some(Self { length, kind, flags, stream: u32::from_be_bytes([d & 0x7f, e, f, g]) })
    }
}

/// A frame.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes();
    let mut frame = vec![a, b, c, kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// What a client sends first. It lets the server send without limit.
#[must_use]
pub fn hello() -> Vec<u8> {
    let window = (u32::MAX >> 1) - 65_535;
    let settings = frame(kind::SETTINGS, 0, 0, &[]);
    let update = frame(kind::WINDOW_UPDATE, 0, 0, &window.to_be_bytes());
    [PREFACE, &settings, &update].concat()
}

/// The headers of a call, as HPACK without a table.
#[must_use]
pub fn call_headers() -> Vec<u8> {
    // Every text here is shorter than 127 bytes.
    let text = |text: &str| [&[text.len() as u8], text.as_bytes()].concat();
    [
        // POST, http, and a path.
        &[0x83, 0x86, 0x04][..],
        &text(SHOULD_RATE_LIMIT),
        // An authority, and a content-type.
        &[0x01, 1, b'a', 0x0f, 0x10],
        &text("application/grpc"),
        // A name that has no number.
        &[0],
        &text("te"),
        &text("trailers"),
    ]
    .concat()
}

/// A message as gRPC sends it.
#[must_use]
pub fn prefixed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A field of a message that holds bytes: a text, or another message.
#[must_use]
pub fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2], &varint(bytes.len() as u64)[..], bytes].concat()
}

/// A number as messages have it.
#[must_use]
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// An entry of a descriptor.
#[must_use]
pub fn entry(key: &[u8], value: &[u8]) -> Vec<u8> {
    field(1, &[field(1, key), field(2, value)].concat())
}

/// A request with these descriptors. Each descriptor is the sum of its fields.
#[must_use]
pub fn rate_limit_request(domain: &[u8], descriptors: &[Vec<u8>]) -> Vec<u8> {
    let descriptors = descriptors.iter().map(|descriptor| field(2, descriptor));
    [field(1, domain)].into_iter().chain(descriptors).flatten().collect()
}

/// A call with these bytes as its body.
#[must_use]
pub fn call(body: &[u8]) -> Request {
    Request::new("POST", SHOULD_RATE_LIMIT)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
}

/// The decision in an answer: whether the request passes.
///
/// # Errors
/// With the status and its message when the call failed.
pub fn passes(answer: &Answer) -> Result<bool> {
    let trailer = |name: &str| {
        let found = answer.trailers.iter().find(|(known, _)| known == name);
        let found = found.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        found.or_else(|| answer.response.header(name).map(str::to_owned)).unwrap_or_default()
    };
    match (answer.grpc_status(), overall_code(&answer.response.body)) {
        (Some("0"), Some(code)) => Ok(code == 1),
        (status, _) => bail!("grpc-status {status:?}: {}", trailer("grpc-message")),
    }
}

/// The overall code of a message as gRPC sends it: 1 passes, 2 is over the limit.
#[must_use]
pub fn overall_code(body: &[u8]) -> Option<u8> {
    match body.get(5..7) {
        Some(&[0x08, code]) => Some(code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_are_written() {
        let written = frame(kind::DATA, flag::END_STREAM, 7, b"abc");
        let head = FrameHead { length: 3, kind: kind::DATA, flags: 1, stream: 7 };
        assert_eq!(FrameHead::parse(&written), Some(head));
        assert_eq!(FrameHead::parse(&written[..8]), None);
    }

    #[test]
    fn messages_have_the_form_of_protocol_buffers() {
        assert_eq!(varint(300), [0xac, 2]);
        let request = rate_limit_request(b"d", &[entry(b"k", b"v")]);
        assert_eq!(request, b"\n\x01d\x12\x08\n\x06\n\x01k\x12\x01v");
        assert_eq!(prefixed(b"x"), b"\0\0\0\0\x01x");
    }
}
