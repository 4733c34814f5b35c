//! What a policy grants a partition, and what a request takes of it.
//!
//! The first of these that exists is the quota: the override of the partition or of its network,
//! the dial, `quota_from`, the tier, the policy's own `quota`. A number in a request is decimal
//! digits and nothing else: no sign, no fraction, no inner spaces. A number too long to hold counts
//! as the largest, not as missing.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use quotagate_protocol::MAX_UNITS;
use quotagate_protocol::dials::DocumentOverrides;

use crate::request::fact::{Fact, Found, ValueType, whole_number};
use crate::request::facts::Facts;
use crate::request::network::Network;
use crate::request::pairs::trim;

/// What a policy grants a partition in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// This many units.
    Units(u64),
    /// No limit: the policy does not count the partition.
    Unlimited,
}

/// Where the quota of a partition can come from, besides the policy's own `quota`.
#[derive(Debug, Default)]
pub(crate) struct QuotaSources {
    /// For single partitions and networks.
    pub(crate) overrides: QuotaOverrides,
    /// From a verified fact of the request.
    pub(crate) from: Option<QuotaFrom>,
    /// By the name of a tier.
    pub(crate) tiers: Option<Tiers>,
}

/// Exceptions in their order: the first match wins.
#[derive(Debug, Default)]
pub(crate) struct QuotaOverrides {
    by_key: HashMap<Arc<str>, (usize, Allowance)>,
    networks: Vec<(Network, usize, Allowance)>,
}

/// A quota read from a verified fact.
#[derive(Debug)]
pub(crate) struct QuotaFrom {
    /// The fact that holds the quota.
    pub(crate) fact: Fact,
    /// The same fact as a text of digits, if the document allows one.
    pub(crate) digits: Option<Fact>,
    /// Larger quotas count as this.
    pub(crate) max: u64,
}

/// Quotas by a verified fact.
#[derive(Debug)]
pub(crate) struct Tiers {
    /// The fact that holds the name of the tier.
    pub(crate) fact: Fact,
    /// The quotas by that name, and their positions in the document.
    pub(crate) quotas: BTreeMap<Box<[u8]>, (usize, u64)>,
}

/// The units that a request takes.
#[derive(Debug)]
pub(crate) enum Cost {
    /// Every request takes the same.
    Fixed(NonZeroU64),
    /// A header says how many.
    Header {
        /// Its lower-case name.
        name: Box<str>,
        /// The cost if the header is missing, or is not a whole number of at least 1.
        default: NonZeroU64,
        /// Larger costs count as this, and so does a cost given more than once. At least `default`.
        max: Option<NonZeroU64>,
    },
    /// A number in the request's body, which is JSON, says how many: the greatest of some members.
    RequestJson {
        /// The names of the members of the top-level object.
        members: Box<[Box<str>]>,
        /// The cost if the body has no such whole number of at least 1. The least cost of a body
        /// that is too long or too late to be read as a whole.
        default: NonZeroU64,
        /// Larger costs count as this. At least `default`.
        max: Option<NonZeroU64>,
    },
}

impl QuotaSources {
    /// Whether some partition may have another quota than the policy's own, overrides aside.
    pub(crate) const fn vary(&self) -> bool {
        self.from.is_some() || self.tiers.is_some()
    }

    /// The allowance of the counter `key` for a client at `address`. `quota` is the policy's own.
    /// `dialed` wins over all but overrides.
    pub(crate) fn of<'c>(
        &'c self,
        key: &str,
        address: Option<IpAddr>,
        facts: &Facts<'c>,
        dialed: Option<u64>,
        quota: u64,
    ) -> Allowance {
        self.overrides.find(key, address).unwrap_or_else(|| {
            let verified = || self.from.as_ref().and_then(|from| from.quota(facts));
            let tier = || self.tiers.as_ref().and_then(|tiers| tiers.quota(facts));
            Allowance::Units(dialed.or_else(verified).or_else(tier).unwrap_or(quota))
        })
    }
}

impl QuotaOverrides {
    /// Adds the override at `index` for the counter of this key. An earlier one stays.
    pub(crate) fn add_key(&mut self, key: Arc<str>, index: usize, allowance: Allowance) {
        self.by_key.entry(key).or_insert((index, allowance));
    }

    /// Adds the override at `index` for a network, after those of earlier networks.
    pub(crate) fn add_network(&mut self, network: Network, index: usize, allowance: Allowance) {
        self.networks.push((network, index, allowance));
    }

