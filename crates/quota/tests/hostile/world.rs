//! A request with known facts, and several ways to spell them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use quotagate_quota::request::{HeaderValues, Request};

use crate::choices::Choices;

/// A fact of a request other than its method, host, path, route and address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fact {
    Header(String),
    Cookie(String),
    Query(String),
    /// The metadata namespace, and the path below it.
    Metadata(String, Vec<String>),
    Peer(&'static str),
}

/// The values that a request is meant to have.
#[derive(Debug)]
pub struct World {
    /// A header, cookie or parameter may have several values.
    pub facts: BTreeMap<Fact, Vec<Vec<u8>>>,
    pub method: Vec<u8>,
    pub host: Vec<u8>,
    /// Segments without slashes.
    pub path: Vec<Vec<u8>>,
    pub route: Vec<u8>,
    pub address: Option<IpAddr>,
}

/// One way to spell a world as a request.
#[derive(Debug, Default)]
pub struct Written {
    method: Vec<u8>,
    target: Vec<u8>,
    authority: Vec<u8>,
    route: Vec<u8>,
    address: Option<String>,
    headers: BTreeMap<String, Vec<Vec<u8>>>,
    metadata: BTreeMap<(String, Vec<String>), Vec<u8>>,
    peers: BTreeMap<&'static str, Vec<u8>>,
}

impl World {
    pub fn choose(facts: &[Fact], choices: &mut Choices<'_>) -> Self {
        let facts = facts.iter().map(|fact| {
            let most = if matches!(fact, Fact::Metadata(..) | Fact::Peer(_)) { 1 } else { 2 };
            let values =
                (0..*choices.of(&[1, 1, 1, 0, most])).map(|_| value(fact, choices)).collect();
            (fact.clone(), values)
        });
        let facts = facts.collect();
        let path = (0..choices.below(4)).map(|_| {
            let segment: Vec<u8> =
                choices.bytes().into_iter().filter(|b| !matches!(b, b'/' | b'\\' | b';')).collect();
            if matches!(&*segment, b"" | b"." | b"..") { b"s".to_vec() } else { segment }
        });
        let path = path.collect();
        let mut host: Vec<u8> =
            choices.bytes().into_iter().filter(|b| !b":@%".contains(b)).collect();
        host.make_ascii_lowercase();
        host.insert(0, b'h');
        if host.ends_with(b".") {
            host.push(b'h');
        }
        let mut method = choices.bytes();
        method.make_ascii_uppercase();
        let octets: Vec<u8> = (0..16).map(|_| *choices.of(&[0, 1, 0xff, 0xdb, 0x20])).collect();
        let address = match choices.below(3) {
            0 => Some(IpAddr::from([octets[0], octets[1], octets[2], octets[3]])),
            1 => Some(IpAddr::from(<[u8; 16]>::try_from(octets).unwrap()).to_canonical())
                // Teredo's addresses hold an IPv4 address.
                .filter(|address| !matches!(address, IpAddr::V6(v6) if v6.segments().starts_with(&[0x2001, 0]))),
            _ => None,
        };
        Self { facts, method, host, path, route: choices.bytes(), address }
    }

    pub fn write(&self, choices: &mut Choices<'_>) -> Written {
        let mut written = Written {
            method: any_case(&self.method, choices),
            target: self.target(choices),
            authority: [
                choices.text(&["", "user@", "a:b@c%40"]),
                &percent(&any_case(&self.host, choices), b"", false, choices),
            ]
            .concat(),
            route: self.route.clone(),
            address: self.address.map(|address| match (address, choices.yes()) {
                (IpAddr::V4(v4), true) => match choices.below(4) {
                    0 => format!("[::ffff:{v4}]:1"),
                    1 => format!("[64:ff9b::{v4}]:1"),
                    2 => {
                        let bits = v4.to_bits();
                        format!("[2002:{:x}:{:x}:db::1]:1", bits >> 16, bits & 0xffff)
                    }
                    _ => {
                        let bits = !v4.to_bits();
                        format!("[2001:0:1:2:3:4:{:x}:{:x}]:1", bits >> 16, bits & 0xffff)
                    }
                },
                (IpAddr::V4(v4), false) => format!("{v4}:0"),
                (IpAddr::V6(v6), true) => format!("[{v6}]:443"),
                (IpAddr::V6(v6), false) => v6.to_string(),
            }),
            ..Written::default()
        };
        written
            .authority
            .extend_from_slice(choices.text(&["", ":8080", ".", ".:1", "..", "%2E:1"]));
        let (mut query, mut cookies) = (Vec::new(), Vec::new());
        for (fact, values) in &self.facts {
            for value in values {
                match fact {
                    Fact::Header(name) => {
                        let spaced =
                            [choices.text(&["", " ", "\t "]), value, choices.text(&["", " "])];
                        written.headers.entry(name.clone()).or_default().push(spaced.concat());
                    }
                    Fact::Cookie(name) => cookies.push(
                        [name.as_bytes(), b"=", &percent(value, b"%; \t\"\\", false, choices)]
                            .concat(),
                    ),
                    Fact::Query(name) => query.push(
                        [
                            percent(name.as_bytes(), b"%&=#+", true, choices),
                            b"=".to_vec(),
                            percent(value, b"%&#+", true, choices),
                        ]
                        .concat(),
                    ),
                    Fact::Metadata(filter, path) => {
                        written.metadata.insert((filter.clone(), path.clone()), value.clone());
                    }
                    Fact::Peer(name) => {
                        written.peers.insert(name, value.clone());
                    }
                }
            }
        }
        if !query.is_empty() {
            written.target.push(b'?');
            written.target.extend(query.join(&b'&'));
        }
        // In one header or in several.
        let cookies = if choices.yes() { vec![cookies.join(&b"; "[..])] } else { cookies };
        written.headers.insert("cookie".to_owned(), cookies);
        written
    }

