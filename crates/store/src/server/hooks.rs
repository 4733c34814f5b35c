//! What the call endpoint reports to the crate above it, and what it asks of that crate.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt, ready};
use quotagate_protocol::Adjustment;
use quotagate_protocol::dials::DialsReply;

use crate::store::{CheckedReservation, Reserved};

/// Watches calls, and knows what operators have changed. `()` watches nothing and knows no change.
pub trait Hooks: Send + Sync + 'static {
    /// Something happened. Runs on the path of every call, so it must be quick and must not block.
    fn observe(&self, event: Event<'_>);

    /// The quota of this counter instead of the one that its reservation names, if an operator set
    /// one for every partition that contains a party. An override of the counter itself precedes
    /// it. Runs for each reservation, so it must be quick and must not block.
    fn quota(&self, _key: &str) -> Option<u64> {
        None
    }

    /// The version of a domain's dials and runtime overrides; 0 if it is not known.
    fn version(&self, domain: &str) -> u64;

    /// Takes a proxy's report, which may be empty or unreadable, and answers with the dials of its
    /// domain. The name of the domain has been checked.
    ///
    /// # Errors
    /// Why the dials are not known now. The proxy gets status 503 and this text.
    fn dials<'a>(
        &'a self,
        domain: &'a str,
        report: &'a [u8],
    ) -> BoxFuture<'a, Result<DialsReply, String>>;

    /// The [reply](quotagate_protocol::dials::DocumentReply) to a proxy that asks for the document
    /// of this domain that was published under this number, and has the one with this digest, as
    /// JSON. The name of the domain has been checked.
    ///
    /// # Errors
    /// Why the document is not known now. The proxy gets status 503 and this text.
    fn document<'a>(
        &'a self,
        _domain: &'a str,
        _digest: &'a str,
        _number: u64,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        ready(Err("this store has no published documents".to_owned())).boxed()
    }
}

/// What happens to a call.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A call with so many items arrived.
    Received {
        /// Its reservations, valid or not.
        reservations: usize,
        /// Its refunds, valid or not.
        refunds: usize,
        /// Its charges, valid or not.
        charges: usize,
    },
    /// A reservation with this key has a field out of its bounds.
    Invalid(&'a str),
    /// A refund will be carried out.
    Refunded(&'a Adjustment),
    /// A charge will be carried out.
    Charged(&'a Adjustment),
    /// A reservation was carried out, or failed.
    Reserved(&'a CheckedReservation, &'a Reserved),
    /// So many grants are refunded, because no caller waits for them any more.
    Undone(usize),
    /// A call of `/v1/reserve` was answered.
    Answered {
        /// The status code of the answer.
        status: u16,
        /// The time since the call arrived.
        took: Duration,
    },
}

impl Hooks for () {
    fn observe(&self, _: Event<'_>) {}

    fn version(&self, _: &str) -> u64 {
        0
    }

    fn dials<'a>(&'a self, _: &'a str, _: &'a [u8]) -> BoxFuture<'a, Result<DialsReply, String>> {
        ready(Ok(DialsReply::default())).boxed()
    }
}
