//! Which node is the primary of a slot, and how long a failover takes.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::cluster::Cluster;
use quotagate_support::wait;

/// Primaries, and as many replicas.
pub const PRIMARIES: usize = 3;
/// How long a replica may take to notice and to be elected.
const ELECTED: Duration = Duration::from_secs(30);

/// The primary of these slots, by number, and its replica. An earlier failover may have swapped
/// them.
///
/// # Errors
/// When a node does not answer.
pub fn pair(cluster: &Cluster, slots: usize) -> Result<(usize, usize)> {
    let other = slots + PRIMARIES;
    Ok(if leads(cluster, slots)? { (slots, other) } else { (other, slots) })
}

/// Waits until the replica is the primary, in a cluster that is whole again.
///
/// # Errors
/// When it does not in time.
pub fn taken_over(cluster: &Cluster, replica: usize) -> Result<()> {
    wait::until_true("a replica to take over", ELECTED, || {
        let sound =
            cluster.cli(replica, &["CLUSTER", "INFO"])?.lines().contains("cluster_state:ok");
        Ok(sound && leads(cluster, replica)?)
    })
}

fn leads(cluster: &Cluster, node: usize) -> Result<bool> {
    Ok(cluster.cli(node, &["INFO", "replication"])?.lines().contains("role:master"))
}
