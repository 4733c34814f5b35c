//! The source `client_ip`: the client's address that Envoy trusts.

use std::net::IpAddr;

use super::{IdentitySource, Kind};
use crate::document::{Type, Whole, object};
use crate::request::fact::{Fact, Found, LookUp};
use crate::request::facts::Facts;
use crate::request::key::{IP, Secrecy};
use crate::request::network::{self, Prefixes};

const NO_ADDRESS: &str = "an address such as 192.0.2.7 or 2001:db8::1, or the network that counts \
                          as one client by ipv4_prefix or ipv6_prefix of its identity";

pub(super) static KIND: Kind = Kind {
    name: "client_ip",
    #[cfg(feature = "schema")]
    doc: "The client's address that Envoy trusts (`use_remote_address`, `xff_num_trusted_hops`). An IPv6 \
        address that holds an IPv4 address (mapped, NAT64, 6to4, Teredo) is that IPv4 address.",
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
    spell: |_, value| {
        let text = std::str::from_utf8(&value).ok().and_then(spelled);
        text.map(String::into_bytes).ok_or(
            "an address such as 192.0.2.7, or a network such as 192.0.2.0/24 or 2001:db8::/64",
        )
    },
};

object! {
    /// The client's address.
    ClientIp(ClientIpFields<'a>) -> IdentitySource {
        /// The leading bits of an IPv4 address that count as one client: 24 for a network of 256
        /// addresses. By default, each address counts by itself.
        default(32) ipv4_prefix: Whole<1, 32> = 24,
        /// The leading bits of an IPv6 address that count as one client.
        default(64) ipv6_prefix: Whole<1, 128> = 56,
    }
}

impl ClientIpFields<'_> {
    fn build(self) -> Option<IdentitySource> {
        let ipv4 = u8::try_from(self.ipv4_prefix?).ok()?;
        let ipv6 = u8::try_from(self.ipv6_prefix?).ok()?;
        Some(KIND.one(Fact {
            label: IP.into(),
            value_type: None,
            secrecy: Secrecy::Plain,
            lookup: Box::new(Address(Prefixes { ipv4, ipv6 })),
        }))
    }
}

/// The first bits of the client's address.
#[derive(Debug)]
struct Address(Prefixes);

impl LookUp for Address {
    fn look_up<'c>(&'c self, facts: &Facts<'c>) -> Found<'c> {
        let text = facts.address().map(|address| network::text(address, self.0.of(address)));
        text.map_or(Found::Missing, |text| Found::Value(text.into_bytes().into()))
    }

    /// An address, or the network that it counts by.
    fn spell(&self, raw: &[u8]) -> Result<Vec<u8>, &'static str> {
        let text = std::str::from_utf8(raw).map_err(|_| NO_ADDRESS)?;
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address = network::canonical(address.parse().map_err(|_| NO_ADDRESS)?);
        let prefix = self.0.of(address);
        if bits.is_some_and(|bits| bits != prefix.to_string()) {
            return Err(NO_ADDRESS);
        }
        Ok(network::text(address, prefix).into_bytes())
    }

    fn prefixes(&self) -> Option<Prefixes> {
        Some(self.0)
    }
}

/// An address or a network that a person typed, as keys hold it.
fn spelled(text: &str) -> Option<String> {
    let Some((address, prefix)) = text.split_once('/') else {
        return text.parse().ok().map(|address| network::canonical(address).to_string());
    };
    let address: IpAddr = address.parse().ok()?;
    // The bits of an IPv6 address that holds an IPv4 address could be those of either family.
    let prefix = network::prefix_of(prefix, address)
        .filter(|prefix| network::canonical(address) == address && *prefix > 0)?;
    Some(network::text(address, prefix))
}
