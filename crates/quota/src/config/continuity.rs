//! Which counters of a document go on under another one.

use std::mem::discriminant;

use quotagate_protocol::Window;
use quotagate_protocol::dials::PartitionEntry;
use serde::Serialize;

use super::{Config, Policy};
use crate::request::continuity::{Continuity, DigestKeys};

/// Whether the counters of a policy go on under another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterContinuity {
    /// Whether keys stay, and with them runtime overrides, which belong to a key.
    pub keys: Continuity,
    /// Whether counts stay. A count belongs to a key and to a window.
    pub counts: Continuity,
    /// What differs, even where all counts stay.
    pub differs: Vec<CounterPart>,
}

/// A part of what tells counters apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CounterPart {
    /// The domain.
    Domain,
    /// The first part of every key in Redis.
    Prefix,
    /// The name of the policy.
    Name,
    /// The values that it counts by, and how keys write them.
    Partition,
    /// The key of digests, where they stand for secret values.
    DigestKey,
    /// The length of the window, or the unit or time zone of the calendar.
    Window,
    /// Whether the window is fixed, sliding or of the calendar.
    WindowKind,
    /// Whether each partition's windows begin at a time of their own.
    Stagger,
}

impl Config {
    /// Whether the counters of `policy`, which is one of this configuration, go on as those of
    /// `new_policy` of `new`. Values longer than 128 bytes are digests, too, and are left out:
    /// [`same_digests`](Self::same_digests) says whether they stay.
    pub fn continuity(
        &self,
        policy: &Policy,
        new: &Self,
        new_policy: &Policy,
    ) -> CounterContinuity {
        let digests = if self.same_digests(new) { DigestKeys::Same } else { DigestKeys::Different };
        let (partition, new_partition) = (&*policy.partition, &*new_policy.partition);
        let by_values = partition.continuity(new_partition, DigestKeys::Same);
        let written = partition.continuity(new_partition, digests);
        let window = policy.window_continuity(new_policy);
        let (kind, new_kind) = (discriminant(&policy.window), discriminant(&new_policy.window));
        let moved = [
            (CounterPart::Domain, self.domain != new.domain),
            (CounterPart::Prefix, self.store.reach.moves_keys(&new.store.reach)),
            (CounterPart::Name, policy.name != new_policy.name),
        ];
        let is_moved = moved.iter().any(|(_, differs)| *differs);
        let keys = if is_moved { Continuity::Nothing } else { written };
        let others = [
            (CounterPart::Partition, !partition.is_same(new_partition, DigestKeys::Same)),
            (CounterPart::DigestKey, written != by_values),
            (CounterPart::WindowKind, kind != new_kind),
            (CounterPart::Window, kind == new_kind && policy.window != new_policy.window),
            (
                CounterPart::Stagger,
                policy.window == new_policy.window && window != Continuity::Whole,
            ),
        ];
        let differs = moved.into_iter().chain(others);
        CounterContinuity {
            keys,
            counts: keys.min(window),
            differs: differs.filter_map(|(part, differs)| differs.then_some(part)).collect(),
        }
    }

    /// Whether both configurations write the same digests.
    pub fn same_digests(&self, new: &Self) -> bool {
        self.digester.is_same(&new.digester)
    }
}

impl Policy {
    /// What its partitions consist of, as reports to operators show it.
    pub fn counts_by(&self) -> Vec<PartitionEntry> {
        self.partition.reported()
    }

    /// The window of the counter of this encoded partition.
    pub(crate) fn window_of(&self, partition: &str) -> Window {
        if self.stagger { self.window.staggered(partition) } else { self.window.clone() }
    }

    /// Whether [`window_of`](Self::window_of) stays.
    fn window_continuity(&self, new: &Self) -> Continuity {
        if self.window != new.window {
            Continuity::Nothing
        } else if self.stagger == new.stagger {
            Continuity::Whole
        } else {
            // Windows of one length keep their numbers for a part of the time.
            Continuity::Part
        }
    }
}
