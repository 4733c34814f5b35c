//! How connections are read: in turns.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::head_frames::HeadFrames;
use super::requests::Requests;

/// Most bytes that a connection reads before others have their turn.
const TURN: usize = 8 * 1024;
/// How long nothing is read while many requests are about to end.
const PAUSE: Duration = Duration::from_millis(1);

/// A stream that is read in turns, and not while many requests are about to end. HTTP/2 keeps the
/// heads of all requests that it can read before it passes on the first, and a head may take a
/// thousand times as much memory as on the wire.
pub struct Paced<S> {
    stream: S,
    requests: Arc<Requests>,
    frames: HeadFrames,
    /// Bytes that were read in this turn.
    read: usize,
    /// The pause while many requests are about to end.
    pause: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    /// Reads `stream` while `requests` have room.
    pub fn new(stream: S, requests: Arc<Requests>) -> Self {
        Self { stream, requests, frames: HeadFrames::default(), read: 0, pause: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        if self.requests.is_crowded() {
            let mut pause = Box::pin(sleep(PAUSE));
            if pause.as_mut().poll(context).is_pending() {
                self.pause = Some(pause);
                return Poll::Pending;
            }
        }
        if self.read >= TURN {
            self.read = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if polled.is_pending() {
            self.read = 0;
            return polled;
        }
        let new = buffer.filled().get(before..).unwrap_or_default();
        self.read += new.len();
        if self.frames.read(new) {
            polled
        } else {
            Poll::Ready(Err(io::Error::other("a head of HTTP/2 did not arrive in one frame")))
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
