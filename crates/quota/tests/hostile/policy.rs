//! A policy that counts by any mix of sources, and the client that it counts a request for, by the
//! rules of the contract.

use serde_json::{Value, json};

use crate::choices::Choices;
use crate::world::{Fact, World};

/// A policy: the entries that it counts by.
#[derive(Debug)]
pub struct Policy {
    pub entries: Vec<Entry>,
    pub shared: bool,
}

#[derive(Debug)]
pub enum Entry {
    Identity(Vec<Source>),
    BuiltIn(&'static str),
}

#[derive(Debug)]
pub enum Source {
    /// Facts that must all be present, with their labels.
    Facts(Vec<(String, Fact)>, Kind),
    Secret(String, Fact),
    /// The prefixes of IPv4 and IPv6.
    ClientIp(u8, u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Raw,
    Text,
    Number,
    Boolean,
}

/// The meant value of an entry of a partition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meant {
    Value { label: String, value: Vec<u8>, secret: bool },
    Number { label: String, bits: u64 },
    Shared,
}

const NAMES: &[&str] = &["a", "b", "a.b", "A", "a%2Eb", "x~y"];
const MEMBERS: &[&str] = &["a", "b", "a.b", "a,b=c", "{k\u{e4}}", "~", "groups|0", "https://x.y/z"];

impl Policy {
    pub fn choose(choices: &mut Choices<'_>) -> Self {
        let mut built_in = vec!["method", "host", "path", "route"];
        let entries = (0..=choices.below(4)).map(|_| {
            if choices.below(3) == 1 && !built_in.is_empty() {
                return Entry::BuiltIn(built_in.remove(choices.below(built_in.len())));
            }
            Entry::Identity((0..=choices.below(3)).map(|_| Source::choose(choices)).collect())
        });
        Self { entries: entries.collect(), shared: choices.yes() }
    }

    /// The entry as a user writes it.
    pub fn document(&self) -> Value {
        let mut identities = serde_json::Map::new();
        let mut names = Vec::new();
        for (i, entry) in self.entries.iter().enumerate() {
            names.push(match entry {
                Entry::BuiltIn(name) => (*name).to_owned(),
                Entry::Identity(sources) => {
                    let sources: Vec<_> = sources.iter().map(Source::document).collect();
                    identities.insert(format!("i{i}"), json!(sources));
                    format!("i{i}")
                }
            });
        }
        let on_missing = if self.shared { "shared" } else { "skip" };
        json!({
            "domain": "d", "store": {"cluster": "s"}, "identities": identities,
            "policies": [{"name": "p", "quota": 1, "window": "1s", "partition_by": names, "on_missing": on_missing}],
        })
    }

    /// Every fact that the policy may read.
    pub fn facts(&self) -> Vec<Fact> {
        let mut facts = Vec::new();
        for entry in &self.entries {
            let Entry::Identity(sources) = entry else { continue };
            for source in sources {
                match source {
                    Source::Facts(all, _) => facts.extend(all.iter().map(|(_, fact)| fact.clone())),
                    Source::Secret(_, fact) => facts.push(fact.clone()),
                    Source::ClientIp(..) => {}
                }
            }
        }
        facts
    }

