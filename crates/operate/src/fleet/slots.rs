//! The slots of partitions of concurrency limits, as the backend has them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_protocol::Kind;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::api::{PartitionSlots, Usage};
use crate::control::ControlHandle;
use crate::millis;

/// Most partitions whose slots are read for one look.
const MAX_SLOTS: usize = 100;
/// How long that may take.
const WITHIN: Duration = Duration::from_millis(700);
/// How long what was read serves others who ask.
const FRESH: Duration = Duration::from_millis(900);

/// What was read last and when, by key; `None` if it could not be read. Those who ask during a
/// reading wait for its result.
#[derive(Default)]
pub struct SlotReader(Mutex<HashMap<String, (Instant, Option<PartitionSlots>)>>);

impl SlotReader {
    /// The slots of those partitions that are of concurrency limits, in their order and of 100 at
    /// most. What cannot be read at once is missing.
    pub async fn read<'a>(
        &self,
        control: &ControlHandle,
        fullest: impl Iterator<Item = &'a Usage>,
    ) -> Vec<PartitionSlots> {
        let mut wanted: Vec<(String, &Usage)> = Vec::new();
        for usage in fullest.filter(|usage| usage.kind == Kind::InFlight) {
            let Usage { domain, policy, partition, .. } = usage;
            let key = format!("{domain}:{policy}:{{{partition}}}");
            if wanted.len() < MAX_SLOTS && !wanted.iter().any(|(other, _)| *other == key) {
                wanted.push((key, usage));
            }
        }
        if wanted.is_empty() {
            return Vec::new();
        }
        let mut known = self.0.lock().await;
        known.retain(|_, (at, _)| at.elapsed() < FRESH);
        let unknown = wanted.iter().filter(|(key, _)| !known.contains_key(key));
        // What cannot be read is kept, too, so that those who wait do not try it one by one.
        let read = unknown.map(async |(key, usage)| {
            let slots = of_partition(control, key, usage).await;
            (key.clone(), (Instant::now(), slots))
        });
        let read = join_all(read).await;
        known.extend(read);
        let limited = |(key, usage): &(String, &Usage)| {
            let (at, slots) = known.get(key)?;
            let slots = slots.as_ref()?;
            let longest_ms = slots.longest_ms.saturating_add(millis(at.elapsed()));
            let longest_ms = if slots.held > 0 { longest_ms } else { 0 };
            Some(PartitionSlots { limit: usage.quota, longest_ms, ..slots.clone() })
        };
        wanted.iter().filter_map(limited).collect()
    }
}

async fn of_partition(control: &ControlHandle, key: &str, usage: &Usage) -> Option<PartitionSlots> {
    let state = timeout(WITHIN, control.slots(key)).await.ok()?.ok()?;
    let mut of = PartitionSlots {
        domain: usage.domain.clone(),
        policy: usage.policy.clone(),
        partition: usage.partition.clone(),
        left_out: state.left_out,
        ..PartitionSlots::default()
    };
    for holder in state.holders {
        of.held = of.held.saturating_add(holder.held);
        of.waiting = of.waiting.saturating_add(holder.waiting);
        of.longest_ms = of.longest_ms.max(holder.longest_ms);
    }
    Some(of)
}
