//! Slots of concurrency limits on every backend: never more than the limit, in order of arrival,
//! and free again when a worker dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{batch, counter, one, open, take, try_one, until};
use quotagate_protocol::{Grant, Holding, Kind, MAX_UNITS, Reservation};
use quotagate_store::control::{KeptCounters, SlotHolder};
use quotagate_store::memory::Memory;
use quotagate_store::store::{Store, StoreError};
use quotagate_support::cluster::{Cluster, SlotMove};
use quotagate_support::redis::Redis;
use tokio::time::sleep;

/// A claim of a worker that does not renew it is forgotten after this time.
const CLAIM: Duration = Duration::from_millis(1100);

/// A worker's message: it holds so many slots, and wants so many more.
pub fn say(key: &str, limit: u64, worker: &str, serial: u64, held: u64, want: u64) -> Reservation {
    let holding = Holding { worker: worker.into(), serial, held, ..Holding::default() };
    Reservation {
        kind: Kind::InFlight,
        window_s: 0,
        min: want.min(1),
        holding: Some(holding),
        ..take(key, limit, want)
    }
}

/// The same of requests that have waited for so many milliseconds, and still wait if there is no
/// slot.
fn waiting(message: Reservation, waited_ms: u64) -> Reservation {
    let said = message.holding.clone().unwrap();
    let holding = Holding { waiting: message.want, waited_ms, ..said };
    Reservation { holding: Some(holding), ..message }
}

/// Slots granted, and slots held by all workers.
async fn numbers(store: &dyn Store, message: &Reservation) -> (u64, u64) {
    let grant = one(store, message).await;
    (grant.granted, grant.used)
}