    /// The client that a request counts for. `None` if the policy does not apply to it.
    pub fn meant(&self, world: &World) -> Option<Vec<Meant>> {
        let mut meant = Vec::new();
        for entry in &self.entries {
            match (entry.meant(world), self.shared) {
                (Ok(Some(entry)), _) => meant.extend(entry),
                (Ok(None), true) | (Err(Ambiguous), _) => meant.push(Meant::Shared),
                (Ok(None), false) => return None,
            }
        }
        Some(meant)
    }
}

impl Entry {
    fn meant(&self, world: &World) -> Result<Option<Vec<Meant>>, Ambiguous> {
        let name = match self {
            Self::Identity(sources) => {
                for source in sources {
                    if let Some(meant) = source.meant(world)? {
                        return Ok(Some(meant));
                    }
                }
                return Ok(None);
            }
            Self::BuiltIn(name) => *name,
        };
        let value = match name {
            "method" => world.method.clone(),
            "host" => world.host.clone(),
            "path" => [b"/", &*world.path.join(&b'/')].concat(),
            _ => world.route.clone(),
        };
        let entry = Meant::Value { label: name.to_owned(), value, secret: false };
        Ok((!matches!(&entry, Meant::Value { value, .. } if value.is_empty())).then(|| vec![entry]))
    }
}

/// A value was given more than once.
struct Ambiguous;

impl Source {
    fn choose(choices: &mut Choices<'_>) -> Self {
        let name = |choices: &mut Choices<'_>| (*choices.of(NAMES)).to_owned();
        let members = |choices: &mut Choices<'_>| -> Vec<String> {
            (0..=choices.below(2)).map(|_| (*choices.of(MEMBERS)).to_owned()).collect()
        };
        let kind =
            |choices: &mut Choices<'_>| *choices.of(&[Kind::Text, Kind::Number, Kind::Boolean]);
        let (label, fact) = match choices.below(7) {
            0 => {
                let name = name(choices).to_lowercase();
                (format!("header.{}", encode(&name, false)), Fact::Header(name))
            }
            1 => {
                let name = name(choices);
                (format!("cookie.{}", encode(&name, false)), Fact::Cookie(name))
            }
            2 => {
                let name = (*choices.of(MEMBERS)).to_owned();
                (format!("query.{}", encode(&name, false)), Fact::Query(name))
            }
            3 => {
                let name = *choices.of(&["uri", "dns", "subject"]);
                return Self::Facts(vec![(format!("peer.{name}"), Fact::Peer(name))], Kind::Raw);
            }
            4 => {
                let (filter, path) = ((*choices.of(MEMBERS)).to_owned(), members(choices));
                let names: Vec<_> =
                    std::iter::once(&filter).chain(&path).map(|n| encode(n, true)).collect();
                let fact = Fact::Metadata(filter, path);
                return Self::Facts(
                    vec![(format!("metadata.{}", names.join(".")), fact)],
                    kind(choices),
                );
            }
            5 => {
                let payload = *choices.of(&["jwt_payload", "payload", "https://idp.eu"]);
                let mut claims: Vec<Vec<String>> =
                    (0..=choices.below(3)).map(|_| members(choices)).collect();
                claims.sort();
                claims.dedup();
                let source = match payload {
                    "jwt_payload" => "jwt".to_owned(),
                    other => format!("jwt@{}", encode(other, true)),
                };
                let claims = claims.into_iter().map(|claim| {
                    let names: Vec<_> = claim.iter().map(|name| encode(name, true)).collect();
                    let path = std::iter::once(payload.to_owned()).chain(claim).collect();
                    (
                        format!("{source}.{}", names.join(".")),
                        Fact::Metadata(JWT_AUTHN.to_owned(), path),
                    )
                });
                return Self::Facts(claims.collect(), kind(choices));
            }
            _ => {
                return Self::ClientIp(
                    *choices.of(&[32, 24, 1, 31]),
                    *choices.of(&[64, 128, 1, 127, 33]),
                );
            }
        };
        match choices.yes() {
            true => Self::Secret(label, fact),
            false => Self::Facts(vec![(label, fact)], Kind::Raw),
        }
    }

    fn document(&self) -> Value {
        let (facts, kind, secret) = match self {
            Self::ClientIp(ipv4, ipv6) => {
                return json!({"client_ip": {"ipv4_prefix": ipv4, "ipv6_prefix": ipv6}});
            }
            Self::Facts(facts, kind) => {
                (facts.iter().map(|(_, fact)| fact).collect(), *kind, false)
            }
            Self::Secret(_, fact) => (vec![fact], Kind::Raw, true),
        };
        let kind = match kind {
            Kind::Number => "number",
            Kind::Boolean => "boolean",
            Kind::Raw | Kind::Text => "string",
        };
        match facts.as_slice() {
            [Fact::Header(name)] => json!({"header": {"name": name, "secret": secret}}),
            [Fact::Cookie(name)] => json!({"cookie": {"name": name, "secret": secret}}),
            [Fact::Query(name)] => json!({"query": {"name": name, "secret": secret}}),
            [Fact::Peer("subject")] => json!({"peer": {"subject": true}}),
            [Fact::Peer(san)] => json!({"peer": {"san": san}}),
            [Fact::Metadata(filter, path)] if filter != JWT_AUTHN => {
                json!({"metadata": {"filter": filter, "path": path, "type": kind}})
            }
            claims => {
                let paths = claims.iter().filter_map(|fact| match fact {
                    Fact::Metadata(_, path) => path.split_first(),
                    _ => None,
                });
                let (payloads, claims): (Vec<_>, Vec<_>) = paths.unzip();
                json!({"jwt": {"payload": payloads[0], "claims": claims, "type": kind}})
            }
        }
    }

