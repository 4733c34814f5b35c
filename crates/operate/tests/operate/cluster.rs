//! Operating while a Redis Cluster changes: slots move, primaries fail.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{open, until};
use crate::operators::{reply, reported, set};
use quotagate_operate::Operate;
use quotagate_operate::api::SetDial;
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