async fn suite(store: Arc<dyn Store>) {
    let s = &*store;
    grants_until_the_limit_is_held(s).await;
    grants_nothing_below_the_minimum(s).await;
    message_that_comes_late_changes_nothing(s).await;
    lost_answer_is_undone_by_the_next_message(s).await;
    lower_limit_takes_no_slot_away(s).await;
    slots_beyond_the_limit_count(s).await;
    shadow_counts_what_is_held(s).await;
    obeys_overrides(s).await;
    oldest_waiting_worker_comes_first(s).await;
    claim_holds_up_only_later_requests_with_no_higher_limit(s).await;
    worker_is_not_passed_over_for_long(s).await;
    patience_is_a_quarter_of_a_second_or_a_third_of_the_wait(s).await;
    claim_that_is_not_renewed_is_forgotten(s).await;
    claim_beyond_the_limit_holds_up_nobody(s).await;
    refused_workers_are_named_to_those_with_idle_slots(s).await;
    stays_exact_up_to_the_largest_number(s).await;
    goes_with_windows_in_one_batch(s).await;
    shows_the_counter(s).await;
    shows_who_holds_slots(s).await;
    releases_the_slots_of_a_proxy(s).await;
    never_exceeds_the_limit_with_racing_workers(Arc::clone(&store)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_counts_slots() {
    suite(open("memory:").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_counts_slots() {
    let redis = Redis::start().unwrap();
    suite(open(&redis.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cluster_counts_slots() {
    let cluster = Cluster::start().unwrap();
    suite(open(&cluster.url()).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_are_counted_while_their_hash_slot_moves() {
    let cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    let say = |worker, serial, held, want| say("moving", 9, worker, serial, held, want);
    store.control().set_override(&say("a", 1, 0, 0).key, "5", None).await.unwrap();
    assert_eq!(numbers(&*store, &say("a", 1, 0, 2)).await, (2, 2));
    let slot = SlotMove::of(&cluster, "moving").unwrap();
    slot.begin().unwrap();
    assert_eq!(numbers(&*store, &say("a", 2, 2, 1)).await, (1, 3));
    slot.keys().unwrap();
    let moved = one(&*store, &say("b", 1, 0, 1)).await;
    assert_eq!((moved.granted, moved.used, moved.quota), (1, 4, 5));
    slot.end().unwrap();
    assert_eq!(numbers(&*store, &say("b", 2, 1, 9)).await, (1, 5));
}

async fn grants_until_the_limit_is_held(store: &dyn Store) {
    let say = |worker, serial, held, want| say("grants", 5, worker, serial, held, want);
    let first = one(store, &say("a", 1, 0, 3)).await;
    let expected =
        Grant { granted: 3, used: 3, quota: 5, reset_ms: 9000, window: 1, ..Grant::default() };
    assert_eq!(first, expected);
    assert_eq!(numbers(store, &say("b", 1, 0, 3)).await, (2, 5));
    assert_eq!(numbers(store, &say("c", 1, 0, 1)).await, (0, 5));
    assert_eq!(numbers(store, &say("a", 2, 3, 0)).await, (0, 5), "a heartbeat");
    assert_eq!(numbers(store, &say("a", 3, 1, 0)).await, (0, 3), "two requests have ended");
    assert_eq!(numbers(store, &say("b", 2, 2, 9)).await, (2, 5));
    assert_eq!(numbers(store, &say("a", 4, 0, 0)).await, (0, 4));
    assert_eq!(numbers(store, &say("b", 3, 0, 0)).await, (0, 0));
    assert_eq!(numbers(store, &say("c", 2, 0, 9)).await, (5, 5));
}

async fn grants_nothing_below_the_minimum(store: &dyn Store) {
    let all = |worker, want| Reservation { min: want, ..say("min", 5, worker, 1, 0, want) };
    assert_eq!(numbers(store, &all("a", 3)).await, (3, 3));
    assert_eq!(numbers(store, &all("b", 3)).await, (0, 3));
    assert_eq!(numbers(store, &all("c", 2)).await, (2, 5));
}

async fn message_that_comes_late_changes_nothing(store: &dyn Store) {
    let say = |serial, held, want| say("late", 5, "a", serial, held, want);
    assert_eq!(numbers(store, &say(5, 0, 2)).await, (2, 2));
    for (serial, held, want) in [(5, 0, 2), (4, 3, 0), (1, 0, 1)] {
        let late = one(store, &say(serial, held, want)).await;
        assert_eq!((late.granted, late.used, late.reset_ms, late.window), (0, 2, 0, serial));
    }
    assert_eq!(numbers(store, &say(6, 0, 0)).await, (0, 0));
    let late = one(store, &say(3, 0, 2)).await;
    assert_eq!((late.granted, late.used, late.reset_ms), (0, 0, 0), "after all were released");
    assert_eq!(numbers(store, &say(7, 0, 1)).await, (1, 1));
}

async fn lost_answer_is_undone_by_the_next_message(store: &dyn Store) {
    let say = |serial, held, want| say("lost", 4, "a", serial, held, want);
    assert_eq!(numbers(store, &say(1, 0, 1)).await, (1, 1));
    assert_eq!(numbers(store, &say(2, 1, 3)).await, (3, 4), "nobody reads this answer");
    assert_eq!(numbers(store, &say(3, 1, 0)).await, (0, 1));
}

async fn lower_limit_takes_no_slot_away(store: &dyn Store) {
    let say = |limit, worker, serial, held, want| say("lower", limit, worker, serial, held, want);
    assert_eq!(numbers(store, &say(4, "a", 1, 0, 4)).await, (4, 4));
    let lower = one(store, &say(2, "a", 2, 4, 1)).await;
    assert_eq!((lower.granted, lower.used, lower.quota, lower.left()), (0, 4, 2, 0));
    assert_eq!(numbers(store, &say(2, "b", 1, 0, 1)).await, (0, 4));
    assert_eq!(numbers(store, &say(2, "a", 3, 2, 0)).await, (0, 2));
    assert_eq!(numbers(store, &say(2, "b", 2, 0, 1)).await, (0, 2));
    assert_eq!(numbers(store, &say(2, "a", 4, 1, 0)).await, (0, 1));
    assert_eq!(numbers(store, &say(2, "b", 3, 0, 1)).await, (1, 2));
}

async fn slots_beyond_the_limit_count(store: &dyn Store) {
    let say = |worker, serial, held, want| say("debt", 4, worker, serial, held, want);
    assert_eq!(numbers(store, &say("a", 1, 7, 1)).await, (0, 7));
    assert_eq!(numbers(store, &say("b", 1, 3, 1)).await, (0, 10));
    assert_eq!(numbers(store, &say("a", 2, 1, 0)).await, (0, 4));
    assert_eq!(numbers(store, &say("b", 2, 3, 1)).await, (0, 4));
    assert_eq!(numbers(store, &say("b", 3, 2, 1)).await, (1, 4));
}

async fn shadow_counts_what_is_held(store: &dyn Store) {
    let shadow = |serial, held, want| Reservation {
        shadow: true,
        ..say("shadow", 2, "a", serial, held, want)
    };
    assert_eq!(numbers(store, &shadow(1, 0, 2)).await, (2, 2));
    assert_eq!(numbers(store, &shadow(2, 2, 1)).await, (0, 2), "its worker admits it all the same");
    assert_eq!(numbers(store, &shadow(3, 3, 0)).await, (0, 3));
}

async fn obeys_overrides(store: &dyn Store) {
    let say = |serial, held| say("override", 4, "a", serial, held, 9);
    let set = async |value| {
        let key = &say(1, 0).key;
        store.control().set_override(key, value, None).await.unwrap();
    };
    set("2").await;
    let grant = one(store, &say(1, 0)).await;
    assert_eq!((grant.granted, grant.used, grant.quota), (2, 2, 2));
    set("blocked").await;
    let grant = one(store, &say(2, 2)).await;
    assert_eq!((grant.granted, grant.used, grant.quota), (0, 2, 0));
    set("unlimited").await;
    let grant = one(store, &say(3, 2)).await;
    assert_eq!((grant.granted, grant.used, grant.quota), (9, 11, MAX_UNITS));
}

async fn oldest_waiting_worker_comes_first(store: &dyn Store) {
    let say = |worker, serial, held, want| say("order", 2, worker, serial, held, want);
    assert_eq!(numbers(store, &say("a", 1, 0, 2)).await, (2, 2));
    let old = one(store, &waiting(say("b", 1, 0, 1), 9_000)).await;
    assert_eq!((old.granted, old.waiting), (0, 0));
    let young = one(store, &waiting(say("c", 1, 0, 1), 3_000)).await;
    assert_eq!((young.granted, young.waiting), (0, 1));
    let released = one(store, &say("a", 2, 1, 0)).await;
    assert_eq!((released.used, released.waiting), (1, 2));
    assert_eq!(numbers(store, &waiting(say("c", 2, 0, 1), 3_010)).await, (0, 1), "b is older");
    assert_eq!(numbers(store, &say("d", 1, 0, 1)).await, (0, 1), "and so are b and c");
    assert_eq!(numbers(store, &waiting(say("b", 2, 0, 1), 9_010)).await, (1, 2));
    assert_eq!(numbers(store, &say("a", 3, 0, 0)).await, (0, 1));
    assert_eq!(numbers(store, &say("d", 2, 0, 1)).await, (0, 1), "c is older");
    assert_eq!(numbers(store, &waiting(say("c", 3, 0, 1), 3_020)).await, (1, 2));
}

async fn claim_holds_up_only_later_requests_with_no_higher_limit(store: &dyn Store) {
    let plain = |message| message;
    let tier = |limit| move |message| Reservation { quota: limit, own_quota: true, ..message };
    let brief = |message: Reservation| {
        let said = message.holding.clone().unwrap();
        Reservation { holding: Some(Holding { max_wait_ms: 5_000, ..said }), ..message }
    };
    // What asks after a request that has waited for 9 s and was not served, and what it gets.
    type Change = Box<dyn Fn(Reservation) -> Reservation>;
    let cases: [(&str, Change, Change, u64, u64); 6] = [
        ("later", Box::new(plain), Box::new(plain), 3_000, 0),
        ("close", Box::new(plain), Box::new(plain), 8_999, 1),
        ("left", Box::new(plain), Box::new(brief), 3_000, 1),
        ("tier", Box::new(tier(2)), Box::new(tier(2)), 3_000, 0),
        ("higher", Box::new(tier(2)), Box::new(tier(3)), 3_000, 1),
        ("lower", Box::new(tier(3)), Box::new(tier(2)), 3_000, 0),
    ];
    for (name, first, second, waited_ms, granted) in cases {
        let say = |worker, serial, held, want| {
            say(&format!("claim-{name}"), 2, worker, serial, held, want)
        };
        // Others hold 5, until 1 is left.
        assert_eq!(numbers(store, &say("a", 1, 5, 0)).await, (0, 5));
        assert_eq!(numbers(store, &waiting(first(say("b", 1, 0, 1)), 9_000)).await, (0, 5));
        assert_eq!(numbers(store, &say("a", 2, 1, 0)).await, (0, 1));
        let asks = waiting(second(say("c", 1, 0, 1)), waited_ms);
        assert_eq!(one(store, &asks).await.granted, granted, "{name}");
    }
}

async fn worker_is_not_passed_over_for_long(store: &dyn Store) {
    // What a worker gets of 4 slots at a time, while requests of another one wait as long as its
    // own.
    let (begun, passes) = (Instant::now(), 300);
    let asks = async |worker: &str, serial, held, want| {
        let waited_ms = u64::try_from(begun.elapsed().as_millis()).unwrap() + 10;
        let message = waiting(say("passed", 4, worker, serial, held, want), waited_ms);
        let held = u64::from(worker == "b");
        one(store, &Reservation { min: 1 + held, ..message }).await.granted
    };
    assert_eq!(asks("a", 1, 0, 9).await, 4);
    assert_eq!(asks("b", 1, 0, 9).await, 0);
    // The slots of one worker end, and it asks again in the same message.
    sleep(Duration::from_millis(passes)).await;
    assert_eq!(asks("a", 2, 0, 9).await, 4, "it was granted some as long ago");
    assert_eq!(asks("b", 2, 0, 9).await, 0);
    assert_eq!(asks("a", 3, 0, 9).await, 2, "2 are left for the first request of the other");
    assert_eq!(asks("b", 3, 0, 9).await, 2);
    // Both go on with their slots.
    assert_eq!(asks("a", 4, 0, 9).await, 2);
    assert_eq!(asks("b", 4, 0, 9).await, 2);
}

async fn patience_is_a_quarter_of_a_second_or_a_third_of_the_wait(store: &dyn Store) {
    for (max_wait_ms, later_ms, granted) in
        [(0, 170, 1), (0, 330, 0), (450, 100, 1), (450, 190, 0), (5_000, 170, 1), (5_000, 330, 0)]
    {
        let key = format!("patience{max_wait_ms}.{later_ms}");
        let begun = Instant::now();
        // The request of `b` arrives now, and that of `a` has waited for so long.
        let asks = async |worker: &str, waited_ms| {
            let waited_ms = u64::try_from(begun.elapsed().as_millis()).unwrap() + waited_ms;
            let message = waiting(say(&key, 1, worker, 1, 0, 1), waited_ms);
            let holding = Holding { max_wait_ms, ..message.holding.clone().unwrap() };
            one(store, &Reservation { holding: Some(holding), ..message }).await.granted
        };
        one(store, &say(&key, 1, "holds", 1, 0, 1)).await;
        assert_eq!(asks("a", later_ms).await, 0);
        one(store, &say(&key, 1, "holds", 2, 0, 0)).await;
        assert_eq!(asks("b", 0).await, granted, "{max_wait_ms} {later_ms}");
    }
}

async fn claim_that_is_not_renewed_is_forgotten(store: &dyn Store) {
    let say = |worker, serial, held, want| say("claim", 1, worker, serial, held, want);
    assert_eq!(numbers(store, &say("a", 1, 0, 1)).await, (1, 1));
    assert_eq!(numbers(store, &waiting(say("b", 1, 0, 1), 9_000)).await, (0, 1));
    let released = one(store, &say("a", 2, 0, 0)).await;
    assert_eq!((released.used, released.waiting), (0, 1));
    assert_eq!(numbers(store, &say("c", 1, 0, 1)).await, (0, 0));
    sleep(CLAIM).await;
    let grant = one(store, &say("c", 2, 0, 1)).await;
    assert_eq!((grant.granted, grant.used, grant.waiting), (1, 1, 0));
}

async fn claim_beyond_the_limit_holds_up_nobody(store: &dyn Store) {
    let say = |worker, want| say("never", 2, worker, 1, 0, want);
    let never = Reservation { min: 3, ..say("a", 3) };
    assert_eq!(numbers(store, &waiting(never, 9_000)).await, (0, 0));
    assert_eq!(numbers(store, &say("b", 2)).await, (2, 2));
}

async fn refused_workers_are_named_to_those_with_idle_slots(store: &dyn Store) {
    let say = |worker, serial, held, want| say("idle", 2, worker, serial, held, want);
    one(store, &say("a", 1, 0, 2)).await;
    one(store, &say("b", 1, 0, 3)).await;
    assert_eq!(one(store, &say("a", 2, 2, 0)).await.waiting, 3);
    assert_eq!(numbers(store, &say("c", 1, 0, 1)).await, (0, 2));
    assert_eq!(numbers(store, &say("a", 3, 1, 0)).await, (0, 1));
    assert_eq!(numbers(store, &say("c", 2, 0, 1)).await, (1, 2), "a refused request has no claim");
}

async fn stays_exact_up_to_the_largest_number(store: &dyn Store) {
    let say = |worker, serial, held, want| say("large", MAX_UNITS, worker, serial, held, want);
    assert_eq!(
        numbers(store, &say("a", 1, 0, MAX_UNITS - 2)).await,
        (MAX_UNITS - 2, MAX_UNITS - 2)
    );
    assert_eq!(numbers(store, &say("b", MAX_UNITS, 0, 1)).await, (1, MAX_UNITS - 1));
    assert_eq!(numbers(store, &say("c", 1, 0, 9)).await, (1, MAX_UNITS));
    assert_eq!(numbers(store, &say("d", 1, MAX_UNITS, 9)).await, (0, MAX_UNITS));
}

async fn goes_with_windows_in_one_batch(store: &dyn Store) {
    let slots = |serial| say("batch", 9, "a", serial, 0, 2);
    let sliding = Reservation { kind: Kind::Sliding, window_s: 3600, ..take("batch.s", 5, 4) };
    let asks = vec![take("batch", 5, 1), slots(1), sliding, slots(2), take("batch.f", 5, 3)];
    let granted = store.reserve(&batch(vec![], asks)).await;
    let granted: Vec<_> = granted.into_iter().map(|grant| grant.unwrap().granted).collect();
    assert_eq!(granted, [1, 2, 4, 2, 3]);
}

async fn shows_the_counter(store: &dyn Store) {
    let message = Reservation { own_quota: true, ..say("shown", 5, "a", 1, 0, 3) };
    one(store, &message).await;
    let (key, control) = (counter(&message, 0), store.control());
    let seen = control.get(key).await.unwrap();
    assert_eq!((seen.value.as_deref(), seen.own_quota), (Some("3"), Some(5)));
    assert!(seen.ttl_ms.is_some_and(|left| (5_000..=9_000).contains(&left)), "{seen:?}");
    let kept = KeptCounters::LeftOut;
    assert_eq!(control.find("test", "shown", kept, 9).await.unwrap().keys, [&*message.key]);
    one(store, &say("shown", 5, "b", 1, 0, 1)).await;
    let seen = control.get(key).await.unwrap();
    assert_eq!((seen.value.as_deref(), seen.own_quota), (Some("4"), None), "the policy's limit");
    assert!(control.delete(key).await.unwrap());
    assert_eq!(control.get(key).await.unwrap().value, None);
    one(store, &say("shown", 5, "a", 2, 3, 0)).await;
    assert_eq!(control.get(key).await.unwrap().value.as_deref(), Some("3"), "it lives");
    one(store, &say("shown", 5, "a", 3, 0, 0)).await;
    assert_eq!(control.get(key).await.unwrap().value, None, "nothing is held");
}

async fn shows_who_holds_slots(store: &dyn Store) {
    let key = say("who", 3, "", 1, 0, 0).key;
    assert!(store.control().slots(&key).await.unwrap().holders.is_empty());
    let first = say("who", 3, "feed.0.x", 1, 0, 2);
    let mut first = Reservation { own_quota: true, ..first };
    first.holding.as_mut().unwrap().longest_ms = 70_000;
    one(store, &first).await;
    let second = Reservation { min: 2, ..say("who", 3, "feed.1.y", 1, 0, 2) };
    one(store, &waiting(second, 4_000)).await;
    one(store, &say("who", 3, "gone.0.z", 1, 0, 0)).await;
    let seen = store.control().slots(&key).await.unwrap();
    let expected = [("feed.0.x", 2, 0, Some(3)), ("feed.1.y", 0, 2, None)];
    let numbers = |of: &SlotHolder| (of.held, of.waiting, of.own_quota);
    for (holder, (worker, held, waiting, own)) in seen.holders.iter().zip(expected) {
        assert_eq!((&*holder.worker, numbers(holder)), (worker, (held, waiting, own)));
        assert!((5_000..=9_000).contains(&holder.ends_ms), "{holder:?}");
    }
    let [first, second] = seen.holders.as_slice() else { panic!("{seen:?}") };
    assert!((70_000..75_000).contains(&first.longest_ms), "{first:?}");
    assert!((4_000..9_000).contains(&second.waited_ms), "{second:?}");
    assert_eq!((second.longest_ms, first.waited_ms, seen.left_out), (0, 0, 0));
}

async fn releases_the_slots_of_a_proxy(store: &dyn Store) {
    let say = |worker, serial, held, want| say("release", 9, worker, serial, held, want);
    let key = say("", 1, 0, 0).key;
    for worker in ["feed.0.x", "feed.1.y", "feed2.0.z"] {
        one(store, &say(worker, 7, 0, 3)).await;
    }
    let release = async |of| {
        let released = store.control().release(&key, of).await.unwrap();
        (released.workers, released.slots)
    };
    assert_eq!(release(Some("fee")).await, (0, 0));
    assert_eq!(release(Some("feed")).await, (2, 6));
    assert_eq!(numbers(store, &say("new", 1, 0, 9)).await, (6, 9));
    assert_eq!(numbers(store, &say("feed.0.x", 8, 3, 0)).await, (0, 12), "it lives");
    assert_eq!(release(Some("feed.0.x")).await, (1, 3));
    assert_eq!(release(None).await, (2, 9));
    assert_eq!(release(None).await, (0, 0));
}

async fn never_exceeds_the_limit_with_racing_workers(store: Arc<dyn Store>) {
    const LIMIT: u64 = 7;
    let live = Arc::new(AtomicU64::new(0));
    let racers: Vec<_> = (0..24)
        .map(|worker: u64| {
            let (store, live) = (Arc::clone(&store), Arc::clone(&live));
            tokio::spawn(async move {
                let worker = format!("w{worker}");
                let mut served = 0;
                for round in 0..20 {
                    let want = 1 + round % 3;
                    let message = say("race", LIMIT, &worker, 2 * round + 1, 0, want);
                    let grant = one(&*store, &message).await;
                    assert!(grant.used <= LIMIT, "{grant:?}");
                    let now = live.fetch_add(grant.granted, SeqCst) + grant.granted;
                    assert!(now <= LIMIT, "{now} slots are held");
                    served += grant.granted;
                    tokio::task::yield_now().await;
                    live.fetch_sub(grant.granted, SeqCst);
                    one(&*store, &say("race", LIMIT, &worker, 2 * round + 2, 0, 0)).await;
                }
                served
            })
        })
        .collect();
    let mut served = 0;
    for racer in racers {
        served += racer.await.unwrap();
    }
    assert!(served > LIMIT, "{served}");
}

/// Memory whose clock stands still, and how to set it, in milliseconds.
fn clocked() -> (Memory, Arc<AtomicU64>) {
    let now = Arc::new(AtomicU64::new(1_000_000_000));
    let shown = Arc::clone(&now);
    (Memory::new(Arc::new(move || Duration::from_millis(shown.load(SeqCst)))), now)
}

#[tokio::test]
async fn slots_of_a_dead_worker_are_free_after_nine_seconds() {
    let (memory, now) = clocked();
    let say = |worker, serial, held, want| say("dead", 4, worker, serial, held, want);
    assert_eq!(numbers(&memory, &say("a", 1, 0, 4)).await, (4, 4));
    now.fetch_add(8_999, SeqCst);
    assert_eq!(numbers(&memory, &say("b", 1, 0, 1)).await, (0, 4));
    memory.sweep();
    now.fetch_add(1, SeqCst);
    assert_eq!(numbers(&memory, &say("b", 2, 0, 1)).await, (1, 1));
    // It was only paused, and still serves what it held.
    assert_eq!(numbers(&memory, &say("a", 2, 4, 1)).await, (0, 5));
    now.fetch_add(9_000, SeqCst);
    memory.sweep();
    assert!(memory.is_empty());
}

#[tokio::test]
async fn clock_that_goes_back_frees_slots_within_nine_seconds() {
    let (memory, now) = clocked();
    let say = |worker, serial, held, want| say("back", 4, worker, serial, held, want);
    assert_eq!(numbers(&memory, &say("a", 1, 0, 4)).await, (4, 4));
    now.fetch_sub(600_000, SeqCst);
    assert_eq!(numbers(&memory, &say("b", 1, 0, 1)).await, (0, 4));
    now.fetch_add(9_000, SeqCst);
    assert_eq!(numbers(&memory, &say("b", 2, 0, 1)).await, (1, 1));
}

fn ttl(redis: &Redis, key: &str) -> i64 {
    redis.cli(&["PTTL", key]).unwrap().lines().trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_in_redis_expire_and_free_those_of_a_dead_worker_within_ten_seconds() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let hash = "qg:test:p:{dead}:slots";
    let say = |worker, serial, held, want| say("dead", 4, worker, serial, held, want);
    assert_eq!(numbers(&*store, &say("a", 1, 0, 4)).await, (4, 4));
    let begun = Instant::now();
    assert!((9_001..=10_000).contains(&ttl(&redis, hash)), "{}", ttl(&redis, hash));
    redis.cli(&["PERSIST", hash]).unwrap();
    let mut serial = 0;
    let expired = until("the slots are free", Duration::from_secs(10), async || {
        serial += 1;
        let grant = one(&*store, &say("b", serial, 0, 4)).await;
        (grant.granted == 4).then_some(grant.expired)
    })
    .await;
    assert_eq!(expired, 4);
    assert_eq!(one(&*store, &say("c", 1, 0, 0)).await.expired, 0, "they are told once");
    assert_eq!(numbers(&*store, &say("c", 2, 0, 0)).await, (0, 4));
    redis.cli(&["HDEL", hash, "c"]).unwrap();
    assert!((8_900..10_000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert!((9_001..=10_000).contains(&ttl(&redis, hash)), "it was set again");
    assert_eq!(redis.cli(&["HKEYS", hash]).unwrap().lines().trim(), "b", "expired fields are gone");
    assert_eq!(numbers(&*store, &say("a", 2, 4, 0)).await, (0, 8), "it was only paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_register_again_after_redis_has_lost_everything() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let say = |worker, serial, held, want| say("flushed", 5, worker, serial, held, want);
    assert_eq!(numbers(&*store, &say("a", 7, 0, 3)).await, (3, 3));
    redis.cli(&["FLUSHALL"]).unwrap();
    redis.cli(&["SCRIPT", "FLUSH"]).unwrap();
    assert_eq!(numbers(&*store, &say("a", 8, 3, 0)).await, (0, 3));
    assert_eq!(numbers(&*store, &say("b", 1, 0, 9)).await, (2, 5));
}

/// Writes any bytes into a field.
pub fn write(redis: &Redis, hash: &str, worker: &str, value: &[u8]) {
    const SCRIPT: &str = "local byte = function(x) return string.char(tonumber(x, 16)) end
        return redis.call('HSET', KEYS[1], ARGV[1], (string.gsub(ARGV[2], '%x%x', byte)))";
    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    redis.cli(&["EVAL", SCRIPT, "1", hash, worker, &hex]).unwrap();
}

/// A counter whose 4,096 workers hold a slot each has no room for another one.
async fn has_no_room(store: &dyn Store, name: &str) {
    let say = |worker: &str, serial| say(name, 9000, worker, serial, 1, 1);
    let more = try_one(store, &say("more", 1)).await;
    assert!(matches!(&more, Err(StoreError::Refused(why)) if why.contains("too many")), "{more:?}");
    let known = one(store, &say("w1", 2)).await;
    assert_eq!((known.granted, known.used), (1, 4097));
}

#[tokio::test]
async fn memory_counts_4096_workers_of_a_counter_and_no_more() {
    let (memory, _) = clocked();
    for worker in 1..=4096 {
        assert_eq!(
            one(&memory, &say("many", 9000, &format!("w{worker}"), 1, 0, 1)).await.granted,
            1
        );
    }
    has_no_room(&memory, "many").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_counts_4096_workers_of_a_counter_and_no_more() {
    const SCRIPT: &str = "local ends_ms = redis.call('TIME')[1] * 1000 + 9000
        local field = struct.pack('<ddddddI4I4I4I4', 1, 1, ends_ms, 0, 0, -1, 0, 0, 0, 0)
        for i = 1, 4096 do redis.call('HSET', KEYS[1], 'w' .. i, field) end";
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    redis.cli(&["EVAL", SCRIPT, "1", "qg:test:p:{many}:slots"]).unwrap();
    has_no_room(&*store, "many").await;
    let state = store.control().slots("test:p:{many}").await.unwrap();
    assert_eq!((state.holders.len(), state.left_out), (4096, 0));
}

/// Six doubles and four whole numbers, as the script writes them.
fn field(numbers: [f64; 6]) -> Vec<u8> {
    let doubles = numbers.iter().flat_map(|number| number.to_le_bytes());
    doubles.chain([0; 16]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn field_that_nobody_can_read_grants_nothing_until_its_worker_replaces_it() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let far = 1e15;
    let cases: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"3".to_vec(),
        vec![255; 64],
        vec![0; 72],
        field([1.0, -3.0, far, 0.0, 0.0, -1.0]),
        field([1.0, f64::NAN, far, 0.0, 0.0, -1.0]),
        field([1.0, f64::INFINITY, far, 0.0, 0.0, -1.0]),
        field([1.0, 3.0, far, f64::NAN, 0.0, -1.0]),
        field([1.0, 3.0, far, 0.0, -1.0, -1.0]),
        field([1.0, 1e300, f64::NAN, 0.0, 0.0, -1.0]),
    ];
    for (case, value) in cases.iter().enumerate() {
        let name = format!("garbage{case}");
        let hash = format!("qg:test:p:{{{name}}}:slots");
        write(&redis, &hash, "a", value);
        let say = |worker, serial, held, want| say(&name, 4, worker, serial, held, want);
        let refused = one(&*store, &say("b", 1, 0, 1)).await;
        assert_eq!((refused.granted, refused.used), (0, MAX_UNITS), "{value:?}");
        let state = store.control().slots(&say("b", 1, 0, 0).key).await.unwrap();
        assert_eq!((state.left_out, state.holders.len()), (1, 0), "{value:?}");
        let seen = store.control().get(counter(&say("b", 1, 0, 1), 0)).await.unwrap();
        assert_eq!(seen.value, Some(MAX_UNITS.to_string()), "{value:?}");
        // Its worker lives, and says what it holds.
        assert_eq!(numbers(&*store, &say("a", 1, 1, 0)).await, (0, 1), "{value:?}");
        assert_eq!(numbers(&*store, &say("b", 2, 0, 9)).await, (3, 4), "{value:?}");
        write(&redis, &hash, "a", value);
        assert_eq!(store.control().slots(&say("a", 1, 0, 0).key).await.unwrap().left_out, 1);
    }
    // A field whose worker is dead ends as others do.
    let used = async |serial| {
        let mut used = Vec::new();
        for case in 0..cases.len() {
            let message = say(&format!("garbage{case}"), 4, "c", serial, 0, 0);
            let grant = one(&*store, &message).await;
            used.push((grant.used, grant.expired));
        }
        used
    };
    assert_eq!(used(1).await, vec![(MAX_UNITS, 0); cases.len()]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(used(2).await, vec![(MAX_UNITS, 0); cases.len()]);
    sleep(Duration::from_millis(4_100)).await;
    let expired = vec![(0, 3); cases.len()];
    assert_eq!(used(3).await, expired, "those of `b`: nobody knows what `a` held");
}

#[tokio::test(flavor = "multi_thread")]
async fn field_with_an_absurd_expiry_or_serial_ends_within_nine_seconds() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    for (name, ends) in [("far", 1e15), ("inf", f64::INFINITY), ("nan", f64::NAN)] {
        let value = field([9e15, 3.0, ends, 0.0, 0.0, -1.0]);
        write(&redis, &format!("qg:test:p:{{{name}}}:slots"), "a", &value);
        let of = |worker| say(name, 4, worker, 2, 0, 4);
        assert_eq!(numbers(&*store, &of("b")).await, (1, 4), "{name}");
        assert_eq!(one(&*store, &of("a")).await.reset_ms, 0, "a serial of the future");
    }
    sleep(Duration::from_millis(9_100)).await;
    for name in ["far", "inf", "nan"] {
        assert_eq!(numbers(&*store, &say(name, 4, "a", 3, 0, 9)).await, (4, 4), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn key_of_another_type_fails_alone() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    redis.cli(&["SET", "qg:test:p:{wrong}:slots", "3"]).unwrap();
    let wrong = say("wrong", 4, "a", 1, 0, 1);
    let asks = vec![wrong.clone(), say("right", 4, "a", 1, 0, 1)];
    let reserved = store.reserve(&batch(vec![], asks)).await;
    assert!(matches!(&reserved[0], Err(StoreError::Refused(why)) if why.contains("WRONGTYPE")));
    assert_eq!(reserved[1].as_ref().map(|grant| grant.granted), Ok(1));
    assert!(try_one(&*store, &wrong).await.is_err());
    assert!(matches!(store.control().slots(&wrong.key).await, Err(StoreError::Refused(_))));
}