    fn meant(&self, world: &World) -> Result<Option<Vec<Meant>>, Ambiguous> {
        match self {
            Self::ClientIp(ipv4, ipv6) => Ok(world.address.map(|address| {
                let value = network(address, *ipv4, *ipv6).into_bytes();
                vec![Meant::Value { label: "ip".to_owned(), value, secret: false }]
            })),
            Self::Secret(label, fact) => Ok(one(world, fact)?
                .map(|value| vec![Meant::Value { label: label.clone(), value, secret: true }])),
            Self::Facts(facts, kind) => {
                let mut all = Vec::new();
                for (label, fact) in facts {
                    let Some(value) = one(world, fact)? else { return Ok(None) };
                    let Some(meant) = kind.meant(label, value) else { return Ok(None) };
                    all.push(meant);
                }
                Ok(Some(all))
            }
        }
    }
}

const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";

impl Kind {
    fn meant(self, label: &str, value: Vec<u8>) -> Option<Meant> {
        let label = label.to_owned();
        let text = |value: Vec<u8>| Meant::Value { label: label.clone(), value, secret: false };
        match self {
            Self::Raw => Some(text(value)),
            Self::Text => {
                let is_text = std::str::from_utf8(&value)
                    .is_ok_and(|t| !t.contains(|c: char| c.is_ascii_control()));
                is_text.then(|| text(value))
            }
            Self::Boolean => match *value {
                [bit @ (0 | 1)] => {
                    Some(text(if bit == 1 { b"true".to_vec() } else { b"false".to_vec() }))
                }
                _ => None,
            },
            Self::Number => {
                let number = f64::from_le_bytes(value.as_slice().try_into().ok()?);
                let control = value.iter().any(u8::is_ascii_control);
                let is_text = !control && std::str::from_utf8(&value).is_ok();
                // Larger whole numbers are not exact. Adding zero turns -0 into 0.
                (number.abs() < 9_007_199_254_740_992.0 && !is_text)
                    .then(|| Meant::Number { label: label.clone(), bits: (number + 0.0).to_bits() })
            }
        }
    }
}

fn one(world: &World, fact: &Fact) -> Result<Option<Vec<u8>>, Ambiguous> {
    match world.facts.get(fact).map_or(&[][..], Vec::as_slice) {
        [] => Ok(None),
        [value] => Ok(Some(value.clone()).filter(|value| !value.is_empty())),
        _ => Err(Ambiguous),
    }
}

fn network(address: std::net::IpAddr, ipv4: u8, ipv6: u8) -> String {
    match address {
        std::net::IpAddr::V6(v6) if ipv6 < 128 => {
            let bits = v6.to_bits() >> (128 - ipv6) << (128 - ipv6);
            format!("{}/{ipv6}", std::net::Ipv6Addr::from_bits(bits))
        }
        std::net::IpAddr::V4(v4) if ipv4 < 32 => {
            let bits = v4.to_bits() >> (32 - ipv4) << (32 - ipv4);
            format!("{}/{ipv4}", std::net::Ipv4Addr::from_bits(bits))
        }
        address => address.to_string(),
    }
}

/// Encodes a label as the contract does. A dot within one of several names is escaped too.
fn encode(name: &str, dots: bool) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_~@:/-".contains(&b) || (b == b'.' && !dots);
    name.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}
