//! Redirects of a Redis Cluster while a caller holds units.

use std::time::Duration;

use quotagate_protocol::{Grant, Reservation};
use quotagate_store::store::Store;
use quotagate_support::cluster::{Cluster, SlotMove};

use crate::common::{back, batch, numbers, one, open, take, until};

/// Units used, as the store reports them.
async fn used(store: &dyn Store, of: &Reservation, grant: Grant) -> String {
    let counter = crate::common::counter(of, grant.window);
    store.control().get(counter).await.unwrap().value.unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn held_units_are_refunded_once_after_their_slot_moved() {
    let cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    let ask = take("held", 10, 1);
    let held = one(&*store, &take("held", 10, 6)).await;
    assert_eq!((held.granted, held.used), (6, 6));

    let moving = SlotMove::of(&cluster, "held").unwrap();
    moving.begin().unwrap();
    moving.keys().unwrap();
    // The old owner answers ASK: the store redirects the reservation and does not retry the refund.
    assert_eq!(numbers(&*store, &ask).await, (1, 7));
    store.refund(&[back(&ask, held, 2)]).await;
    assert_eq!(used(&*store, &ask, held).await, "7", "a refund is never retried");

    moving.end().unwrap();
    // The old owner answers MOVED: the store redirects the reservation and learns the new owner.
    assert_eq!(numbers(&*store, &ask).await, (1, 8));
    until("the new owner refunds", Duration::from_secs(20), async || {
        store.refund(&[back(&ask, held, 1)]).await;
        (used(&*store, &ask, held).await == "7").then_some(())
    })
    .await;
    let reserved =
        store.reserve(&batch(vec![back(&ask, held, 3)], vec![take("held", 10, 9)])).await;
    let grant = reserved[0].as_ref().unwrap();
    assert_eq!(
        (grant.granted, grant.used),
        (6, 10),
        "a refund precedes the reservations of its batch"
    );
    assert_eq!(numbers(&*store, &ask).await, (0, 10));
}
