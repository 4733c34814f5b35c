//! The counted party of a policy: what a partition consists of, and the counter that a request
//! belongs to.

use std::net::IpAddr;
use std::sync::Arc;

use quotagate_protocol::dials::PartitionEntry;

use super::fact::{Fact, LookUp};
use super::facts::{Facts, IdentityId, Yield};
use super::identity::Identity;
use super::key::{self, Digester, Secrecy};
use super::network::Prefixes;
use super::source::IdentitySource;
use super::{host, path};
use crate::document::words;

/// What a policy counts by.
#[derive(Debug)]
pub(crate) enum Partition {
    /// Every request, in one counter with this key.
    Everyone(Arc<str>),
    /// A counter for each combination of values.
    By {
        /// The key's part before the partition.
        head: Box<str>,
        /// At least one.
        entries: Vec<PartitionPart>,
        /// What happens to a request that lacks one of them.
        on_missing: OnMissing,
    },
    /// The host finds the counters, which have these entries.
    Hosted(Box<[PartitionEntry]>),
}

/// One value that a partition consists of.
#[derive(Clone, Debug)]
pub(crate) enum PartitionPart {
    /// An identity of the configuration.
    Identity(Arc<Identity>),
    /// A fact that every request has.
    BuiltIn(BuiltIn),
}

/// A fact that every request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BuiltIn {
    /// Its method, in upper case.
    Method,
    /// The host it is for, in its one spelling.
    Host,
    /// Its normalized path, without query string and trailing slash.
    Path,
    /// The name of the Envoy route.
    Route,
}

words! {
    /// What happens to a request that has no value for an entry of the partition.
    pub(crate) enum OnMissing {
        /// The policy does not apply to it.
        Skip = "skip",
        /// It is answered with 401.
        Deny = "deny",
        /// All such requests share one value.
        Shared = "shared",
    }
}

/// The counter of a request under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    /// One counter.
    Counter {
        /// Its key.
        key: Arc<str>,
        /// The client's whole address, if a part of the partition was read from it.
        address: Option<IpAddr>,
        /// Whether the request has every value of the partition.
        named: bool,
    },
    /// No counter: the policy does not apply.
    Uncounted,
    /// No counter: the filter refuses the request.
    Denied,
}

/// One `label=value` of encoded partitions: what its value looks like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodedEntry<'p> {
    /// Encoded.
    pub(crate) label: &'p str,
    /// Whether it is kept as a digest.
    pub(crate) secrecy: Secrecy,
    value: PartValue<'p>,
}

/// Where the value of a part comes from, and so how it is normalized.
#[derive(Clone, Copy, Debug)]
enum PartValue<'p> {
    /// From a source of an identity.
    Source(&'p dyn LookUp),
    /// From every request.
    BuiltIn(BuiltIn),
}

impl BuiltIn {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Method, Self::Host, Self::Path, Self::Route];

    /// Its name in `partition_by`, which is its label in a key.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::Host => "host",
            Self::Path => "path",
            Self::Route => "route",
        }
    }
}

impl Partition {
    /// The partition of keys that begin with `head`.
    pub(crate) fn new(head: Box<str>, entries: Vec<PartitionPart>, on_missing: OnMissing) -> Self {
        if entries.is_empty() {
            Self::Everyone(format!("{head}{}}}", key::EVERYONE).into())
        } else {
            Self::By { head, entries, on_missing }
        }
    }

    /// The identities among its entries.
    pub(crate) fn identities(&self) -> impl Iterator<Item = IdentityId> {
        let entries = match self {
            Self::Everyone(_) | Self::Hosted(_) => &[][..],
            Self::By { entries, .. } => entries,
        };
        entries.iter().filter_map(|entry| match entry {
            PartitionPart::Identity(identity) => Some(identity.id),
            PartitionPart::BuiltIn(_) => None,
        })
    }

    /// Whether a client can choose its counter, by making up a value of some entry.
    pub(crate) fn is_written_by_client(&self) -> bool {
        let Self::By { entries, .. } = self else { return false };
        entries.iter().any(|entry| match entry {
            PartitionPart::Identity(identity) => {
                identity.sources.iter().any(|source| source.kind.is_written_by_client)
            }
            PartitionPart::BuiltIn(fact) => *fact != BuiltIn::Route,
        })
    }

