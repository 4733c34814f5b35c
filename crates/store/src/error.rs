//! Why a backend failed.

/// Why a reservation failed, as far as the store knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// It was never sent, or never executed: there is no connection, or the backend is not ready.
    #[error("backend unreachable: {0}")]
    Unreachable(String),
    /// It was sent, and no answer says what became of it. It may have taken units, which stay taken
    /// until the window ends.
    #[error("no usable answer from the backend: {0}")]
    NoAnswer(String),
    /// The caller's budget was over before it was sent.
    #[error("the caller's budget was over")]
    Late,
    /// The window ended twice while it was under way.
    #[error("the window ended meanwhile")]
    Rolled,
    /// The backend refused it.
    #[error("refused by the backend: {0}")]
    Refused(String),
}

impl StoreError {
    /// Whether the backend is down, as opposed to a fault of one reservation.
    pub const fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::NoAnswer(_))
    }

    /// The error for a reply that no script or command of the store gives. Redis may have executed
    /// the command.
    pub(crate) fn unexpected_reply() -> Self {
        Self::NoAnswer("an unexpected reply".to_owned())
    }
}