    fn target(&self, choices: &mut Choices<'_>) -> Vec<u8> {
        let mut target = Vec::new();
        for segment in &self.path {
            const SLASHES: &[&str] = &[
                "/",
                "//",
                "/./",
                "/x/../",
                "\\",
                "/%2e/",
                "/a/b/..//%2e%2E/",
                "/;a/",
                "/x/..;a/",
            ];
            target.extend_from_slice(choices.text(SLASHES));
            target.extend(percent(segment, b"%?#", false, choices));
            target.extend_from_slice(choices.text(&["", ";", ";v=1", "%3bv", ";a;b"]));
        }
        if !target.is_empty() {
            target.extend_from_slice(choices.text(&["", "/", "/;a"]));
        }
        if target.is_empty() { b"/".to_vec() } else { target }
    }
}

fn value(fact: &Fact, choices: &mut Choices<'_>) -> Vec<u8> {
    match fact {
        Fact::Metadata(..) => match choices.below(3) {
            0 => choices.bytes(),
            1 => choices
                .of(&[42.0, 0.0, -0.0, 0.1, 1e300, 9_007_199_254_740_992.0, f64::NAN])
                .to_le_bytes()
                .to_vec(),
            _ => vec![choices.byte() % 3],
        },
        Fact::Header(_) => {
            // Surrounding whitespace is not part of a value.
            let mut value = choices.bytes();
            for end in [0, value.len().saturating_sub(1)] {
                if let Some(byte @ (b' ' | b'\t')) = value.get_mut(end) {
                    *byte = b'e';
                }
            }
            value
        }
        _ => choices.bytes(),
    }
}

fn any_case(text: &[u8], choices: &mut Choices<'_>) -> Vec<u8> {
    let (even, odd) = (choices.yes(), choices.yes());
    let spell = |(i, byte): (usize, &u8)| match if i % 2 == 0 { even } else { odd } {
        true => byte.to_ascii_lowercase(),
        false => byte.to_ascii_uppercase(),
    };
    text.iter().enumerate().map(spell).collect()
}

/// Encodes the bytes that need it as `%XX`, and perhaps others. In a form, a space may become `+`.
fn percent(text: &[u8], needed: &[u8], form: bool, choices: &mut Choices<'_>) -> Vec<u8> {
    let (every, upper, plus) = (choices.below(4), choices.yes(), choices.yes());
    let mut out = Vec::new();
    for (i, &byte) in text.iter().enumerate() {
        match byte {
            b' ' if form && plus => out.push(b'+'),
            _ if needed.contains(&byte) || (every > 0 && i % every == 0) => {
                let escaped = if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
                out.extend_from_slice(escaped.as_bytes());
            }
            _ => out.push(byte),
        }
    }
    out
}

impl Request for Written {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        Some((&*self.method).into())
    }
    fn path(&self) -> Option<Cow<'_, [u8]>> {
        Some((&*self.target).into())
    }
    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        Some((&*self.authority).into())
    }
    fn header(&self, name: &str) -> HeaderValues<'_> {
        self.headers.get(name).into_iter().flatten().map(Cow::from).collect()
    }
    fn metadata(&self, filter: &str, path: &[Box<str>]) -> Option<Vec<u8>> {
        let path = path.iter().map(ToString::to_string).collect();
        self.metadata.get(&(filter.to_owned(), path)).cloned()
    }
    fn attribute(&self, path: &[&str]) -> Option<Vec<u8>> {
        let ["connection", name] = path else { return None };
        let kind = name.strip_suffix("_peer_certificate")?;
        self.peers.get(kind.strip_suffix("_san").unwrap_or(kind)).cloned()
    }
    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        self.address.as_ref().map(|address| address.as_bytes().into())
    }
    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        Some((&*self.route).into())
    }
}
