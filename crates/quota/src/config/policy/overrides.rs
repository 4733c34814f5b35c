//! The field `overrides` of a policy: quotas of single partitions and networks.
//!
//! If the policy counts by one value that is always read from the same source, a partition is
//! written as its raw value. Otherwise it is encoded as in keys: `jwt.sub=alice,method=GET`. Text
//! that begins with the label of the value and `=` is always encoded, so that a secret can be
//! written as its digest. A raw value may be secret, so no message shows one.

use std::collections::BTreeSet;
use std::sync::Arc;

use quotagate_protocol::MAX_KEY;

use super::quotas::UnitCount;
use crate::document::{At, Node, NonEmpty, Type, object, one_of};
use crate::request::allowance::{Allowance, QuotaOverrides};
use crate::request::key::{self, Digester, Secrecy, is_digest};
use crate::request::network::{Network, NotANetwork};
use crate::request::partition::{EncodedEntry, Partition};
use crate::request::percent;

/// The partition of the policy and the digests of secrets. `None` if either has a fault.
type Whose<'p> = Option<(&'p Partition, &'p Digester)>;

object! {
    /// The quota of one partition or network.
    Override(OverrideFields<'a>) -> OverrideFields<'a> {
        + whom: Whom,
        + allowance: AllowanceType,
        ! in_flight: "write quota: it replaces the policy's quota or in_flight",
    }
}

one_of! {
    /// Whom an override is for.
    Whom<'a> -> Subject<'a> {
        /// The value of the partition. If its identity has several sources, or the policy several
        /// entries, the encoded form such as `jwt.sub=alice`. A secret is written as its digest:
        /// `header.x-api-key=~` and 32 digits, which `quotagate digest` prints.
        value: At<NonEmpty> = "alice" => |(text, at)| Subject::Value(text, at),
        /// The clients of this network (CIDR) or address, if the policy counts by `client_ip`.
        network: At<NetworkType> = "10.0.0.0/8" => |(network, at)| Subject::Network(network, at),
    }
}

one_of! {
    /// What an override grants.
    AllowanceType<'a> -> Allowance {
        /// Replaces the policy's `quota` or `in_flight` for these callers. 0 admits nobody.
        quota: UnitCount = 500 => Allowance::Units,
        /// These callers are not counted at all.
        unlimited: Unlimited = true => |()| Allowance::Unlimited,
    }
}

/// The partition or network of an override, and its node.
pub(crate) enum Subject<'a> {
    Value(&'a str, Node<'a>),
    Network(Network, Node<'a>),
}

impl<'a> OverrideFields<'a> {
    #[allow(
        clippy::unnecessary_wraps,
        reason = "QuotaOverrides are resolved once the partition is known"
    )]
    fn build(self) -> Option<Self> {
        Some(self)
    }
}

/// The overrides in force. `None` if one of them has a fault.
pub(super) fn resolve(
    elements: Vec<Option<OverrideFields<'_>>>,
    at: &Node<'_>,
    whose: Whose<'_>,
) -> Option<QuotaOverrides> {
    if !elements.is_empty() && matches!(whose, Some((Partition::Everyone(_), _))) {
        at.fault(
            "means nothing without partition_by: all requests share one counter, and quota or in_flight is its limit",
        );
        return None;
    }
    let mut overrides = QuotaOverrides::default();
    let mut good = true;
    for (index, element) in elements.into_iter().enumerate() {
        good &=
            element.and_then(|element| add(element, &mut overrides, index, at, whose)).is_some();
    }
    good.then_some(overrides)
}

