//! Redirects of a Redis Cluster.

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

/// Redis writes IPv6 without brackets, and `?` for a node without a host name.
#[tokio::test(flavor = "multi_thread")]
async fn redirects_are_followed_however_their_addresses_are_written() {
    let ipv6 = ["--bind", "127.0.0.1", "::1", "--cluster-announce-ip", "::1"];
    let nameless = ["--cluster-preferred-endpoint-type", "hostname"];
    for (arguments, written) in [(&ipv6[..], " ::1:"), (&nameless, " ?:")] {
        let cluster = Cluster::start_with(arguments).unwrap();
        let store = open(&cluster.url()).await;
        let ask = take("moved", 10, 1);
        assert_eq!(numbers(&*store, &ask).await, (1, 1));
        let moving = SlotMove::of(&cluster, "moved").unwrap();
        moving.begin().unwrap();
        moving.keys().unwrap();
        let asked = cluster.cli(moving.from(), &["GET", "{moved}"]).unwrap_err();
        let asked = asked.root_cause().to_string();
        assert!(asked.contains("ASK ") && asked.contains(written), "{asked}");
        assert_eq!(numbers(&*store, &ask).await, (1, 2), "{asked}");
        moving.end().unwrap();
        let moved = cluster.cli(moving.from(), &["GET", "{moved}"]).unwrap_err();
        let moved = moved.root_cause().to_string();
        assert!(moved.contains("MOVED ") && moved.contains(written), "{moved}");
        assert_eq!(numbers(&*store, &ask).await, (1, 3), "{moved}");
        assert_eq!(store.health().faults, [""; 0]);
    }
}
