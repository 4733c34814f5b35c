//! How a call to the store fails, as the host reports its end.
//!
//! | what the host reports | fault |
//! | --- | --- |
//! | it does not send the call | [`CallFault::NoCluster`], [`CallFault::NoHost`] |
//! | no headers: the answer broke off or was not complete in time | [`CallFault::CutOff`] |
//! | its own 504, or nothing within the worker's time limit | [`CallFault::TimedOut`] |
//! | another answer of its own, because the store's never began | [`CallFault::Unreachable`] |
//! | the store's answer, with another status than 200 | [`CallFault::Refused`] |
//! | 200 with anything but a reply to this call | [`CallFault::Malformed`] |
//! | a store in this process declines the call | [`CallFault::Declined`] |
//!
//! Faults are classified for metrics and the log, but handled identically: the store failed.

use quotagate_protocol::MAX_BODY;

/// How a call ended, as the host reports it.
#[derive(Clone, Debug)]
pub enum CallEnd {
    /// The host reports no response headers.
    Reset,
    /// An answer came.
    Answered {
        /// The HTTP status.
        status: u16,
        /// Who answered.
        by: AnsweredBy,
        /// The first [`MAX_BODY`] bytes of the body.
        body: Vec<u8>,
        /// The length of the whole body, in bytes.
        size: usize,
    },
}

impl CallEnd {
    /// Reads the end of a call to the store. `header` has the response headers, or none if the call
    /// was reset; `size` is the length of the body, and `body` returns as many of its first bytes
    /// as it is asked for.
    pub fn read(
        header: impl Fn(&str) -> Option<Vec<u8>>,
        size: usize,
        body: impl FnOnce(usize) -> Vec<u8>,
    ) -> Self {
        let status = header(":status");
        let status = status.and_then(|status| std::str::from_utf8(&status).ok()?.parse().ok());
        let Some(status) = status else { return Self::Reset };
        // Envoy adds this header to the answers of a server, but not to its own answers.
        let by = match header("x-envoy-upstream-service-time") {
            Some(_) => AnsweredBy::Store,
            None => AnsweredBy::Host,
        };
        // What is too large to be a reply is not read.
        Self::Answered { status, by, body: body(size.min(MAX_BODY)), size }
    }
}

/// Who answered a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// The store, or a proxy in front of it.
    Store,
    /// The host itself, because no answer began.
    Host,
}

/// How a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallFault<'a> {
    /// The host knows no such cluster.
    NoCluster,
    /// None of the cluster's hosts is healthy, or too many calls are under way to them.
    NoHost,
    /// No answer began. The text is the host's.
    Unreachable(&'a [u8]),
    /// No answer came in time.
    TimedOut,
    /// The answer broke off or was not complete in time.
    CutOff,
    /// The store answered with a status other than 200.
    Refused {
        /// The HTTP status.
        status: u16,
        /// The body of the answer.
        body: &'a [u8],
    },
    /// The answer is not a reply to this call.
    Malformed(Misread),
    /// A store in this process did not carry it out. The text says why.
    Declined(String),
}

/// Why a body is not a reply to its call. None of its units are spent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misread {
    /// It is longer than a reply may be.
    #[error("{0} bytes, at most {max} are read", max = MAX_BODY)]
    TooLarge(usize),
    /// It is not JSON, or not in the form of a reply.
    #[error("{0}")]
    Form(String),
    /// It has more or fewer grants than there were reservations.
    #[error("{grants} grants for {reservations} reservations")]
    Count {
        /// Grants of the reply.
        grants: usize,
        /// Reservations of the call.
        reservations: usize,
    },
    /// A grant is larger than its reservation, so this is not the reply to this call.
    #[error("{granted} units granted where {asked} were asked for")]
    TooMuch {
        /// Units granted.
        granted: u64,
        /// Units of the reservation: `want` and `spare`.
        asked: u64,
    },
}

/// How calls end, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CallOutcome {
    /// The store replied.
    Ok,
    /// The host did not send it.
    DispatchFailed,
    /// No answer began.
    Unreachable,
    /// No answer came in time.
    TimedOut,
    /// The answer broke off.
    CutOff,
    /// The store answered with a status other than 200, or declined the call in this process.
    Refused,
    /// The answer was not a reply to the call.
    Malformed,
    /// One reservation failed in a call with a reply.
    ItemFailed,
    /// The breaker opened. This counts no call of its own.
    Suspended,
    /// A fetch of dials failed in any way.
    DialsFailed,
}

impl CallOutcome {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Ok,
        Self::DispatchFailed,
        Self::Unreachable,
        Self::TimedOut,
        Self::CutOff,
        Self::Refused,
        Self::Malformed,
        Self::ItemFailed,
        Self::Suspended,
        Self::DialsFailed,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::DispatchFailed => "dispatch_failed",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::CutOff => "cut_off",
            Self::Refused => "refused",
            Self::Malformed => "malformed",
            Self::ItemFailed => "item_failed",
            Self::Suspended => "suspended",
            Self::DialsFailed => "dials_failed",
        }
    }
}

impl CallFault<'_> {
    /// Its outcome in metrics.
    pub const fn outcome(&self) -> CallOutcome {
        match self {
            Self::NoCluster | Self::NoHost => CallOutcome::DispatchFailed,
            Self::Unreachable(_) => CallOutcome::Unreachable,
            Self::TimedOut => CallOutcome::TimedOut,
            Self::CutOff => CallOutcome::CutOff,
            Self::Refused { .. } | Self::Declined(_) => CallOutcome::Refused,
            Self::Malformed(_) => CallOutcome::Malformed,
        }
    }
}

impl CallEnd {
    /// The body of an answer with 200.
    ///
    /// # Errors
    /// How the call failed.
    pub fn body(&self) -> Result<&[u8], CallFault<'_>> {
        let Self::Answered { status, by, body, size } = self else { return Err(CallFault::CutOff) };
        match (by, *status) {
            (AnsweredBy::Host, 504) => Err(CallFault::TimedOut),
            (AnsweredBy::Host, _) => Err(CallFault::Unreachable(body)),
            (AnsweredBy::Store, 200) if *size > MAX_BODY => {
                Err(CallFault::Malformed(Misread::TooLarge(*size)))
            }
            (AnsweredBy::Store, 200) => Ok(body),
            (AnsweredBy::Store, status) => Err(CallFault::Refused { status, body }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_call_is_classified_by_status_and_sender() {
        use AnsweredBy::{Host, Store};
        let answered =
            |status, by, size| CallEnd::Answered { status, by, body: b"why".to_vec(), size };
        let refused = |status| Err(CallFault::Refused { status, body: b"why" });
        for (end, expected) in [
            (CallEnd::Reset, Err(CallFault::CutOff)),
            (answered(504, Host, 3), Err(CallFault::TimedOut)),
            (answered(503, Host, 3), Err(CallFault::Unreachable(b"why"))),
            (answered(502, Host, 3), Err(CallFault::Unreachable(b"why"))),
            (answered(200, Host, 3), Err(CallFault::Unreachable(b"why"))),
            (answered(504, Store, 3), refused(504)),
            (answered(503, Store, 3), refused(503)),
            (answered(401, Store, MAX_BODY + 1), refused(401)),
            (answered(204, Store, 0), refused(204)),
            (answered(200, Store, MAX_BODY), Ok(&b"why"[..])),
            (
                answered(200, Store, MAX_BODY + 1),
                Err(CallFault::Malformed(Misread::TooLarge(MAX_BODY + 1))),
            ),
        ] {
            assert_eq!(end.body(), expected, "{end:?}");
        }
    }
}