    /// Whether a client can leave the policy by leaving out a value.
    pub(crate) fn can_be_left(&self) -> bool {
        let Self::By { entries, on_missing: OnMissing::Skip, .. } = self else { return false };
        entries.iter().any(|entry| match entry {
            PartitionPart::Identity(identity) => {
                let is_address = |fact: &Fact| fact.lookup.prefixes().is_some();
                !identity.sources.iter().any(|source| source.facts.iter().all(is_address))
            }
            PartitionPart::BuiltIn(_) => false,
        })
    }

    /// Whether `identity` is one of its entries.
    pub(crate) fn counts_by(&self, identity: &Arc<Identity>) -> bool {
        let Self::By { entries, .. } = self else { return false };
        entries.iter().any(
            |entry| matches!(entry, PartitionPart::Identity(own) if Arc::ptr_eq(own, identity)),
        )
    }

    /// The name of the identity among its entries that `is_meant`.
    pub(crate) fn name_of(&self, is_meant: impl Fn(&Identity) -> bool) -> Option<&str> {
        let Self::By { entries, .. } = self else { return None };
        entries.iter().find_map(|entry| match entry {
            PartitionPart::Identity(identity) => is_meant(identity).then_some(&*identity.name),
            PartitionPart::BuiltIn(_) => None,
        })
    }

    /// The counter that `facts` belong to.
    pub(crate) fn party<'c>(&'c self, facts: &Facts<'c>, digester: &Digester) -> Party {
        let (head, entries, on_missing) = match self {
            Self::Everyone(key) => {
                return Party::Counter { key: Arc::clone(key), address: None, named: true };
            }
            Self::By { head, entries, on_missing } => (head, entries, *on_missing),
            Self::Hosted(_) => return Party::Uncounted,
        };
        let mut key = facts.take_key_scratch();
        key.push_str(head);
        let party = match Self::write(entries, on_missing, &mut key, facts, digester) {
            Ok((address, named)) => {
                key::close(&mut key, head.len(), digester);
                Party::Counter { key: key.as_str().into(), address, named }
            }
            Err(without) => without,
        };
        key.clear();
        facts.keep_key_scratch(key);
        party
    }

    /// Appends the entries to a key. Returns the client's address, if a part was read from it, and
    /// whether the request has every value; or what becomes of a request that lacks one.
    fn write<'c>(
        entries: &'c [PartitionPart],
        on_missing: OnMissing,
        key: &mut String,
        facts: &Facts<'c>,
        digester: &Digester,
    ) -> Result<(Option<IpAddr>, bool), Party> {
        let (mut address, mut named) = (None, true);
        for (i, entry) in entries.iter().enumerate() {
            if i > 0 {
                key.push(',');
            }
            match (entry.write(key, facts, digester), on_missing) {
                (Yield::Value(by), _) => address = address.or(by),
                (Yield::Nothing, OnMissing::Skip) => return Err(Party::Uncounted),
                (Yield::Nothing | Yield::Ambiguous, OnMissing::Deny) => return Err(Party::Denied),
                // A value given twice counts even under `skip`. Otherwise a client could bypass the
                // policy by sending it twice.
                (Yield::Nothing, OnMissing::Shared) | (Yield::Ambiguous, _) => {
                    key.push_str(key::MISSING);
                    named = false;
                }
            }
        }
        Ok((address, named))
    }

    /// The key of the counter whose partition is `encoded`.
    pub(crate) fn key_of(&self, encoded: &str, digester: &Digester) -> Arc<str> {
        match self {
            Self::Everyone(key) => Arc::clone(key),
            Self::By { head, .. } => {
                let mut key = format!("{head}{encoded}");
                key::close(&mut key, head.len(), digester);
                key.into()
            }
            // Only documents name partitions.
            Self::Hosted(_) => encoded.into(),
        }
    }

    /// The only part, if every partition consists of one value that always comes from the same
    /// source.
    pub(crate) fn single(&self) -> Option<EncodedEntry<'_>> {
        let forms = self.forms();
        let [sources] = forms.as_slice() else { return None };
        let [parts] = sources.as_slice() else { return None };
        let [part] = parts.as_slice() else { return None };
        Some(*part)
    }

    /// What each entry of an encoded partition looks like: its parts in order, one sequence for
    /// each source. With [`shares`](Self::shares), each entry may be [`key::MISSING`] instead.
    pub(crate) fn forms(&self) -> Vec<Vec<Vec<EncodedEntry<'_>>>> {
        let Self::By { entries, .. } = self else { return Vec::new() };
        let forms = entries.iter().map(|entry| match entry {
            PartitionPart::Identity(identity) => {
                identity.sources.iter().map(IdentitySource::parts).collect()
            }
            PartitionPart::BuiltIn(fact) => {
                let value = PartValue::BuiltIn(*fact);
                vec![vec![EncodedEntry { label: fact.name(), secrecy: Secrecy::Plain, value }]]
            }
        });
        forms.collect()
    }

    /// The forms as reports to operators show them, with the names of the configuration.
    pub(crate) fn reported(&self) -> Vec<PartitionEntry> {
        if let Self::Hosted(entries) = self {
            return entries.to_vec();
        }
        let Self::By { entries, on_missing, .. } = self else { return Vec::new() };
        let named = entries.iter().zip(self.forms()).map(|(entry, sources)| {
            let name = match entry {
                PartitionPart::Identity(identity) => String::from(&*identity.name),
                PartitionPart::BuiltIn(fact) => fact.name().to_owned(),
            };
            let form = |parts: Vec<EncodedEntry<'_>>| {
                let parts: Vec<String> = parts.into_iter().map(EncodedEntry::reported).collect();
                parts.join(",")
            };
            let mut forms: Vec<String> = sources.into_iter().map(form).collect();
            // A value given twice counts as missing too, unless such requests are refused.
            if *on_missing != OnMissing::Deny {
                forms.push(key::MISSING.to_owned());
            }
            PartitionEntry { name, forms }
        });
        named.collect()
    }

    /// Whether requests that lack a value share a counter.
    pub(crate) fn shares(&self) -> bool {
        matches!(self, Self::By { on_missing: OnMissing::Shared, .. })
    }
}

