//! The end of the server, in two steps: it drains, and then it closes.
//!
//! A connection must not be closed while a request may be on its way to it: that request would fail. HTTP/2 has a
//! message for it (GOAWAY), which each connection gets as soon as the server drains. An HTTP/1.1 connection learns it
//! from `connection: close` in its next answer; one that stays idle is closed in the second step.

use tokio_util::sync::CancellationToken;

use super::caller::Caller;

/// How far the end has come.
#[derive(Default)]
pub struct Ending {
    draining: CancellationToken,
    closing: CancellationToken,
}

impl Ending {
    /// From now on connections are asked to close, and new ones are still served.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// From now on idle connections are closed.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Whether the end has begun.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when the end begins.
    pub fn draining(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Returns when the connection of `caller` is to be shut down gracefully.
    pub async fn is_due(&self, caller: &Caller) {
        self.draining.cancelled().await;
        tokio::select! {
            () = caller.http2() => {}
            () = self.closing.cancelled() => {}
        }
    }
}