/// Adds the override at `index`.
fn add(
    element: OverrideFields<'_>,
    overrides: &mut QuotaOverrides,
    index: usize,
    all: &Node<'_>,
    whose: Whose<'_>,
) -> Option<()> {
    let allowance = element.allowance;
    let path = |index: usize| all.element(index).path().to_owned();
    match element.whom? {
        Subject::Value(text, node) => {
            let (partition, digester) = whose?;
            let key = key_of(&node, text, partition, digester)?;
            if let Some(first) = overrides.index_of_key(&key) {
                node.fault(format!("is the same partition as in {}", path(first)));
                return None;
            }
            overrides.add_key(key, index, allowance?);
        }
        Subject::Network(network, node) => {
            let forms = whose?.0.forms();
            if !forms.iter().flatten().flatten().any(|part| part.label == key::IP) {
                node.fault(
                    "matches nobody: partition_by holds no identity with a client_ip source",
                );
                return None;
            }
            match overrides.covering(&network) {
                Some((first, wider)) if wider == network => {
                    node.fault(format!("is the same network as in {}", path(first)));
                    return None;
                }
                Some((first, wider)) => {
                    node.warn(format!(
                        "never counts: {} comes first and covers all of {wider}",
                        path(first)
                    ));
                }
                None => {}
            }
            let allowance = allowance?;
            // 0 units block the address alone: there is no quota for its neighbours to use up.
            if let Allowance::Units(1..) = allowance
                && let Some(client) = client_network(&network, &forms)
            {
                let family = if network.address().is_ipv4() { "ipv4" } else { "ipv6" };
                node.warn(format!(
                    "is a part of {client}, which counts as one client: its neighbours use up this \
                     quota, too. Write {client}, or change {family}_prefix of the identity"
                ));
            }
            overrides.add_network(network, index, allowance);
        }
    }
    Some(())
}

/// The network of the client that `network` is a part of, if some requests count by nothing that
/// tells its addresses from their neighbours. `forms` are those of the partition.
fn client_network(network: &Network, forms: &[Vec<Vec<EncodedEntry<'_>>>]) -> Option<Network> {
    // The networks that a source of an identity counts by. `None` if one of them is not wider.
    let wider = |parts: &Vec<EncodedEntry<'_>>| -> Option<Vec<Network>> {
        let prefixes = parts.iter().filter_map(EncodedEntry::prefixes);
        prefixes.map(|prefixes| network.client_network(prefixes)).collect()
    };
    let mut client = None;
    for sources in forms {
        let mut wide = sources.iter().filter_map(wider).peekable();
        wide.peek()?;
        client = client.or(wide.flatten().next());
    }
    client
}

/// Only `true`.
enum Unlimited {}

impl Type for Unlimited {
    type Out<'a> = ();

    fn read(node: &Node<'_>) -> Option<()> {
        if node.boolean()? {
            Some(())
        } else {
            node.must("true: leave the override out, or give it a quota")
        }
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> serde_json::Value {
        crate::document::True::schema(book)
    }
}

/// A network, or an address.
pub(super) enum NetworkType {}

impl Type for NetworkType {
    type Out<'a> = Network;

    fn read(node: &Node<'_>) -> Option<Network> {
        network(node)
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
        let network = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*)(/[0-9]{1,3})?$";
        serde_json::json!({"type": "string", "pattern": network})
    }
}

fn network(node: &Node<'_>) -> Option<Network> {
    let text = node.string()?;
    match Network::parse(text) {
        Ok(network) => return Some(network),
        Err(NotANetwork::Spelling(network)) => {
            node.fault(format!(
                "must be a network in its one spelling: write {network} for {text:?}"
            ));
        }
        Err(NotANetwork::AnyIpv4) => {
            node.fault(format!(
                "must be an IPv4 network: addresses of {text} count as the IPv4 addresses that they hold"
            ));
        }
        Err(NotANetwork::Other) => {
            node.fault(format!(
                "must be a network such as 10.0.0.0/8 or 2001:db8::/32, is {text:?}"
            ));
        }
    }
    None
}

