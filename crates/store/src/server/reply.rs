//! Answers, and the units that hang on them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use futures_util::stream::Stream;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::App;
use super::caller::{Caller, Turn, Unfetched};
use crate::api::STORE_HEADER;
use crate::operate::{Fault, Full};
use crate::store::{Batch, Settled};

/// The place of a call among those under way, given up with the last of its holders.
pub type Place = Arc<OwnedSemaphorePermit>;

/// The grants of a call. Dropped before they are handed out, they are returned to the store.
pub struct Held {
    app: Arc<App>,
    batch: Arc<Batch>,
    _place: Place,
    settled: Vec<Settled>,
}

impl Held {
    /// Holds what became of the reservations of `batch`, in their order, and the call's place.
    pub const fn new(app: Arc<App>, batch: Arc<Batch>, place: Place, settled: Vec<Settled>) -> Self {
        Self { app, batch, _place: place, settled }
    }

    /// What became of the reservations.
    pub fn settled(&self) -> &[Settled] {
        &self.settled
    }

    /// The domain of the call, as its first item says: a worker's items are all of one.
    pub fn domain(&self) -> Option<&str> {
        let Batch { reservations: asks, refunds: returns, .. } = &*self.batch;
        let ask = asks.first().map(|ask| ask.key.as_str());
        let key = ask.or_else(|| returns.first().map(|back| back.key.as_str()))?;
        key.split(':').next()
    }

    fn hand_out(&mut self) {
        self.settled.clear();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let granted = self.batch.reservations.iter().zip(&self.settled);
        let returns: Vec<_> =
            granted.filter_map(|(ask, outcome)| ask.refund_of(outcome.as_ref().ok()?)).collect();
        if !returns.is_empty() {
            let app = Arc::clone(&self.app);
            app.metrics.undone(returns.len());
            self.app.tasks.spawn(async move { app.store.refund(&returns).await });
        }
    }
}

/// The body of an answer.
pub struct Payload(Content);

enum Content {
    /// One frame, until it is taken.
    Whole(Option<Answer>),
    /// Frames as they come.
    Stream(Streamed),
}

/// Frames as they come, to a connection that must take them.
struct Streamed {
    frames: Pin<Box<dyn Stream<Item = Bytes> + Send>>,
    /// The connection, which is not idle meanwhile.
    caller: Option<(Arc<Caller>, Turn)>,
    /// Since the last frame was handed over, until the next one is asked for.
    untaken: Option<Unfetched>,
}

/// The bytes of an answer, and what hangs on them until they are on their way.
pub struct Answer {
    bytes: Bytes,
    held: Option<Held>,
    unfetched: Option<Unfetched>,
}

impl Payload {
    /// The connection that it is left to, which must take it.
    pub fn left_to(&mut self, caller: &Arc<Caller>) {
        match &mut self.0 {
            Content::Whole(Some(answer)) => answer.unfetched = Some(caller.unfetched()),
            Content::Whole(None) => {}
            Content::Stream(streamed) => streamed.caller = Some((Arc::clone(caller), caller.turn())),
        }
    }
}

impl Streamed {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        self.untaken = None;
        let frame = ready!(self.frames.as_mut().poll_next(context));
        self.untaken = frame.as_ref().and(self.caller.as_ref()).map(|(caller, _)| caller.unfetched());
        Poll::Ready(frame.map(|bytes| Answer { bytes, held: None, unfetched: None }))
    }
}

