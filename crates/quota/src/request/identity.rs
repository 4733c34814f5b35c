//! Whom a request counts for: identities, where they are read from, and partitions made of them.

use std::net::IpAddr;
use std::rc::Rc;

use crate::request::Request;
use crate::request::facts::Facts;
use crate::request::key::{self, Digester, Secrecy};

/// What a policy counts by.
#[derive(Debug)]
pub(crate) enum Partition {
    /// Every request, in one counter with this key.
    Everyone(Rc<str>),
    /// A counter for each combination of values.
    By {
        /// The key's part before the partition.
        head: Box<str>,
        /// At least one.
        entries: Vec<Entry>,
        /// What becomes of a request that lacks one of them.
        on_missing: OnMissing,
    },
}

/// One value that a partition consists of.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// What the configuration gives a name.
    Identity(Rc<Identity>),
    /// The request's method.
    Method,
    /// The host it is for, without port and in lower case.
    Host,
    /// Its path without query string.
    Path,
    /// The name of the Envoy route.
    Route,
}

/// What becomes of a request that lacks a value of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnMissing {
    /// The policy does not apply to it.
    Skip,
    /// It is refused.
    Deny,
    /// All such requests have one value in common.
    Shared,
}

/// The counter of a request under one policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    /// It has this key.
    Counter(Rc<str>),
    /// None: the policy does not apply.
    Uncounted,
    /// None: the request is to be refused.
    Denied,
}

/// Sources in the order in which they are asked: the first that yields a value wins.
#[derive(Debug)]
pub(crate) struct Identity {
    /// At least one.
    pub(crate) sources: Vec<Source>,
}

/// Where a value is read from. An empty value is a missing one.
#[derive(Debug)]
pub(crate) enum Source {
    /// A header, as the client sent it.
    Header(Fact, Secrecy),
    /// Verified claims: all of them must be there.
    Jwt(Vec<Fact>),
    /// The client's address; of IPv6 the first so many bits, 1 to 128.
    ClientIp(u8),
}

/// Something the host looks up, and its label in a key.
#[derive(Debug)]
pub(crate) struct Fact {
    /// Encoded.
    pub(crate) label: Box<str>,
    /// How to get it.
    pub(crate) lookup: Lookup,
}

/// A question to the host.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The header of this lower-case name.
    Header(Box<str>),
    /// The claim at `path` of the payload under this key.
    Claim {
        /// The key in `jwt_authn`'s metadata.
        payload: Box<str>,
        /// From the outermost member inwards.
        path: Vec<Box<str>>,
    },
}

impl Partition {
    /// The partition of keys that begin with `head`.
    pub(crate) fn new(head: Box<str>, entries: Vec<Entry>, on_missing: OnMissing) -> Self {
        if entries.is_empty() {
            Self::Everyone(format!("{head}{}}}", key::EVERYONE).into())
        } else {
            Self::By { head, entries, on_missing }
        }
    }

    /// The counter that `facts` belong to.
    pub(crate) fn party<'c, R: Request>(&'c self, facts: &Facts<'c, R>, digester: &Digester) -> Party {
        let (head, entries, on_missing) = match self {
            Self::Everyone(key) => return Party::Counter(Rc::clone(key)),
            Self::By { head, entries, on_missing } => (head, entries, *on_missing),
        };
        let mut key = String::with_capacity(head.len() + 64);
        key.push_str(head);
        for (i, entry) in entries.iter().enumerate() {
            if i > 0 {
                key.push(',');
            }
            if !entry.write(&mut key, facts, digester) {
                match on_missing {
                    OnMissing::Skip => return Party::Uncounted,
                    OnMissing::Deny => return Party::Denied,
                    OnMissing::Shared => key.push_str(key::MISSING),
                }
            }
        }
        Party::Counter(key::close(key, head.len(), digester))
    }
}

impl Entry {
    /// Appends it, or says that it is missing and appends nothing.
    fn write<'c, R: Request>(&'c self, out: &mut String, facts: &Facts<'c, R>, digester: &Digester) -> bool {
        let (label, value) = match self {
            Self::Identity(identity) => {
                let text = facts.identity(identity, digester);
                out.push_str(text.as_deref().unwrap_or_default());
                return text.is_some();
            }
            Self::Method => ("method", facts.method()),
            Self::Host => ("host", facts.host()),
            Self::Path => ("path", facts.path()),
            Self::Route => ("route", facts.route()),
        };
        if let Some(value) = value {
            key::write_entry(out, label, value, Secrecy::Plain, digester);
        }
        value.is_some()
    }
}

impl Identity {
    /// The entries of the first source that yields a value; `None` where none does.
    pub(crate) fn resolve<'c, R: Request>(
        &'c self,
        facts: &Facts<'c, R>,
        digester: &Digester,
    ) -> Option<Rc<str>> {
        let mut out = String::new();
        self.sources.iter().find_map(|source| source.write(&mut out, facts, digester))?;
        Some(out.into())
    }
}

impl Source {
    /// Appends its entries; `None`, and nothing appended, where it yields no value.
    fn write<'c, R: Request>(
        &'c self,
        out: &mut String,
        facts: &Facts<'c, R>,
        digester: &Digester,
    ) -> Option<()> {
        match self {
            Self::Header(fact, secrecy) => {
                let value = facts.look_up(&fact.lookup)?;
                key::write_entry(out, &fact.label, &value, *secrecy, digester);
            }
            Self::Jwt(claims) => {
                let values: Option<Vec<_>> = claims.iter().map(|c| facts.look_up(&c.lookup)).collect();
                for (i, (fact, value)) in claims.iter().zip(values?).enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    key::write_entry(out, &fact.label, &value, Secrecy::Plain, digester);
                }
            }
            Self::ClientIp(ipv6_prefix) => {
                let network = network(facts.address()?, *ipv6_prefix);
                key::write_entry(out, "ip", network.as_bytes(), Secrecy::Plain, digester);
            }
        }
        Some(())
    }
}

/// The text of an address: an IPv6 address by its first `ipv6_prefix` bits.
fn network(address: IpAddr, ipv6_prefix: u8) -> String {
    match address {
        IpAddr::V6(v6) if ipv6_prefix < 128 => {
            let host_bits = u128::MAX.checked_shr(ipv6_prefix.into()).unwrap_or(0);
            let network = std::net::Ipv6Addr::from_bits(v6.to_bits() & !host_bits);
            format!("{network}/{ipv6_prefix}")
        }
        address => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_counts_by_its_network() {
        for (address, prefix, text) in [
            ("192.0.2.7", 1, "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"),
            ("2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6"),
            ("2001:db8:1:2:3:4:5:6", 127, "2001:db8:1:2:3:4:5:6/127"),
            ("2001:db8:1:2:3:4:5:7", 127, "2001:db8:1:2:3:4:5:6/127"),
            ("2001:db8:1:2:3:4:5:6", 56, "2001:db8:1::/56"),
            ("ffff::", 1, "8000::/1"),
        ] {
            assert_eq!(network(address.parse().unwrap(), prefix), text);
        }
    }
}