/// The key of the counter for the partition `text`.
fn key_of(
    node: &Node<'_>,
    text: &str,
    partition: &Partition,
    digester: &Digester,
) -> Option<Arc<str>> {
    let single = partition.single().filter(|single| {
        !text.strip_prefix(single.label).is_some_and(|rest| rest.starts_with('='))
    });
    let mut encoded = String::new();
    match single {
        Some(single) => {
            if let Err(instead) = single.write(&mut encoded, text.as_bytes(), digester) {
                node.fault(format!("must be {instead}"));
                return None;
            }
            if single.secrecy == Secrecy::Secret {
                let label = single.label;
                node.exposes(&format!(
                    "is a secret in clear, and a published document shows it to everyone who reaches the store: \
                     write its digest, {label}=~ and 32 hexadecimal digits, which `quotagate digest --secret {label}` \
                     prints"
                ));
            }
        }
        None => {
            check_encoded(node, text, partition, digester)?;
            encoded.push_str(text);
        }
    }
    Some(partition.key_of(&encoded, digester))
}

/// If `text` cannot be a partition of this policy, records why and returns `None`.
fn check_encoded(
    node: &Node<'_>,
    text: &str,
    partition: &Partition,
    digester: &Digester,
) -> Option<()> {
    if is_digest(text) {
        return Some(());
    }
    node.no_longer_than(text, MAX_KEY)?;
    let entries: Vec<Option<(&str, &str)>> =
        text.split(',').map(|entry| entry.split_once('=')).collect();
    let forms = partition.forms();
    // How many entries of the text the policy's entries so far may take up. Sources differ in their
    // number of parts.
    let mut taken = BTreeSet::from([0]);
    for sources in &forms {
        let mut next = BTreeSet::new();
        for from in taken {
            let rest = entries.get(from..).unwrap_or_default();
            let fits = |parts: &&Vec<EncodedEntry<'_>>| {
                let mut pairs = parts.iter().zip(rest);
                parts.len() <= rest.len()
                    && pairs.all(|(part, entry)| entry.is_some_and(|e| e.0 == part.label))
            };
            next.extend(sources.iter().filter(fits).map(|parts| from + parts.len()));
            if partition.shares() && text.split(',').nth(from) == Some(key::MISSING) {
                next.insert(from + 1);
            }
        }
        taken = next;
    }
    if !taken.contains(&entries.len()) {
        node.fault(format!(
            "must be a partition of this policy in its encoded form, such as {}",
            example(&forms)
        ));
        return None;
    }
    for entry in entries.into_iter().flatten() {
        let parts: Vec<_> =
            forms.iter().flatten().flatten().filter(|part| part.label == entry.0).collect();
        check_value(node, entry, &parts, digester)?;
    }
    Some(())
}

/// If no partition can hold this entry, records why and returns `None`. `parts` have its label.
fn check_value(
    node: &Node<'_>,
    (label, value): (&str, &str),
    parts: &[&EncodedEntry<'_>],
    digester: &Digester,
) -> Option<()> {
    if is_digest(value) {
        return Some(());
    }
    if parts.iter().any(|part| part.secrecy == Secrecy::Secret) {
        node.fault(format!(
            "must have the digest of the secret after {label}=: ~ and 32 hexadecimal digits"
        ));
        return None;
    }
    let raw = percent::decode(value.as_bytes());
    let mut instead = "a value is missing".to_owned();
    for part in parts.iter().filter(|_| !raw.is_empty()) {
        let mut spelled = String::new();
        instead = match part.write(&mut spelled, &raw, digester) {
            Ok(()) if spelled.split_once('=') == Some((label, value)) => return Some(()),
            Ok(()) => format!("write {spelled}"),
            Err(instead) => format!("write {instead}"),
        };
    }
    node.fault(format!("must be in its one spelling: for {label}={value} {instead}"));
    None
}

/// An example partition, from the first source of each entry.
fn example(forms: &[Vec<Vec<EncodedEntry<'_>>>]) -> String {
    let parts = forms.iter().filter_map(|sources| sources.first()).flatten();
    let value = |part: &EncodedEntry<'_>| {
        if part.secrecy == Secrecy::Secret { "~<its digest>" } else { "value" }
    };
    let entries: Vec<_> = parts.map(|part| format!("{}={}", part.label, value(part))).collect();
    entries.join(",")
}
