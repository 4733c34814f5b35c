//! Networks of client addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 or an IPv6 network. A network contains no address of the other family, not even `::/0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    /// Its host bits are 0, and it is not an IPv4 address in IPv6 form.
    address: IpAddr,
    /// At most 32, or 128.
    prefix: u8,
}

/// How many leading bits of an address count as one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefixes {
    /// 1 to 32.
    pub(crate) ipv4: u8,
    /// 1 to 128.
    pub(crate) ipv6: u8,
}

impl Prefixes {
    /// As `ip=/24/64` writes them in a report: of both families, or `/64` where each IPv4 address
    /// counts by itself. `None` where each address does.
    pub(crate) fn reported(self) -> Option<String> {
        match (self.ipv4, self.ipv6) {
            (32, 128) => None,
            (32, ipv6) => Some(format!("/{ipv6}")),
            (ipv4, ipv6) => Some(format!("/{ipv4}/{ipv6}")),
        }
    }

    /// How many bits of this address count.
    pub(crate) fn of(self, address: IpAddr) -> u8 {
        if address.is_ipv4() { self.ipv4 } else { self.ipv6 }
    }
}

/// The address, or the text of the network of its first `prefix` bits, as keys hold it.
pub(crate) fn text(address: IpAddr, prefix: u8) -> String {
    if prefix == bits(address) {
        address.to_string()
    } else {
        Network::of(address, prefix).to_string()
    }
}

/// Why a text is not a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotANetwork {
    /// It is not a network at all.
    Other,
    /// It is another spelling of this one.
    Spelling(Network),
}

impl Network {
    /// Reads `10.0.0.0/8` or `2001:db8::/32`; an address without prefix is a network of one
    /// address.
    ///
    /// # Errors
    /// The network that it should be, if host bits are set or IPv4 is written as IPv6.
    pub(crate) fn parse(text: &str) -> Result<Self, NotANetwork> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NotANetwork::Other)?;
        let prefix = match prefix {
            Some(text) => prefix_of(text, address).ok_or(NotANetwork::Other)?,
            None => bits(address),
        };
        let network = Self::of(address, prefix);
        if network.address == address { Ok(network) } else { Err(NotANetwork::Spelling(network)) }
    }

    /// The network of `prefix` bits that `address` is in.
    fn of(address: IpAddr, prefix: u8) -> Self {
        match address {
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) if prefix >= 96 => Self::of(v4.into(), prefix - 96),
                _ => {
                    let host = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
                    Self { address: Ipv6Addr::from_bits(v6.to_bits() & !host).into(), prefix }
                }
            },
            IpAddr::V4(v4) => {
                let host = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
                Self { address: Ipv4Addr::from_bits(v4.to_bits() & !host).into(), prefix }
            }
        }
    }

    /// The network that counts as one client, if this one is a part of it.
    pub(crate) fn client_network(&self, prefixes: Prefixes) -> Option<Self> {
        let prefix = prefixes.of(self.address);
        (prefix < self.prefix).then(|| Self::of(self.address, prefix))
    }

    /// The address that it begins with.
    pub(crate) const fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether it contains `address`, which is not an IPv4 address in IPv6 form.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && Self::of(address, self.prefix).address == self.address
    }

    /// Whether it contains all of `other`.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The number of leading bits that `text` says. `None` if `address` has fewer, or if it is written
/// with a sign or with more digits than needed.
pub(crate) fn prefix_of(text: &str, address: IpAddr) -> Option<u8> {
    let prefix = text.parse().ok().filter(|prefix: &u8| prefix.to_string() == text);
    prefix.filter(|prefix| *prefix <= bits(address))
}

/// How many bits an address of this family has.
pub(crate) fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_in_one_spelling() {
        for (text, expected) in [
            ("10.0.0.0/8", Ok("10.0.0.0/8")),
            ("0.0.0.0/0", Ok("0.0.0.0/0")),
            ("192.0.2.7", Ok("192.0.2.7/32")),
            ("192.0.2.7/32", Ok("192.0.2.7/32")),
            ("2001:DB8::/32", Ok("2001:db8::/32")),
            ("::/0", Ok("::/0")),
            ("2001:db8::1", Ok("2001:db8::1/128")),
            ("10.1.2.3/8", Err(Some("10.0.0.0/8"))),
            ("2001:db8::1/64", Err(Some("2001:db8::/64"))),
            ("::ffff:10.0.0.0/104", Err(Some("10.0.0.0/8"))),
            ("::ffff:192.0.2.7", Err(Some("192.0.2.7/32"))),
            ("10.0.0.0/33", Err(None)),
            ("::/129", Err(None)),
            ("10.0.0.0/", Err(None)),
            ("10.0.0.0/+8", Err(None)),
            ("10.0.0.0/0008", Err(None)),
            ("10.0.0.0/255.0.0.0", Err(None)),
            ("10.0.0/8", Err(None)),
            ("[::]/0", Err(None)),
            ("", Err(None)),
        ] {
            let read = match Network::parse(text) {
                Ok(network) => Ok(network.to_string()),
                Err(NotANetwork::Spelling(network)) => Err(Some(network.to_string())),
                Err(NotANetwork::Other) => Err(None),
            };
            assert_eq!(
                read,
                expected.map(str::to_owned).map_err(|e| e.map(str::to_owned)),
                "{text}"
            );
        }
    }

    #[test]
    fn address_counts_by_its_first_bits() {
        for (address, prefix, expected) in [
            ("192.0.2.7", 32, "192.0.2.7"),
            ("192.0.2.7", 31, "192.0.2.6/31"),
            ("192.0.2.7", 24, "192.0.2.0/24"),
            ("192.0.2.7", 1, "128.0.0.0/1"),
            ("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64"),
            ("2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6"),
            ("2001:db8:1:2:3:4:5:6", 127, "2001:db8:1:2:3:4:5:6/127"),
            ("2001:db8:1:2:3:4:5:7", 127, "2001:db8:1:2:3:4:5:6/127"),
            ("2001:db8:1:2:3:4:5:6", 56, "2001:db8:1::/56"),
            ("ffff::", 1, "8000::/1"),
        ] {
            assert_eq!(text(address.parse().unwrap(), prefix), expected);
        }
    }

    #[test]
    fn a_network_contains_addresses_of_its_family_with_its_prefix() {
        for (network, address, inside) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::10.0.0.1", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "192.0.2.7", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
        ] {
            let parsed = Network::parse(network).unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), inside, "{network} {address}");
        }
        let covers = |a, b| Network::parse(a).unwrap().covers(&Network::parse(b).unwrap());
        assert!(covers("10.0.0.0/8", "10.1.0.0/16") && covers("10.0.0.0/8", "10.0.0.0/8"));
        assert!(!covers("10.1.0.0/16", "10.0.0.0/8") && !covers("0.0.0.0/0", "::/0"));
    }
}
