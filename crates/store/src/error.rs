//! Why a backend did not do what was asked of it.

/// Why a reservation was not carried out, as far as the store knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It was never sent, or never taken up: no connection, or a backend that is not ready.
    #[error("backend unreachable: {0}")]
    Unreachable(String),
    /// It was sent and nothing came back. It may have taken units, which stay taken until the window ends.
    #[error("no answer from the backend: {0}")]
    NoAnswer(String),
    /// The caller's time was over before it could be sent.
    #[error("the caller's budget was over")]
    Late,
    /// The window ended twice while it was asked for.
    #[error("the window ended meanwhile")]
    Rolled,
    /// The backend refused it.
    #[error("refused by the backend: {0}")]
    Refused(String),
}

impl StoreError {
    /// Whether it says that the backend is down, rather than something about one reservation.
    pub const fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NoAnswer(_))
    }
}
