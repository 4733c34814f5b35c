//! Networks of client addresses.
//!
//! Some IPv6 addresses hold the IPv4 address of a client: those of a translator (RFC 6052) and
//! those of the tunnels 6to4 (RFC 3056) and Teredo (RFC 4380). They count as that address.
//! Otherwise a client could have both, and all IPv4 clients behind a translator would be one `/64`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 or an IPv6 network. A network contains no address of the other family, not even `::/0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    /// Its host bits are 0, and it is [canonical].
    address: IpAddr,
    /// At most 32, or 128.
    prefix: u8,
}

/// The address of the client: of an IPv6 address that holds an IPv4 address, the IPv4 address.
pub(crate) fn canonical(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(v6) => inner(v6).map_or(address, |(v4, _)| v4.into()),
        IpAddr::V4(_) => address,
    }
}

/// The IPv4 address within an IPv6 address, and how many bits precede it.
fn inner(address: Ipv6Addr) -> Option<(Ipv4Addr, u8)> {
    let bits = address.to_bits();
    let last = bits as u32;
    let (v4, preceding) = match address.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => (last, 96),
        [0x2002, ..] => ((bits >> 80) as u32, 16),
        // Its bits are inverted, so that translators on the way do not find it.
        [0x2001, 0, ..] => (!last, 96),
        _ => return None,
    };
    Some((Ipv4Addr::from_bits(v4), preceding))
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
    /// Its addresses count as the IPv4 addresses within them, which are any.
    AnyIpv4,
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
        if network.address == address && !network.holds_any_ipv4() {
            Ok(network)
        } else if network.holds_any_ipv4() {
            Err(NotANetwork::AnyIpv4)
        } else {
            Err(NotANetwork::Spelling(network))
        }
    }

    /// The network of `prefix` bits that `address` is in.
    fn of(address: IpAddr, prefix: u8) -> Self {
        match address {
            IpAddr::V6(v6) => match inner(v6) {
                Some((v4, preceding)) if prefix > preceding => {
                    Self::of(v4.into(), (prefix - preceding).min(32))
                }
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

    /// Whether all its addresses hold an IPv4 address, and any IPv4 address may be among them.
    fn holds_any_ipv4(&self) -> bool {
        match self.address {
            IpAddr::V6(first) => {
                let host = u128::MAX.checked_shr(self.prefix.into()).unwrap_or(0);
                let last = Ipv6Addr::from_bits(first.to_bits() | host);
                let form = |address| inner(address).map(|(_, preceding)| preceding);
                form(first).is_some() && form(first) == form(last)
            }
            IpAddr::V4(_) => false,
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

    /// Whether it contains `address`, which is [canonical].
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
            ("64:ff9b::192.0.2.0/120", Err(Some("192.0.2.0/24"))),
            ("64:ff9b::192.0.2.7", Err(Some("192.0.2.7/32"))),
            ("2002:c000:200::/40", Err(Some("192.0.2.0/24"))),
            ("2002:c000:207:1::/64", Err(Some("192.0.2.7/32"))),
            ("2002:c000:207::1", Err(Some("192.0.2.7/32"))),
            ("2001:0:4136:e378:8000:63bf:3fff:fdf8", Err(Some("192.0.2.7/32"))),
            ("2001:0:4136:e378::/64", Err(None)),
            ("::ffff:0:0/96", Err(None)),
            ("64:ff9b::/96", Err(None)),
            ("2002::/16", Err(None)),
            ("2001::/32", Err(None)),
            ("64:ff9b:1::/48", Ok("64:ff9b:1::/48")),
            ("2000::/3", Ok("2000::/3")),
            ("2001::/16", Ok("2001::/16")),
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
                Err(NotANetwork::Other | NotANetwork::AnyIpv4) => Err(None),
            };
            assert_eq!(
                read,
                expected.map(str::to_owned).map_err(|e| e.map(str::to_owned)),
                "{text}"
            );
        }
    }

    #[test]
    fn ipv6_address_that_holds_an_ipv4_address_is_that_one() {
        for (address, expected) in [
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("64:ff9b::192.0.2.7", "192.0.2.7"),
            ("64:ff9b::c000:207", "192.0.2.7"),
            ("2002:c000:207::", "192.0.2.7"),
            ("2002:c000:207:ffff:1:2:3:4", "192.0.2.7"),
            ("2001:0:4136:e378:8000:63bf:3fff:fdf8", "192.0.2.7"),
            ("192.0.2.7", "192.0.2.7"),
            ("::192.0.2.7", "::192.0.2.7"),
            ("64:ff9b:1::c000:207", "64:ff9b:1::c000:207"),
            ("64:ff9b::1:c000:207", "64:ff9b::1:c000:207"),
            ("2003:c000:207::", "2003:c000:207::"),
            ("2001:db8::1", "2001:db8::1"),
        ] {
            let expected: IpAddr = expected.parse().unwrap();
            assert_eq!(canonical(address.parse().unwrap()), expected, "{address}");
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
