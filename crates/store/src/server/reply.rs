//! Answers to callers. The grants of an answer that never leaves are refunded.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::OwnedSemaphorePermit;

use super::tracked::SharedBytes;

/// The body of an answer: one frame, until it is taken.
pub struct Payload(Option<AnswerBytes>);

/// The bytes of an answer, and its grants until the bytes are on their way.
pub struct AnswerBytes {
    bytes: Bytes,
    grants: Option<Box<dyn RefundOnDrop>>,
    /// Free again once the connection has taken all bytes.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Refunds grants when it is dropped, unless they were handed out.
pub trait RefundOnDrop: Send {
    /// Leaves the grants to the caller.
    fn hand_out(&mut self);
}

impl Body for Payload {
    type Data = AnswerBytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerBytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|answer| Ok(Frame::data(answer))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |answer| answer.bytes.len() as u64))
    }
}

impl Buf for AnswerBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    /// Once the connection takes a part of the answer, it may be on its way, so nothing is
    /// refunded.
    fn advance(&mut self, count: usize) {
        if let Some(grants) = self.grants.as_mut().filter(|_| count > 0) {
            grants.hand_out();
        }
        self.bytes.advance(count);
    }
}

/// A JSON answer, and the grants in it.
pub fn json(
    status: StatusCode,
    body: Vec<u8>,
    grants: Option<Box<dyn RefundOnDrop>>,
) -> Response<Payload> {
    let mut response = answer(AnswerBytes { bytes: body.into(), grants, _permit: None });
    *response.status_mut() = status;
    response
}

/// A JSON answer that holds this permit until it is on its way as a whole.
pub fn bounded_json(bytes: Bytes, permit: OwnedSemaphorePermit) -> Response<Payload> {
    let mut response = answer(AnswerBytes { bytes, grants: None, _permit: Some(permit) });
    response.extensions_mut().insert(SharedBytes);
    response
}

fn answer(bytes: AnswerBytes) -> Response<Payload> {
    let mut response = Response::new(Payload(Some(bytes)));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
