//! Whether a counter goes on when another document takes over.
//!
//! Everything here looks at what `Partition::party` writes keys from, and names every field of
//! it: a new field does not compile until this module says whether keys depend on it.

use serde::Serialize;

use super::fact::Fact;
use super::identity::Identity;
use super::key::Secrecy;
use super::partition::{OnMissing, Partition, PartitionPart};
use super::source::IdentitySource;

/// How many of the requests that two documents count have the same counter in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Continuity {
    /// None, except those that lack a value and share a counter in both.
    Nothing,
    /// Those whose partition both documents write the same.
    Part,
    /// All.
    Whole,
}

/// Whether the digests of two documents have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DigestKeys {
    Same,
    Different,
}

/// How the values of two sources are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceMatch {
    /// In the same way, and only for the same requests.
    Same,
    /// Under one label: some values are the same.
    Similar,
    /// Never in the same way.
    Different,
}

impl Partition {
    /// Whether requests that both partitions count have the same encoded partition. The names of
    /// domain and policy do not matter.
    pub(crate) fn continuity(&self, new: &Self, digests: DigestKeys) -> Continuity {
        match (self, new) {
            (Self::Everyone(_), Self::Everyone(_)) => Continuity::Whole,
            (
                Self::By { head: _, entries, on_missing },
                Self::By { head: _, entries: new_entries, on_missing: new_on_missing },
            ) if entries.len() == new_entries.len() => {
                let missing = (*on_missing, *new_on_missing);
                let pairs = entries.iter().zip(new_entries);
                let parts = pairs.map(|(old, new)| old.continuity(new, missing, digests));
                parts.min().unwrap_or(Continuity::Whole)
            }
            (Self::Hosted(old), Self::Hosted(new)) if old == new => Continuity::Whole,
            _ => Continuity::Nothing,
        }
    }

    /// Whether both partitions count every request in the same way.
    pub(crate) fn is_same(&self, new: &Self, digests: DigestKeys) -> bool {
        // A source more or less changes nothing for requests that both count, but which they count.
        let lengths =
            |partition: &Self| -> Vec<usize> { partition.forms().iter().map(Vec::len).collect() };
        self.continuity(new, digests) == Continuity::Whole && lengths(self) == lengths(new)
    }
}

impl PartitionPart {
    fn continuity(
        &self,
        new: &Self,
        missing: (OnMissing, OnMissing),
        digests: DigestKeys,
    ) -> Continuity {
        match (self, new) {
            (Self::BuiltIn(old), Self::BuiltIn(new)) if old == new => Continuity::Whole,
            (Self::Identity(old), Self::Identity(new)) => old.continuity(new, missing, digests),
            _ => Continuity::Nothing,
        }
    }
}

impl Identity {
    fn continuity(
        &self,
        new: &Self,
        (missing, new_missing): (OnMissing, OnMissing),
        digests: DigestKeys,
    ) -> Continuity {
        let Self { id: _, name: _, sources, token: _ } = self;
        let Self { id: _, name: _, sources: new_sources, token: _ } = new;
        let pairs = sources.iter().zip(new_sources);
        let is_same = |(old, new): &(&IdentitySource, &IdentitySource)| {
            old.compare(new, digests) == SourceMatch::Same
        };
        let common = pairs.take_while(is_same).count();
        // A further source names only requests that had no value, and were not counted.
        let adds = common == sources.len() && missing != OnMissing::Shared;
        let removes = common == new_sources.len() && new_missing != OnMissing::Shared;
        let equal = common == sources.len() && common == new_sources.len();
        let mut all = sources.iter().flat_map(|old| new_sources.iter().map(move |new| (old, new)));
        if equal || adds || removes {
            Continuity::Whole
        } else if all.any(|(old, new)| old.compare(new, digests) != SourceMatch::Different) {
            Continuity::Part
        } else {
            Continuity::Nothing
        }
    }
}

impl IdentitySource {
    fn compare(&self, new: &Self, digests: DigestKeys) -> SourceMatch {
        // The labels name the kind.
        let Self { kind: _, facts } = self;
        let Self { kind: _, facts: new_facts } = new;
        if facts.len() != new_facts.len() {
            return SourceMatch::Different;
        }
        let matches: Vec<_> =
            facts.iter().zip(new_facts).map(|(old, new)| old.compare(new, digests)).collect();
        if matches.contains(&SourceMatch::Different) {
            SourceMatch::Different
        } else if matches.contains(&SourceMatch::Similar) {
            SourceMatch::Similar
        } else {
            SourceMatch::Same
        }
    }
}

impl Fact {
    fn compare(&self, new: &Self, digests: DigestKeys) -> SourceMatch {
        let Self { label, value_type, secrecy, lookup } = self;
        let digested = *secrecy == Secrecy::Secret;
        if *label != new.label
            || *secrecy != new.secrecy
            || (digested && digests == DigestKeys::Different)
        {
            SourceMatch::Different
        // The derived Debug of a look-up shows all that it is made of.
        } else if *value_type == new.value_type
            && format!("{lookup:?}") == format!("{:?}", new.lookup)
        {
            SourceMatch::Same
        } else {
            SourceMatch::Similar
        }
    }
}
