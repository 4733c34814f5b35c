//! Calls of the same process: no grant is lost when their caller leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotagate_protocol::dials::DialsReply;
use quotagate_protocol::{MAX_ITEMS, Reservation, ReserveRequest};
use quotagate_store::server::{CallEndpoint, Connections, Hooks};
use quotagate_store::store::Store;
use quotagate_support::cluster::Cluster;
use tokio::runtime::Handle;

use crate::calls::Undone;
use crate::cluster::{of_primary, uncovered};
use crate::common::{back, one, open, take, until};
use crate::gated::Gated;

struct Called {
    endpoint: Arc<CallEndpoint>,
    undone: Arc<Undone>,
}

impl Called {
    fn new(store: Arc<dyn Store>) -> Self {
        let undone = Arc::<Undone>::default();
        let endpoint = CallEndpoint::new(store, Arc::<Connections>::default());
        let endpoint = Arc::new(endpoint.hooks(Arc::clone(&undone) as Arc<dyn Hooks>));
        Self { endpoint, undone }
    }
}

fn request(budget_ms: u32, reservations: &[&Reservation]) -> ReserveRequest {
    let reservations = reservations.iter().map(|&reservation| reservation.clone()).collect();
    ReserveRequest { charges: vec![], budget_ms, refunds: vec![], reservations }
}

async fn until_used(store: &Gated, key: &str, units: u64) {
    until("the units", Duration::from_secs(20), async || {
        (store.used(key).await == units).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn taken_reply_keeps_its_grants_and_a_dropped_one_refunds_them() {
    let store = Gated::open();
    let called = Called::new(Arc::clone(&store) as Arc<dyn Store>);
    let ask = take("a", 10, 3);
    let taken = called.endpoint.call(request(5_000, &[&ask]), Instant::now()).await;
    let reply = taken.map_err(|refusal| refusal.to_string()).unwrap().take();
    assert_eq!(reply.grants[0].as_ref().unwrap().granted, 3);
    let dropped = called.endpoint.call(request(5_000, &[&ask]), Instant::now()).await;
    assert_eq!(store.used("a").await, 6);
    // A proxy's thread has no runtime.
    std::thread::spawn(move || drop(dropped)).join().unwrap();
    until_used(&store, "a", 3).await;
    assert_eq!(called.undone.count(), 1);
    let refund = back(&ask, *reply.grants[0].as_ref().unwrap(), 3);
    let refunded = ReserveRequest { refunds: vec![refund], ..request(5_000, &[]) };
    let refunded = called.endpoint.call(refunded, Instant::now()).await;
    assert_eq!(refunded.ok().unwrap().take().grants, []);
    assert_eq!(store.used("a").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_grants_and_those_of_a_caller_that_left_are_refunded() {
    let store = Gated::open();
    let called = Called::new(Arc::clone(&store) as Arc<dyn Store>);
    let (ask, quick) =
        (take("late", 10, 3), Reservation { key: "test:quick:{*}".into(), ..take("", 5, 1) });
    store.close_gate();
    let late = called.endpoint.call(request(100, &[&ask]), Instant::now()).await.err().unwrap();
    assert_eq!((late.code(), late.to_string().as_str()), (504, "the budget of 100 ms was over"));
    let some = called.endpoint.call(request(100, &[&quick, &ask]), Instant::now()).await;
    let some = some.ok().unwrap().take().grants;
    assert!(
        some[0].is_ok() && some[1].as_ref().is_err_and(|why| why.contains("budget")),
        "{some:?}"
    );
    let endpoint = Arc::clone(&called.endpoint);
    let asked = request(60_000, &[&ask]);
    let left = tokio::spawn(async move { endpoint.call(asked, Instant::now()).await.is_ok() });
    store.entered(3).await;
    left.abort();
    assert!(left.await.unwrap_err().is_cancelled());
    assert_eq!(store.used("late").await, 9);
    store.open_gate(1000);
    until_used(&store, "late", 0).await;
    assert_eq!(called.undone.count(), 3);
}

#[tokio::test]
async fn callers_task_carries_out_its_call_until_it_leaves() {
    let store = Gated::open();
    let called = Called::new(Arc::clone(&store) as Arc<dyn Store>);
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    store.close_gate();
    let mut call =
        Box::pin(called.endpoint.call(request(60_000, &[&take("a", 10, 3)]), Instant::now()));
    tokio::select! {
        answered = &mut call => panic!("it has an answer: {}", answered.is_ok()),
        () = store.entered(1) => {}
    }
    assert_eq!(tasks(), before, "a second task would have to wake the first one");
    drop(call);
    assert_eq!(tasks(), before + 1, "the call goes on without its caller");
    store.open_gate(1000);
    until_used(&store, "a", 0).await;
    until("the task ends", Duration::from_secs(20), async || (tasks() == before).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_items_fail_alone_and_wrong_calls_are_refused() {
    let called = Called::new(Gated::open());
    let (good, bad) = (take("good", 5, 1), Reservation { window_s: 0, ..take("bad", 5, 1) });
    let now = Instant::now();
    let mixed = called.endpoint.call(request(5_000, &[&bad, &good]), now).await;
    let mixed = mixed.ok().unwrap().take().grants;
    assert!(mixed[0].is_err() && mixed[1].is_ok(), "{mixed:?}");
    let code = async |asked| called.endpoint.call(asked, now).await.err().map(|why| why.code());
    assert_eq!(code(request(5_000, &vec![&good; MAX_ITEMS + 1])).await, Some(413));
    assert_eq!(code(request(0, &[&good])).await, Some(504));
    let dials = called.endpoint.dials("shop", b"no report").await;
    assert_eq!(dials.ok(), Some(DialsReply::default()));
    let refused = called.endpoint.dials("Shop!", b"").await.err().unwrap();
    assert_eq!((refused.code(), refused.field()), (400, Some("domain")));
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_primary_fails_its_own_items() {
    let mut cluster: Cluster = uncovered();
    let store = open(&cluster.url()).await;
    let called = Called::new(Arc::clone(&store));
    let (lost, kept) = (of_primary(&cluster, 0), of_primary(&cluster, 1));
    for ask in [&lost, &kept] {
        assert_eq!(one(&*store, ask).await.granted, 1);
    }
    cluster.kill_node(0).unwrap();
    for _ in 0..3 {
        let reply = called.endpoint.call(request(5_000, &[&lost, &kept]), Instant::now()).await;
        let grants = reply.ok().unwrap().take().grants;
        assert!(grants[0].is_err() && grants[1].is_ok(), "{grants:?}");
    }
    for node in [1, 2] {
        cluster.kill_node(node).unwrap();
    }
    until("a store without any primary says so", Duration::from_secs(10), async || {
        let reply = called.endpoint.call(request(5_000, &[&lost, &kept]), Instant::now()).await;
        reply.err().filter(|refusal| refusal.code() == 503)
    })
    .await;
}
