//! Operating while a Redis Cluster changes: slots move, primaries fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::calls::NO_CALLS;
use crate::common::{one, open, take, until};
use crate::operators::{reply, report, reported, set};
use quotagate_operate::api::{Allow, SetDial, SetOverride};
use quotagate_operate::{DomainNames, Fault, Operate};
use quotagate_protocol::Reservation;
use quotagate_store::control::Key;
use quotagate_store::store::Store;
use quotagate_support::cluster::{Cluster, SlotMove};

#[tokio::test(flavor = "multi_thread")]
async fn dials_can_be_set_while_their_slot_moves() {
    let cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    let operate = reported(&store, "moving", &["a"]).await;
    let set_quota = async |quota| {
        let wish = SetDial { quota: Some(quota), ..set("moving", "a") };
        let made = operate.dials.set(&wish).await.unwrap();
        let reported = reply(&operate, "moving").await;
        assert_eq!((reported.version, reported.dials[0].fields.quota), (made.version, Some(quota)));
        made.version
    };
    assert_eq!(set_quota(1).await, 1);
    let slot = SlotMove::of(&cluster, "moving").unwrap();
    slot.begin().unwrap();
    assert_eq!(set_quota(2).await, 2);
    slot.keys().unwrap();
    assert_eq!(set_quota(3).await, 3);
    slot.end().unwrap();
    assert_eq!(set_quota(4).await, 4);
    assert_eq!(
        operate.history.list(Some("moving"), 9).await.unwrap().len(),
        4,
        "each was made once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dials_outlive_the_loss_of_their_primary() {
    let mut cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    let domain = (0..)
        .map(|n| format!("d{n}"))
        .find(|name| SlotMove::of(&cluster, name).unwrap().from() == 0)
        .unwrap();
    let operate = reported(&store, &domain, &["a"]).await;
    operate.dials.set(&SetDial { quota: Some(8), ..set(&domain, "a") }).await.unwrap();
    until("the replica has it", Duration::from_secs(20), async || {
        let info = cluster.cli(0, &["INFO", "replication"]).unwrap().lines();
        let offset = |name: &str| {
            let (_, rest) = info.split_once(name)?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
        };
        offset(",offset=").filter(|replica| Some(*replica) == offset("master_repl_offset:"))
    })
    .await;
    cluster.kill_node(0).unwrap();
    assert_eq!(
        reply(&operate, &domain).await.dials[0].fields.quota,
        Some(8),
        "the last known dial stays"
    );
    let version = until("the replica takes a change", Duration::from_secs(20), async || {
        let wish = SetDial { quota: Some(9), ..set(&domain, "a") };
        operate.dials.set(&wish).await.ok().map(|made| made.version)
    })
    .await;
    assert_eq!(version, 2, "the first change is still there");
}

#[tokio::test(flavor = "multi_thread")]
async fn named_domain_needs_no_other_shard() {
    let mut cluster = Cluster::start().unwrap();
    let store = open(&cluster.url()).await;
    let home = SlotMove::of(&cluster, "*").unwrap().from();
    let elsewhere = |name: &String| SlotMove::of(&cluster, name).unwrap().from() != home;
    let domain = (0..).map(|n| format!("d{n}")).find(elsewhere).unwrap();
    let reported_here = reported(&store, &domain, &["a"]).await;
    let other = Operate::new(Arc::clone(&store));
    cluster.kill_node(home).unwrap();
    for operate in [reported_here, other] {
        let wish = SetDial { quota: Some(8), ..set(&domain, "a") };
        operate.dials.set(&wish).await.unwrap();
    }
}

/// A domain or a partition in a slot of one primary, or of another one.
fn name(cluster: &Cluster, prefix: &str, home: usize, is_there: bool) -> String {
    let is_right =
        |name: &String| (SlotMove::of(cluster, name).unwrap().from() == home) == is_there;
    (0..).map(|n| format!("{prefix}{n}")).find(is_right).unwrap()
}

/// Counts a unit of a partition of the policy `a`.
async fn count(store: &Arc<dyn Store>, domain: &str, partition: &str) {
    let key = format!("{domain}:a:{{{partition}}}").into();
    one(&**store, &Reservation { key, window_s: 3600, ..take("", 5, 1) }).await;
}

fn over(domain: &str, partition: &str, quota: u64) -> SetOverride {
    SetOverride {
        domain: Some(domain.to_owned()),
        policy: "a".to_owned(),
        partition: partition.to_owned(),
        allow: Allow::Quota(quota),
        for_ms: None,
        by: "ann".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_shard_hides_nothing_of_the_others() {
    one_shard_is_away(|cluster, node| cluster.kill_node(node).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frozen_shard_hides_nothing_of_the_others() {
    one_shard_is_away(|cluster, node| cluster.freeze_node(node).unwrap()).await;
}

/// The shard that has the list of domains, all lists of one domain, and one partition of another.
async fn one_shard_is_away(take_away: impl Fn(&mut Cluster, usize)) {
    let mut cluster = Cluster::start_with(&[
        "--cluster-require-full-coverage",
        "no",
        "--cluster-replica-no-failover",
        "yes",
    ])
    .unwrap();
    let store = open(&cluster.url()).await;
    let away = SlotMove::of(&cluster, "*").unwrap().from();
    let port = cluster.ports()[away].to_string();
    let (here, lost) = (name(&cluster, "here", away, false), name(&cluster, "lost", away, true));
    let (near, far) =
        (name(&cluster, "jwt.sub=near", away, false), name(&cluster, "jwt.sub=far", away, true));
    let new = name(&cluster, "new", away, false);
    let operate = reported(&store, &here, &["a"]).await;
    reported(&store, &lost, &["a"]).await;
    for domain in [&here, &lost] {
        operate.dials.set(&SetDial { quota: Some(7), ..set(domain, "a") }).await.unwrap();
        for partition in [&near, &far] {
            count(&store, domain, partition).await;
        }
    }
    for partition in [&near, &far] {
        operate.overrides.set(&over(&here, partition, 3)).await.unwrap();
    }
    let silent = operate.domains.list(&operate.fleet.look().await).await.unwrap();
    assert!(silent.iter().all(|info| info.incomplete.is_none()), "{silent:?}");

    take_away(&mut cluster, away);
    let names_it = |why: &Option<String>| why.as_ref().is_some_and(|why| why.contains(&port));
    // An operator who asks for much waits for the shard once, and not for each of its keys.
    let patience = Duration::from_secs(60);
    let waited = tokio::time::timeout(patience, async {
        for n in 0..100 {
            let key = format!("{here}:a:{{{far}}}");
            let read = store.control().get(Key::Override(&key)).await;
            assert!(read.unwrap_err().is_outage(), "{n}");
        }
    });
    waited.await.unwrap();

    let made = operate.dials.set(&SetDial { quota: Some(8), ..set(&here, "a") }).await.unwrap();
    assert_eq!(made.done, "set dial a: quota 8");
    operate.overrides.set(&over(&here, &near, 4)).await.unwrap();
    let fault = operate.overrides.set(&over(&here, &far, 4)).await.unwrap_err();
    assert!(fault.to_string().contains(&port), "{fault}");
    let fault = operate.dials.set(&set(&lost, "a")).await.unwrap_err();
    assert!(fault.to_string().contains(&port), "{fault}");
    assert!(operate.history.list(Some(&here), 9).await.unwrap().len() >= 4);

    // Usage.
    let usage = async |domain: Option<&str>, party: &str| {
        operate.counters.usage(domain, party, &NO_CALLS).await
    };
    let found = usage(Some(&here), &near).await.unwrap();
    let [only] = &found.found[..] else { panic!("{found:?}") };
    assert_eq!((only.usage.used, only.usage.quota, only.without_override), (1, Some(4), Some(8)));
    assert!(names_it(&found.incomplete), "a method may be counted there, too: {found:?}");
    let found = usage(Some(&here), &far).await.unwrap();
    assert!(found.found.is_empty() && names_it(&found.incomplete), "{found:?}");
    assert!(found.incomplete.unwrap().contains(&far));
    let found = usage(Some(&lost), &near).await.unwrap();
    assert_eq!(found.found[0].usage.used, 1);
    let why = found.incomplete.unwrap();
    assert!(why.contains("as last read") && why.contains(&lost), "{why}");
    let found = usage(None, &near).await.unwrap();
    assert_eq!(found.found.len(), 2, "of both domains");
    assert!(found.incomplete.unwrap().contains("the list of domains cannot be read"));
    let (mut all, mut faults, mut from) = (BTreeSet::new(), Vec::new(), None);
    loop {
        let page = operate.counters.parties(Some(&here), "a", from.as_deref(), &NO_CALLS);
        let page = page.await.unwrap();
        all.extend(page.found.into_iter().map(|found| found.usage.partition));
        faults.extend(page.incomplete);
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!((all, faults.len()), ([near.clone()].into(), 1), "{faults:?}");
    assert!(faults[0].contains(&port), "{faults:?}");

    // Lists.
    let listed = operate.overrides.list(Some(&here), None, 9).await.unwrap();
    let listed: BTreeMap<_, _> =
        listed.into_iter().map(|of| (of.partition, (of.allow, of.incomplete))).collect();
    assert_eq!(listed[&near], (Allow::Quota(4), None));
    assert!(listed[&far].0 == Allow::Quota(3) && names_it(&listed[&far].1), "{listed:?}");
    let fault = operate.overrides.list(Some(&lost), None, 9).await.unwrap_err();
    assert!(fault.to_string().contains(&port), "{fault}");
    let boards = operate.boards.read_all(Some(&here)).await.unwrap();
    assert_eq!((boards[0].dials[0].fields.quota, &boards[0].incomplete), (Some(8), &None));
    let boards = operate.boards.read_all(None).await.unwrap();
    let boards: BTreeMap<_, _> = boards.into_iter().map(|of| (of.domain.clone(), of)).collect();
    assert!(boards.len() == 2 && boards.values().all(|of| names_it(&of.incomplete)), "{boards:?}");
    assert_eq!(boards[&lost].dials[0].fields.quota, Some(7), "as last read");
    let domains = operate.domains.list(&operate.fleet.look().await).await.unwrap();
    assert!(domains.len() == 2 && domains.iter().all(|of| names_it(&of.incomplete)), "{domains:?}");

    // A store that has read nothing before.
    let fresh = Operate::new(quotagate_store::open(&cluster.url().parse().unwrap(), "qg"));
    let found = until("the fresh store to find it", Duration::from_secs(20), async || {
        fresh.counters.usage(Some(&here), &near, &NO_CALLS).await.ok()
    });
    assert_eq!(found.await.found[0].usage.quota, Some(4));
    // It knows no domain, or only one, which need not be the one that is meant.
    let fault = fresh.boards.read_all(None).await.unwrap_err();
    assert!(fault.to_string().contains(&port), "{fault}");
    let cached = fresh.views.wanted(&here).await.unwrap();
    cached.learn(&report(&["a"])).unwrap();
    let fault = fresh.dials.set(&SetDial { domain: None, ..set("", "a") }).await.unwrap_err();
    assert!(matches!(&fault, Fault::Invalid { field: "domain", .. }), "{fault:?}");
    let both = DomainNames { names: vec![lost.clone(), here.clone()], incomplete: None };
    let found = fresh.counters.usage_of(both, &near, &NO_CALLS).await.unwrap();
    assert!(found.found.len() == 1 && found.incomplete.unwrap().contains(&lost));
    // A proxy that counts: what it reports is known to those who name its domain.
    reported(&store, &new, &["a"]).await;
    let found = fresh.directory.policies(&new).await.unwrap();
    assert_eq!(found.len(), 1);
}