impl Body for Payload {
    type Data = Answer;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Answer>, Infallible>>> {
        let frame = match &mut self.0 {
            Content::Whole(answer) => answer.take(),
            Content::Stream(streamed) => ready!(streamed.poll(context)),
        };
        Poll::Ready(frame.map(|answer| Ok(Frame::data(answer))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(answer) => {
                SizeHint::with_exact(answer.as_ref().map_or(0, |answer| answer.bytes.len() as u64))
            }
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

impl Buf for Answer {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    /// Once a part of it is taken it may be on its way, and nothing is returned any more.
    fn advance(&mut self, count: usize) {
        if let Some(held) = self.held.as_mut().filter(|_| count > 0) {
            held.hand_out();
        }
        self.bytes.advance(count);
    }
}

/// An answer of JSON.
pub fn json(status: StatusCode, body: Vec<u8>, held: Option<Held>) -> Response<Payload> {
    of_type(status, "application/json", body, held)
}

/// An answer of text.
pub fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Payload> {
    of_type(status, content_type, body.into_bytes(), None)
}

/// An answer of frames as they come.
pub fn stream(kind: &'static str, frames: impl Stream<Item = Bytes> + Send + 'static) -> Response<Payload> {
    let streamed = Streamed { frames: Box::pin(frames), caller: None, untaken: None };
    of_content(StatusCode::OK, kind, Content::Stream(streamed))
}

fn of_type(status: StatusCode, kind: &'static str, body: Vec<u8>, held: Option<Held>) -> Response<Payload> {
    let answer = Answer { bytes: body.into(), held, unfetched: None };
    of_content(status, kind, Content::Whole(Some(answer)))
}

fn of_content(status: StatusCode, kind: &'static str, content: Content) -> Response<Payload> {
    let mut response = Response::new(Payload(content));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Why a call is not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Nothing is at this path.
    #[error("there is nothing at this path")]
    NoSuchPath,
    /// An operator asks where proxies call.
    #[error(
        "this is a store's call address, where proxies ask for units: commands, probes and metrics go to its admin address \
         (--admin of `quotagate serve`)"
    )]
    CallAddress,
    /// A proxy calls where operators ask.
    #[error(
        "this is a store's admin address, where operators ask: proxies call its call address (--listen of `quotagate serve`)"
    )]
    AdminAddress,
    /// Another method is needed.
    #[error("this path takes {0} only")]
    Method(&'static str),
    /// The token is missing or wrong.
    #[error("the bearer token is missing or wrong")]
    Token,
    /// A web page calls.
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
    /// Too many domains are asked for.
    #[error(transparent)]
    Domains(Full),
    /// The body is not a reserve request: the field, and what is wrong with it.
    #[error("{field}: {reason}")]
    Malformed {
        /// The path of the field within the body.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The caller's time was over.
    #[error("the budget of {0} ms was over")]
    Late(u32),
    /// The backend cannot be reached.
    #[error("{0}")]
    Down(String),
    /// The server failed.
    #[error("the store failed")]
    Failed,
    /// The name that was asked for is not known to be ours.
    #[error(
        "{0:?} is not a name of this address: ask for it by its IP address or as localhost, or start the store with \
         --admin-host and this name"
    )]
    Host(String),
    /// Other machines can reach the admin address, and there is no token.
    #[error(
        "other machines can reach the admin address and no token is set, so dials, overrides and usage are not served: \
         give the store a token (--admin-token-file), or keep --admin on loopback or a Unix socket"
    )]
    Open,
    /// A web page of another site calls.
    #[error("a page of another site calls: its Origin or Sec-Fetch-Site header says so")]
    Origin,
    /// Too many listen to events.
    #[error("{0} listen to events already")]
    Listeners(usize),
    /// A change that is no JSON.
    #[error("a change needs Content-Type: application/json")]
    NotJson,
    /// What an operator wishes cannot be.
    #[error(transparent)]
    Wish(#[from] Fault),
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    known: &'a [String],
}

impl Refusal {
    const fn status(&self) -> StatusCode {
        match self {
            Self::NoSuchPath => StatusCode::NOT_FOUND,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Page => StatusCode::FORBIDDEN,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(_) | Self::Malformed { .. } => StatusCode::BAD_REQUEST,
            Self::Slow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Late(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Down(_) | Self::Busy | Self::Domains(_) | Self::Listeners(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Host(_) | Self::CallAddress | Self::AdminAddress => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin | Self::Open => StatusCode::FORBIDDEN,
            Self::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Wish(fault) => match fault {
                Fault::Invalid { .. } => StatusCode::BAD_REQUEST,
                Fault::Unknown { .. } | Fault::Absent(_) => StatusCode::NOT_FOUND,
                Fault::Full(_) | Fault::InUse(_) | Fault::Contended => StatusCode::CONFLICT,
                Fault::Store(error) if error.is_outage() => StatusCode::SERVICE_UNAVAILABLE,
                Fault::Store(_) => StatusCode::BAD_GATEWAY,
            },
        }
    }

    /// The answer that says so.
    pub fn answer(&self) -> Response<Payload> {
        let error = self.to_string();
        let (field, known): (_, &[String]) = match self {
            Self::Malformed { field, .. } => (Some(field.as_str()), &[]),
            Self::Wish(Fault::Invalid { field, known, .. } | Fault::Unknown { field, known, .. }) => {
                (Some(field), known)
            }
            _ => (None, &[]),
        };
        let body = serde_json::to_vec(&ErrorBody { error: &error, field, known }).unwrap_or_default();
        let mut response = json(self.status(), body, None);
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
