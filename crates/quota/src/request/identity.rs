//! Whom a request counts for: where an identity is read from, and how it is written.
//!
//! The sources of an identity are asked in their order, and the first that yields a value wins. A value that
//! the client gives more than once names nobody, and ends the search: a later source would be the choice of
//! whoever sends it twice.

use std::net::IpAddr;
use std::rc::Rc;

use crate::request::Request;
use crate::request::fact::{Fact, Found};
use crate::request::facts::{Facts, Resolved};
use crate::request::key::{self, Digester, Secrecy};

/// What the configuration gives a name.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Its name in the configuration.
    pub(crate) name: Box<str>,
    /// At least one.
    pub(crate) sources: Vec<Source>,
}

/// Where a value is read from.
#[derive(Debug)]
pub(crate) enum Source {
    /// One fact.
    One(Fact, Secrecy),
    /// Several verified claims: all of them must be there.
    All(Vec<Fact>),
    /// The client's address; of IPv6 the first so many bits, 1 to 128.
    ClientIp(u8),
}

/// What a source, or an entry of a partition, yields.
pub(crate) enum Yield {
    /// A value, which is written; and the address that it was made of.
    Value(Option<IpAddr>),
    /// None: the next source is asked.
    Nothing,
    /// A value that was given more than once.
    Ambiguous,
}

impl Identity {
    /// Its value in a request: that of the first source that yields one. Found out once.
    pub(crate) fn of<'c, R: Request>(
        self: &'c Rc<Self>,
        facts: &Facts<'c, R>,
        digester: &Digester,
    ) -> Resolved {
        facts.resolved(Rc::as_ptr(self).cast(), || self.resolve(facts, digester))
    }

    fn resolve<'c, R: Request>(&'c self, facts: &Facts<'c, R>, digester: &Digester) -> Resolved {
        // Room for a label and an ordinary value.
        let mut text = String::with_capacity(64);
        for source in &self.sources {
            match source.write(&mut text, facts, digester) {
                Yield::Value(address) => return Resolved::Value { text: text.into(), address },
                Yield::Nothing => {}
                Yield::Ambiguous => return Resolved::Ambiguous,
            }
        }
        Resolved::Missing
    }
}

impl Source {
    /// Appends its entries; nothing, unless it yields a value.
    fn write<'c, R: Request>(&'c self, out: &mut String, facts: &Facts<'c, R>, digester: &Digester) -> Yield {
        match self {
            Self::One(fact, secrecy) => match facts.look_up(fact) {
                Found::Value(value) => key::write_entry(out, &fact.label, &value, *secrecy, digester),
                Found::Missing => return Yield::Nothing,
                Found::Ambiguous => return Yield::Ambiguous,
            },
            Self::All(all) => {
                let mut values = Vec::with_capacity(all.len());
                for fact in all {
                    match facts.look_up(fact) {
                        Found::Value(value) => values.push((fact, value)),
                        Found::Missing => return Yield::Nothing,
                        Found::Ambiguous => return Yield::Ambiguous,
                    }
                }
                for (i, (fact, value)) in values.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    key::write_entry(out, &fact.label, value, Secrecy::Plain, digester);
                }
            }
            Self::ClientIp(ipv6_prefix) => {
                let Some(address) = facts.address() else { return Yield::Nothing };
                let network = network(address, *ipv6_prefix);
                key::write_entry(out, key::IP, network.as_bytes(), Secrecy::Plain, digester);
                return Yield::Value(Some(address));
            }
        }
        Yield::Value(None)
    }
}

/// The text of an address: an IPv6 address by its first `ipv6_prefix` bits.
pub(crate) fn network(address: IpAddr, ipv6_prefix: u8) -> String {
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
