//! The source `client_ip`: the client's address that Envoy trusts.

use std::net::{IpAddr, Ipv6Addr};

use super::{Kind, Source};
use crate::document::{Type, Whole, object};
use crate::request::fact::{Fact, Found, LookUp};
use crate::request::facts::Facts;
use crate::request::key::{IP, Secrecy};

const NO_ADDRESS: &str = "an address such as 192.0.2.7 or 2001:db8::1";

pub(super) static KIND: Kind = Kind {
    name: "client_ip",
    #[cfg(feature = "schema")]
    doc: "The client's address that Envoy trusts (`use_remote_address`, `xff_num_trusted_hops`). An IPv4 \
        address in IPv6 form is an IPv4 address.",
    #[cfg(feature = "schema")]
    example: "{}",
    is_written_by_client: false,
    is_often_secret: false,
    read: ClientIp::read,
    #[cfg(feature = "schema")]
    schema: ClientIp::schema,
    verified: None,
    labels: IP,
    label: |typed| (typed == IP).then(|| typed.to_owned()),
    spell: |value| {
        let text = std::str::from_utf8(&value).ok().and_then(spelled);
        text.map(String::into_bytes).ok_or(
            "an address such as 192.0.2.7, 2001:db8::1, or 2001:db8::/64 for a network of IPv6",
        )
    },
};

object! {
    /// The client's address.
    ClientIp(ClientIpFields<'a>) -> Source {
        /// The leading bits of an IPv6 address that count as one client. Each IPv4 address counts
        /// by itself.
        default(64) ipv6_prefix: Whole<1, 128> = 56,
    }
}

impl ClientIpFields<'_> {
    fn build(self) -> Option<Source> {
        let ipv6_prefix = u8::try_from(self.ipv6_prefix?).ok()?;
        Some(KIND.one(Fact {
            label: IP.into(),
            value_type: None,
            secrecy: Secrecy::Plain,
            lookup: Box::new(Address { ipv6_prefix }),
        }))
    }
}

/// The client's address; for IPv6, its first bits.
#[derive(Debug)]
struct Address {
    /// 1 to 128.
    ipv6_prefix: u8,
}

impl LookUp for Address {
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found {
        let text = facts.address().map(|address| network(address, self.ipv6_prefix));
        text.map_or(Found::Missing, |text| Found::Value(text.into_bytes().into()))
    }

    /// An address, or the network that it counts by.
    fn spell(&self, raw: &[u8]) -> Result<Vec<u8>, &'static str> {
        let text = std::str::from_utf8(raw).map_err(|_| NO_ADDRESS)?;
        let network_of =
            text.strip_suffix(&format!("/{}", self.ipv6_prefix)).filter(|text| text.contains(':'));
        let address: IpAddr = network_of.unwrap_or(text).parse().map_err(|_| NO_ADDRESS)?;
        Ok(network(address.to_canonical(), self.ipv6_prefix).into_bytes())
    }

    fn ipv6_prefix(&self) -> Option<u8> {
        Some(self.ipv6_prefix)
    }
}

/// The text of an address; for IPv6, the text of its first `ipv6_prefix` bits.
fn network(address: IpAddr, ipv6_prefix: u8) -> String {
    match address {
        IpAddr::V6(v6) if ipv6_prefix < 128 => {
            let host_bits = u128::MAX.checked_shr(ipv6_prefix.into()).unwrap_or(0);
            let network = Ipv6Addr::from_bits(v6.to_bits() & !host_bits);
            format!("{network}/{ipv6_prefix}")
        }
        address => address.to_string(),
    }
}

/// An address that a person typed, or a network of IPv6, as keys hold it.
fn spelled(text: &str) -> Option<String> {
    match text.split_once('/') {
        None => text.parse().ok().map(|address: IpAddr| address.to_canonical().to_string()),
        Some((address, bits)) => {
            let bits = bits.parse().ok().filter(|bits| (1..=128).contains(bits))?;
            match address.parse::<IpAddr>().ok()?.to_canonical() {
                address @ IpAddr::V6(_) => Some(network(address, bits)),
                IpAddr::V4(_) => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_address_counts_by_its_network() {
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