    /// The index of the override for the counter of this key.
    pub(crate) fn index_of_key(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).map(|(index, _)| *index)
    }

    /// The first override that holds for all of `network`: its index, and its network.
    pub(crate) fn covering(&self, network: &Network) -> Option<(usize, Network)> {
        let (wider, index, _) = self.networks.iter().find(|(wider, ..)| wider.covers(network))?;
        Some((*index, *wider))
    }

    /// The allowances of all overrides.
    pub(crate) fn allowances(&self) -> impl Iterator<Item = Allowance> {
        let by_key = self.by_key.values().map(|(_, allowance)| *allowance);
        by_key.chain(self.networks.iter().map(|(.., allowance)| *allowance))
    }

    /// What they give, as reports to operators say it.
    pub(crate) fn reported(&self) -> DocumentOverrides {
        match self.allowances().any(|allowance| allowance == Allowance::Unlimited) {
            true => DocumentOverrides::Unlimited,
            false if self.allowances().next().is_some() => DocumentOverrides::Quotas,
            false => DocumentOverrides::None,
        }
    }

    fn find(&self, key: &str, address: Option<IpAddr>) -> Option<Allowance> {
        let by_key = if self.by_key.is_empty() { None } else { self.by_key.get(key).copied() };
        let by_network = address.and_then(|address| {
            let found = self.networks.iter().find(|(network, ..)| network.contains(address));
            found.map(|(_, index, allowance)| (*index, *allowance))
        });
        by_key
            .into_iter()
            .chain(by_network)
            .min_by_key(|(index, _)| *index)
            .map(|(_, allowance)| allowance)
    }
}

impl QuotaFrom {
    fn quota<'c>(&'c self, facts: &Facts<'c>) -> Option<u64> {
        let value = |fact: &'c Fact| match fact.lookup.look_up(facts) {
            Found::Value(text) => Some(text),
            Found::Missing | Found::Ambiguous => None,
        };
        let number = match self.fact.value_type {
            // A quota may be larger than an exact number.
            Some(ValueType::Number) => self.fact.lookup.number(facts).and_then(whole_number),
            _ => value(&self.fact).and_then(|text| whole(&text)),
        };
        let digits = || value(self.digits.as_ref()?).and_then(|text| whole(&text));
        Some(number.or_else(digits)?.min(self.max))
    }
}

impl Tiers {
    fn quota<'c>(&'c self, facts: &Facts<'c>) -> Option<u64> {
        let names = self.fact.lookup.look_up_all(facts);
        let tiers = names.iter().filter_map(|name| self.quotas.get(&**name));
        tiers.min().map(|(_, quota)| *quota)
    }
}

impl Cost {
    /// The units that the request with these `facts` takes, as long as its body is not read.
    pub(crate) fn of<'c>(&'c self, facts: &Facts<'c>) -> NonZeroU64 {
        match self {
            Self::Fixed(cost) | Self::RequestJson { default: cost, .. } => *cost,
            Self::Header { name, default, max } => {
                let values = facts.header(name);
                let values = values.as_slice();
                // A comma joins repeated values (RFC 9110).
                let mut given = values.iter().flat_map(|value| value.split(|b| *b == b','));
                match (given.next(), given.next()) {
                    (Some(_), Some(_)) => max.unwrap_or_else(|| largest(values).max(*default)),
                    (only, _) => only.and_then(units).unwrap_or(*default).min(max.unwrap_or(MOST)),
                }
            }
        }
    }
}

/// The cost of a request whose body has this number for [`Cost::RequestJson`].
pub(crate) fn of_body(number: u64, max: Option<NonZeroU64>) -> Option<NonZeroU64> {
    NonZeroU64::new(number).map(|number| number.min(max.unwrap_or(MOST)))
}

/// At least as large as any quota.
const MOST: NonZeroU64 = NonZeroU64::MIN.saturating_add(MAX_UNITS - 1);

/// The largest cost of a header that is given more than once: the filter cannot know which one the
/// upstream believes.
fn largest(values: &[impl AsRef<[u8]>]) -> NonZeroU64 {
    let given = values.iter().flat_map(|value| value.as_ref().split(|b| *b == b','));
    given.filter_map(|value| units(trim(value))).max().unwrap_or(NonZeroU64::MIN).min(MOST)
}

fn units(text: &[u8]) -> Option<NonZeroU64> {
    whole(text).and_then(NonZeroU64::new)
}

/// The number of these decimal digits. A number too long to hold is the largest.
pub(crate) fn whole(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_digits_and_nothing_else() {
        for (text, number) in [
            ("0", Some(0)),
            ("7", Some(7)),
            ("007", Some(7)),
            ("9007199254740993", Some(9_007_199_254_740_993)),
            ("18446744073709551616", Some(u64::MAX)),
            ("", None),
            ("-1", None),
            ("+1", None),
            ("1.0", None),
            ("1e3", None),
            (" 1", None),
            ("1,2", None),
            ("0x10", None),
            ("\u{661}", None),
        ] {
            assert_eq!(whole(text.as_bytes()), number, "{text:?}");
        }
        assert_eq!(whole(&[b'9'; 70_000]), Some(u64::MAX));
        assert_eq!(whole(&[b'0'; 70_000]), Some(0));
        assert_eq!(whole(format!("1{}", "0".repeat(70_000)).as_bytes()), Some(u64::MAX));
    }
}