impl PartitionPart {
    /// Appends its value and returns the address that the value was read from, if any. Appends
    /// nothing if there is no value.
    fn write<'c>(&'c self, out: &mut String, facts: &Facts<'c>, digester: &Digester) -> Yield {
        let (name, value) = match self {
            Self::Identity(identity) => return identity.write(out, facts, digester),
            Self::BuiltIn(fact) => {
                let value = match fact {
                    BuiltIn::Method => facts.method(),
                    BuiltIn::Host => facts.host(),
                    BuiltIn::Path => facts.path().map(path::without_slash),
                    BuiltIn::Route => facts.route(),
                };
                (fact.name(), value)
            }
        };
        let Some(value) = value else { return Yield::Nothing };
        key::write_entry(out, name, value, Secrecy::Plain, digester);
        Yield::Value(None)
    }
}

impl IdentitySource {
    /// The parts that it writes.
    fn parts(&self) -> Vec<EncodedEntry<'_>> {
        fn part(fact: &Fact) -> EncodedEntry<'_> {
            EncodedEntry {
                label: &fact.label,
                secrecy: fact.secrecy,
                value: PartValue::Source(&*fact.lookup),
            }
        }
        self.facts.iter().map(part).collect()
    }
}

impl EncodedEntry<'_> {
    /// How many leading bits of an address it counts by. `None` if it is no address.
    pub(crate) fn prefixes(&self) -> Option<Prefixes> {
        match self.value {
            PartValue::Source(lookup) => lookup.prefixes(),
            PartValue::BuiltIn(_) => None,
        }
    }

    /// How a form of [`PartitionEntry`] shows it.
    fn reported(self) -> String {
        match (self.secrecy, self.prefixes().and_then(Prefixes::reported)) {
            (Secrecy::Secret, _) => format!("{}=~", self.label),
            (Secrecy::Plain, Some(prefixes)) => format!("{}={prefixes}", self.label),
            (Secrecy::Plain, None) => self.label.to_owned(),
        }
    }

    /// Appends the entry of the value `raw`, normalized as in requests.
    ///
    /// # Errors
    /// What the value must be instead.
    pub(crate) fn write(
        self,
        out: &mut String,
        raw: &[u8],
        digester: &Digester,
    ) -> Result<(), &'static str> {
        let value = match self.value {
            PartValue::Source(lookup) => lookup.spell(raw)?,
            PartValue::BuiltIn(BuiltIn::Method) => raw.to_ascii_uppercase(),
            PartValue::BuiltIn(BuiltIn::Host) => host::normalize(raw.into()).into_owned(),
            PartValue::BuiltIn(BuiltIn::Path) => {
                path::without_slash(&path::normalize(raw)).to_vec()
            }
            PartValue::BuiltIn(BuiltIn::Route) => raw.into(),
        };
        key::write_entry(out, self.label, &value, self.secrecy, digester);
        Ok(())
    }
}
