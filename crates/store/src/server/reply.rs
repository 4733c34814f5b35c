//! Answers to callers. The grants of an answer that never leaves are refunded.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::connections::Connections;
use super::hooks::{Event, Hooks};
use crate::store::{Batch, Settled, Store};

/// The header of every error of a store. Commands use it to tell a store from other servers.
pub const STORE_HEADER: &str = "x-quotagate-store";

/// The permit of a call under way, released with its last holder.
pub type Permit = Arc<OwnedSemaphorePermit>;

/// The grants of a call. Dropping them before they are handed out refunds them.
pub struct Held {
    store: Arc<dyn Store>,
    hooks: Arc<dyn Hooks>,
    connections: Arc<Connections>,
    batch: Arc<Batch>,
    _permit: Permit,
    settled: Vec<Settled>,
}

impl Held {
    /// Holds the outcomes of the reservations of `batch`, in their order, and the call's permit.
    pub const fn new(
        store: Arc<dyn Store>,
        hooks: Arc<dyn Hooks>,
        connections: Arc<Connections>,
        batch: Arc<Batch>,
        permit: Permit,
        settled: Vec<Settled>,
    ) -> Self {
        Self { store, hooks, connections, batch, _permit: permit, settled }
    }

    /// The outcomes of the reservations, in their order.
    pub fn settled(&self) -> &[Settled] {
        &self.settled
    }

    /// The domain of the call, from its first item: all items of a worker have the same domain.
    pub fn domain(&self) -> Option<&str> {
        let Batch { reservations, refunds, .. } = &*self.batch;
        let reserved = reservations.first().map(|reservation| reservation.key.as_str());
        let key = reserved.or_else(|| refunds.first().map(|refund| refund.key.as_str()))?;
        key.split(':').next()
    }

    fn hand_out(&mut self) {
        self.settled.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let granted = self.batch.reservations.iter().zip(&self.settled);
        let refunds: Vec<_> =
            granted.filter_map(|(ask, outcome)| ask.refund_of(outcome.as_ref().ok()?)).collect();
        if !refunds.is_empty() {
            let store = Arc::clone(&self.store);
            self.hooks.observe(Event::Undone(refunds.len()));
            let refund = async move { store.refund(&refunds).await };
            drop(self.connections.spawn(refund));
        }
    }
}

/// The body of an answer: one frame, until it is taken.
pub struct Payload(Option<Answer>);

/// The bytes of an answer, and its grants until the bytes are on their way.
pub struct Answer {
    bytes: Bytes,
    held: Option<Held>,
}

impl Body for Payload {
    type Data = Answer;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Answer>, Infallible>>> {
        Poll::Ready(self.0.take().map(|answer| Ok(Frame::data(answer))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |answer| answer.bytes.len() as u64))
    }
}

impl Buf for Answer {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    /// Once the connection takes a part of the answer, it may be on its way, so nothing is
    /// refunded.
    fn advance(&mut self, count: usize) {
        if let Some(held) = self.held.as_mut().filter(|_| count > 0) {
            held.hand_out();
        }
        self.bytes.advance(count);
    }
}

/// A JSON answer.
pub fn json(status: StatusCode, body: Vec<u8>, held: Option<Held>) -> Response<Payload> {
    let mut response = Response::new(Payload(Some(Answer { bytes: body.into(), held })));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Why a call is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing is at this path.
    #[error("there is nothing at this path")]
    NoSuchPath,
    /// An operator called the address for proxies.
    #[error(
        "this is a store's call address, where proxies ask for units: commands, probes and metrics go to its admin address \
         (--admin of `quotagate serve`)"
    )]
    CallAddress,
    /// Another method is needed.
    #[error("this path takes {0} only")]
    Method(&'static str),
    /// The token is missing or wrong.
    #[error("the bearer token is missing or wrong")]
    Token,
    /// A web page called.
    #[error("calls come from Envoy, not from web pages: send neither Origin nor Sec-Fetch-Site")]
    Page,
    /// The body is too large, or holds too many items.
    #[error("{0}")]
    TooLarge(String),
    /// The body broke off.
    #[error("the body did not arrive: {0}")]
    Body(String),
    /// The body took too long.
    #[error("the body did not arrive within {0} s")]
    Slow(u64),
    /// Too many calls are under way.
    #[error("too many calls are under way")]
    Busy,
    /// A field is wrong: which one, and why.
    #[error("{field}: {reason}")]
    Malformed {
        /// The path of the field within the body, or the name of a parameter.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller's budget was over.
    #[error("the budget of {0} ms was over")]
    Late(u32),
    /// The backend cannot be reached.
    #[error("{0}")]
    Down(String),
    /// The server failed.
    #[error("the store failed")]
    Failed,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
}

impl Refusal {
    /// The status code of the answer.
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::CallAddress => StatusCode::MISDIRECTED_REQUEST,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Page => StatusCode::FORBIDDEN,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(_) | Self::Malformed { .. } => StatusCode::BAD_REQUEST,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Late(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Down(_) | Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The field that is at fault.
    pub fn field(&self) -> Option<&str> {
        match self {
            Self::Malformed { field, .. } => Some(field),
            _ => None,
        }
    }

    /// The answer with this error.
    pub(super) fn answer(&self) -> Response<Payload> {
        let error = ErrorBody { error: &self.to_string(), field: self.field() };
        let mut response =
            json(self.status(), serde_json::to_vec(&error).unwrap_or_default(), None);
        let extra = match self {
            Self::Method(method) => Some((header::ALLOW, HeaderValue::from_static(method))),
            Self::Token => Some((header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            _ => None,
        };
        response.headers_mut().extend(extra);
        response.headers_mut().insert(STORE_HEADER, HeaderValue::from_static("1"));
        response
    }
}
