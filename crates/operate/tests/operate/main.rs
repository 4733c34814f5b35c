//! Operating over real backends.

#![cfg(test)]

use std::time::Duration;

#[path = "../../../store/tests/store/acl.rs"]
mod acl;
mod bounds;
mod calls;
mod cluster;
#[path = "../../../store/tests/store/common.rs"]
mod common;
mod documents;
mod fleet;
mod last;
mod lost;
mod operators;
mod overrides;
mod rights;
mod scale;
mod shapes;
mod slow;
mod suite;

/// Awaits `work`, and panics if a timer of `limit` that started with it ends first. A busy machine
/// delays both alike.
async fn before<T>(limit: Duration, work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        done = work => done,
        () = tokio::time::sleep(limit) => panic!("not within {limit:?}"),
    }
}
