//! Bounds of operating: space in the backend, memory, and how long filters and operators wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::before;
use crate::common::{open, until};
use crate::operators::{reply, report, reported, set};
use futures_util::future::join_all;
use quotagate_operate::api::{
    Allow, ForgetDomain, PublishDocument, SetDial, SetOverride, WithdrawDocument,
};
use quotagate_operate::{Fault, MAX_POLICIES, Operate};
use quotagate_store::control::{ControlStore, Field, HashName, Upsert};
use quotagate_store::memory::{Memory, steady_clock};
use quotagate_store::store::Store;
use quotagate_support::redis::Redis;
use serde_json::json;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn over(domain: &str, partition: &str) -> SetOverride {
    SetOverride {
        domain: Some(domain.to_owned()),
        policy: "p".to_owned(),
        partition: partition.to_owned(),
        allow: Allow::Blocked,
        for_ms: None,
        by: "ann".to_owned(),
    }
}

#[tokio::test]
async fn removed_domain_is_gone_from_every_store() {
    let hours = Arc::new(AtomicU64::new(0));
    let clock = {
        let (hours, steady) = (Arc::clone(&hours), steady_clock());
        move || steady() + Duration::from_secs(3600 * hours.load(Relaxed))
    };
    let store: Arc<dyn Store> = Arc::new(Memory::new(Arc::new(clock)));
    let (one, other) =
        (reported(&store, "gone", &["p"]).await, reported(&store, "gone", &["p", "q"]).await);
    let forget = ForgetDomain { domain: "gone".to_owned(), by: "ann".to_owned() };
    let early = one.domains.forget(&forget).await.unwrap_err();
    assert!(matches!(early, Fault::InUse(_)), "{early:?}");
    hours.store(1, Relaxed);
    // A store reads a cached domain again after two seconds.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    let late = other.views.wanted("gone").await.unwrap();
    let document = json!({"domain": "gone", "policies": []});
    let publish = PublishDocument {
        document: Some(document),
        by: "ann".to_owned(),
        ..PublishDocument::default()
    };
    one.documents.publish(&publish).await.unwrap();
    let published = one.domains.forget(&forget).await.unwrap_err().to_string();
    assert!(published.contains("withdraw it first"), "{published}");
    let withdraw = WithdrawDocument { domain: None, after: None, note: None, by: "ann".to_owned() };
    one.documents.withdraw(&withdraw).await.unwrap();
    assert!(store.control().document("gone", 1).await.unwrap().is_some());
    assert_eq!(one.domains.forget(&forget).await.unwrap().done, "forgot domain gone");
    assert_eq!(
        (one.directory.domains().await.unwrap(), other.directory.domains().await.unwrap()),
        (vec![], vec![])
    );
    assert!(matches!(other.directory.domain(Some("gone")).await, Err(Fault::Unknown { .. })));
    let documents = store.control().read(HashName::Documents, "gone").await.unwrap();
    assert_eq!((documents.fields, documents.left_out), (vec![], 0));
    assert_eq!(store.control().document("gone", 1).await.unwrap(), None);
    // A report to any store brings it back.
    late.learn(&report(&["p"])).unwrap();
    assert_eq!(other.directory.domains().await.unwrap(), ["gone"]);
}

/// 1024 domains reported at this time.
fn seen(names: &str, seen_ms: u64) -> Upsert {
    let record = format!("{{\"seen_ms\":{seen_ms},\"since_ms\":{seen_ms}}}");
    let fields = (0..1024).map(|n| (format!("{names}-{n}"), record.clone().into_bytes()));
    Upsert { delete: vec![], fields: fields.collect(), max_fields: 1024, keep_for: DAY }
}

async fn names(control: &dyn ControlStore, hash: HashName, domain: &str) -> Vec<String> {
    let snapshot = control.read(hash, domain).await.unwrap();
    snapshot.fields.into_iter().map(|(name, _)| name).collect()
}

