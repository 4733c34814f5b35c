//! The body of an answer, which its connection must fetch in time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Buf;
use hyper::body::{Body, Frame, SizeHint};

use super::connection::{Answering, Connection, Unfetched};

/// A body that records which of its frames are not fetched. Until it is dropped, the connection is
/// not idle.
pub struct Tracked<B> {
    body: B,
    connection: Arc<Connection>,
    _answering: Answering,
    /// For the first frame of a body of known size. It counts as unfetched from the start, because
    /// HTTP/2 polls for no frame while the flow-control window is closed.
    first: Option<Unfetched>,
}

/// The bytes of a frame, unfetched until they are dropped.
pub struct Fetching<D> {
    data: D,
    _unfetched: Unfetched,
}

impl<B: Body> Tracked<B> {
    /// Records the frames of `body` in `connection`.
    pub fn new(body: B, connection: Arc<Connection>, answering: Answering) -> Self {
        let first = body.size_hint().exact().map(|_| connection.unfetched());
        Self { body, connection, _answering: answering, first }
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
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        let fetching = |data| {
            let unfetched = this.first.take().unwrap_or_else(|| this.connection.unfetched());
            Fetching { data, _unfetched: unfetched }
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(fetching))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
