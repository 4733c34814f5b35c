//! The body of an answer, which its connection must fetch in time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};
use hyper::{Response, StatusCode};

use super::connection::{Answering, Connection, Unfetched};
use super::requests::UnderWay;

/// A body that records which of its frames are not fetched. Until it is dropped, the connection is
/// not idle.
pub struct Tracked<B> {
    /// `None`: empty.
    body: Option<B>,
    connection: Arc<Connection>,
    _answering: Answering,
    /// For the first frame of a body of known size. It counts as unfetched from the start, because
    /// HTTP/2 polls for no frame while the flow-control window is closed.
    first: Option<Unfetched>,
    request: Option<Arc<UnderWay>>,
}

/// In the extensions of a response whose bytes are shared with others: they do not count for the
/// request.
#[derive(Clone, Copy)]
pub struct SharedBytes;

/// The bytes of a frame, unfetched until they are dropped.
pub struct Fetching<D> {
    data: D,
    _unfetched: Unfetched,
    /// HTTP/2 drops the body once it has the last frame, although its bytes may stay.
    _request: Option<Arc<UnderWay>>,
}

impl<B: Body> Tracked<B> {
    /// The answer to `request`, whose frames are recorded in `connection`. It is empty, with status
    /// 503, if there is no room for its bytes.
    pub fn answer(
        response: Response<B>,
        connection: &Arc<Connection>,
        answering: Answering,
        request: Arc<UnderWay>,
    ) -> Response<Self> {
        let size = response.body().size_hint().exact();
        let bytes = match response.extensions().get::<SharedBytes>() {
            Some(SharedBytes) => 0,
            None => size.unwrap_or(0).try_into().unwrap_or(usize::MAX),
        };
        if !request.replace_with_answer(bytes) {
            return Self::busy(connection, answering);
        }
        let first = size.map(|_| connection.unfetched());
        // A stream of unknown length has bounds of its own.
        let request = size.map(|_| {
            request.set_waiting(connection.closed().clone());
            request
        });
        response.map(|body| Self {
            body: Some(body),
            connection: Arc::clone(connection),
            _answering: answering,
            first,
            request,
        })
    }

    /// The empty answer to a request for which there is no room.
    pub fn busy(connection: &Arc<Connection>, answering: Answering) -> Response<Self> {
        let connection = Arc::clone(connection);
        let tracked =
            Self { body: None, connection, _answering: answering, first: None, request: None };
        let mut response = Response::new(tracked);
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }
}

impl<B: Body + Unpin> Body for Tracked<B> {
    type Data = Fetching<B::Data>;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        let fetching = |data| {
            let unfetched = this.first.take().unwrap_or_else(|| this.connection.unfetched());
            Fetching { data, _unfetched: unfetched, _request: this.request.clone() }
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(fetching))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<D: Buf> Buf for Fetching<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
    }
}