async fn known_domains_and_policies_are_bounded(store: Arc<dyn Store>) {
    let control = store.control();
    let fields = |value: &str| -> Vec<Field> {
        (0..=MAX_POLICIES).map(|n| (format!("p{n:04}"), value.into())).collect()
    };
    let upsert =
        |fields, delete| Upsert { delete, fields, max_fields: MAX_POLICIES, keep_for: DAY };
    control.upsert(HashName::Policies, "full", &upsert(fields("{}"), vec![])).await.unwrap();
    assert_eq!(names(control, HashName::Policies, "full").await.len(), MAX_POLICIES);
    control
        .upsert(HashName::Policies, "full", &upsert(fields("{ }"), vec!["p0000".to_owned()]))
        .await
        .unwrap();
    let snapshot = control.read(HashName::Policies, "full").await.unwrap();
    assert_eq!((snapshot.get("p0001"), snapshot.fields.len()), (Some(&b"{ }"[..]), MAX_POLICIES));
    assert_eq!(control.read(HashName::Policies, "brief").await.unwrap().fields, []);
    let brief = Upsert { keep_for: Duration::from_millis(1), ..upsert(fields("{}"), vec![]) };
    control.upsert(HashName::Policies, "brief", &brief).await.unwrap();
    until("the hash expires", Duration::from_secs(2), async || {
        control.upsert(HashName::Policies, "other", &upsert(vec![], vec![])).await.unwrap();
        names(control, HashName::Policies, "brief").await.is_empty().then_some(())
    })
    .await;

    control.upsert(HashName::Domains, "", &seen("dead", 1)).await.unwrap();
    let operate = reported(&store, "alive", &["p"]).await;
    assert_eq!(
        names(control, HashName::Domains, "").await,
        ["alive"],
        "the domains of long ago made room"
    );
    assert_eq!(operate.directory.domains().await.unwrap(), ["alive"]);
    let now =
        u64::try_from(control.read(HashName::Domains, "").await.unwrap().now.as_millis()).unwrap();
    control.upsert(HashName::Domains, "", &seen("live", now)).await.unwrap();
    reported(&store, "late", &["p"]).await;
    assert_eq!(names(control, HashName::Domains, "").await.len(), 1024);
    assert_eq!(
        names(control, HashName::Policies, "late").await,
        [""; 0],
        "no policies are written for a domain that is not recorded"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn known_domains_and_policies_are_bounded_in_memory() {
    known_domains_and_policies_are_bounded(open("memory:").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn known_domains_and_policies_are_bounded_in_redis_and_expire() {
    let redis = Redis::start().unwrap();
    known_domains_and_policies_are_bounded(open(&redis.url()).await).await;
    let left: u64 =
        redis.cli(&["PTTL", "qg:policies:{alive}"]).unwrap().lines().trim().parse().unwrap();
    assert!((29..=30).contains(&(left / 86_400_000)), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn filter_gets_current_dials_after_a_pause() {
    let store = open("memory:").await;
    let one = reported(&store, "pause", &["a"]).await;
    let other = Operate::new(Arc::clone(&store));
    assert_eq!(reply(&other, "pause").await.version, 0);
    one.dials.set(&SetDial { quota: Some(9), ..set("pause", "a") }).await.unwrap();
    // No task keeps the view fresh.
    until("the old view is read again", Duration::from_secs(20), async || {
        (reply(&other, "pause").await.version == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn hanging_redis_delays_neither_filters_nor_the_page() {
    let mut redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let operate = reported(&store, "hangs", &["p"]).await;
    operate.dials.set(&SetDial { quota: Some(9), ..set("hangs", "p") }).await.unwrap();
    let (page, mut domains) = (Operate::new(Arc::clone(&store)), Vec::new());
    assert_eq!(page.boards.glance(&mut domains).await[0].dials.len(), 1);
    redis.freeze().unwrap();
    let boards = before(Duration::from_secs(2), page.boards.glance(&mut domains)).await;
    // A filter gives up after a second.
    let wanted = join_all((0..8).map(|_| operate.views.wanted("never-read")));
    let all = before(Duration::from_millis(950), wanted).await;
    redis.thaw().unwrap();
    assert_eq!((boards[0].domain.as_str(), boards[0].dials.len()), ("hangs", 1), "as last read");
    assert!(all.into_iter().all(|cached| cached.unwrap().reply(None).is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn boards_reread_overrides_only_with_a_new_version() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let operate = reported(&store, "many", &["p"]).await;
    operate.overrides.set(&over("many", "jwt.sub=a")).await.unwrap();
    let mut domains = Vec::new();
    let mut both = async || {
        let glance = operate.boards.glance(&mut domains).await[0].overrides;
        (glance, operate.boards.read_all(None).await.unwrap()[0].overrides)
    };
    assert_eq!(both().await, (1, 1));
    redis
        .cli(&["HSET", "qg:overrides:{many}", "p:{jwt.sub=b}", "{\"allow\":\"blocked\"}"])
        .unwrap();
    assert_eq!(both().await, (1, 1), "overrides were not read again");
    operate.overrides.set(&over("many", "jwt.sub=c")).await.unwrap();
    assert_eq!(both().await, (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_domain_does_not_hide_other_boards() {
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    reported(&store, "bad", &["p"]).await;
    reported(&store, "good", &["p"]).await;
    redis.cli(&["ACL", "SETUSER", "default", "resetkeys", "~*good*", "~*domains*"]).unwrap();
    let operate = Operate::new(Arc::clone(&store));
    let boards = operate.boards.read_all(None).await.unwrap();
    assert_eq!(boards.iter().map(|board| board.domain.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(operate.boards.glance(&mut Vec::new()).await.len(), 1);
    assert!(operate.boards.read_all(Some("bad")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_overrides_of_parties_stay_within_their_bound() {
    const MAX_PATTERNS: usize = 1024;
    let redis = Redis::start().unwrap();
    let store = open(&redis.url()).await;
    let operate = reported(&store, "crowd", &["p"]).await;
    let entry = |n: usize| (format!("p:{{jwt.sub=n{n},*}}"), b"{\"allow\":\"blocked\"}".to_vec());
    let fields = (0..MAX_PATTERNS - 1).map(entry).collect();
    let upsert = Upsert { delete: vec![], fields, max_fields: MAX_PATTERNS, keep_for: DAY };
    store.control().upsert(HashName::Overrides, "crowd", &upsert).await.unwrap();
    let wishes: Vec<_> = (0..8).map(|n| over("crowd", &format!("jwt.sub=a{n},*"))).collect();
    let sets = join_all(wishes.iter().map(|wish| operate.overrides.set(wish))).await;
    let listed = names(store.control(), HashName::Overrides, "crowd").await;
    assert!(listed.len() <= MAX_PATTERNS, "{} are listed", listed.len());
    for (wish, set) in wishes.iter().zip(sets) {
        let is_listed = listed.contains(&format!("p:{{{}}}", wish.partition));
        assert_eq!(set.is_ok(), is_listed, "{set:?}");
        assert!(matches!(set, Ok(_) | Err(Fault::Full(_))), "{set:?}");
    }
    // There is room for one, and an override that is there can still be changed.
    let _ = operate.overrides.set(&over("crowd", "jwt.sub=last,*")).await;
    assert_eq!(names(store.control(), HashName::Overrides, "crowd").await.len(), MAX_PATTERNS);
    operate.overrides.set(&over("crowd", "jwt.sub=n7,*")).await.unwrap();
}
