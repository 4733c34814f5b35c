//! Conditions on requests, and how a policy document says them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use quotagate_ratelimit::rules::{OtherValues, ValueCase, is_like};
use serde_json::{Map, Value, json};

/// Most rules that come before another one. A document takes fewer: 64 headers, or an expression of
/// 1,024 bytes.
const MAX_OTHERS: usize = 256;
/// The expression for any text. The dot alone does not match a line feed.
pub(super) const ANY: &str = "(?s:.*)";

/// What the value of an entry is read from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ValueSource {
    /// A header, by its name in lower case.
    Header(String),
    /// The method.
    Method,
    /// The host.
    Host,
    /// The path.
    Path,
    /// The client's address that Envoy trusts: so many leading bits, written with them if the value
    /// is a network.
    Address { ipv4: u8, ipv6: u8, is_network: bool },
    /// A parameter of the query string.
    Query(String),
    /// A member of dynamic metadata.
    Metadata { filter: String, path: Vec<String> },
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum ValueTest {
    Exact(String),
    Prefix(String),
    Suffix(String),
    /// The whole value matches.
    Regex(String),
    /// Whether there is one.
    Present(bool),
}

/// A condition on one value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ValueCondition {
    pub(super) of: ValueSource,
    pub(super) test: ValueTest,
}

/// Conditions on a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Conditions {
    /// All of these hold.
    pub(super) all: Vec<ValueCondition>,
    /// None of these holds.
    pub(super) none: Vec<ValueCondition>,
}

/// Whether conditions must hold, or must not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Match,
    Not,
}

impl ValueSource {
    /// The header of this name, or what a policy document calls it.
    pub(super) fn header(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            ":method" => Self::Method,
            ":path" => Self::Path,
            ":authority" | "host" => Self::Host,
            name => Self::Header(name.to_owned()),
        }
    }

    /// Whether every request has one.
    pub(super) fn is_always_there(&self) -> bool {
        matches!(self, Self::Method | Self::Host | Self::Path)
    }

    /// That the value is this text. `None`: it never is.
    fn exact(&self, text: &str) -> Option<ValueTest> {
        if let Self::Address { ipv4, ipv6, is_network } = self {
            // The service compares texts, so only the spelling of Envoy is ever equal.
            let address = text.split_once('/').map_or(text, |(address, _)| address);
            let address = address.parse::<IpAddr>().ok()?;
            let written = match (is_network, address) {
                (false, address) => address.to_string(),
                (true, IpAddr::V4(address)) => {
                    let mask = u32::MAX.checked_shl(32_u32.saturating_sub((*ipv4).into()));
                    let bits = address.to_bits() & mask.unwrap_or_default();
                    format!("{}/{ipv4}", Ipv4Addr::from_bits(bits))
                }
                (true, IpAddr::V6(address)) => {
                    let mask = u128::MAX.checked_shl(128_u32.saturating_sub((*ipv6).into()));
                    let bits = address.to_bits() & mask.unwrap_or_default();
                    format!("{}/{ipv6}", Ipv6Addr::from_bits(bits))
                }
            };
            if written != text {
                return None;
            }
        }
        Some(ValueTest::Exact(text.to_owned()))
    }

    /// That the value matches a pattern with a `*`. `None`: every value does.
    fn like(&self, pattern: &str) -> Result<Option<ValueTest>, String> {
        if pattern.trim_matches('*').is_empty() {
            let is_always_there = self.is_always_there() || matches!(self, Self::Address { .. });
            return Ok((!is_always_there).then_some(ValueTest::Present(true)));
        }
        let inner = pattern.strip_suffix('*').filter(|inner| !inner.contains('*'));
        match (self, inner) {
            (Self::Address { ipv4: 32, is_network: false, .. }, Some(inner)) => {
                network(inner).map(|network| Some(ValueTest::Exact(network))).ok_or_else(|| {
                    format!(
                        "{pattern:?} is no network such as `10.1.*`: write the networks of these \
                         addresses into match.client_ip"
                    )
                })
            }
            (Self::Address { .. }, _) => Err(format!(
                "the pattern {pattern:?} over an address: write the networks of these addresses \
                 into match.client_ip"
            )),
            (_, Some(inner)) => Ok(Some(ValueTest::Prefix(inner.to_owned()))),
            (_, None) => {
                let last = pattern.strip_prefix('*').filter(|last| !last.contains('*'));
                let regex = || {
                    let parts: Vec<String> = pattern.split('*').map(regex_lite::escape).collect();
                    ValueTest::Regex(parts.join(ANY))
                };
                Ok(Some(last.map_or_else(regex, |last| ValueTest::Suffix(last.to_owned()))))
            }
        }
    }
}

/// `10.1.` as `10.1.0.0/16`.
fn network(beginning: &str) -> Option<String> {
    let octets: Vec<&str> = beginning.strip_suffix('.')?.split('.').collect();
    let missing = 4_usize.checked_sub(octets.len()).filter(|missing| *missing > 0)?;
    let address = format!("{}{}", octets.join("."), ".0".repeat(missing));
    let address: Ipv4Addr = address.parse().ok()?;
    Some(format!("{address}/{}", octets.len() * 8))
}

impl Conditions {
    /// Adds that the value of `of` is as a rule wants it. `false`: it never is.
    ///
    /// # Errors
    /// What a document cannot say, and what to do.
    pub(super) fn add(&mut self, of: &ValueSource, case: &ValueCase<'_>) -> Result<bool, String> {
        if let ValueCase::Like(_, others) | ValueCase::Other(others) = case
            && others.most() > MAX_OTHERS
        {
            return Err(format!(
                "more than {MAX_OTHERS} rules of the same level come before it: write a policy that \
                 excludes them by a regex"
            ));
        }
        let others = match case {
            ValueCase::Known => return Ok(true),
            ValueCase::Is(text) => {
                let test = of.exact(text);
                self.all.extend(test.clone().map(|test| condition(of, test)));
                return Ok(test.is_some());
            }
            ValueCase::Like(pattern, others) => {
                self.all.extend(of.like(pattern)?.map(|test| condition(of, test)));
                self.exclude(of, others, |text| is_like(text, pattern));
                others
            }
            ValueCase::Other(others) => {
                self.exclude(of, others, |_| true);
                others
            }
        };
        for pattern in others.patterns() {
            match of.like(pattern)? {
                // What every value matches leaves none.
                None | Some(ValueTest::Present(_)) => return Ok(false),
                Some(test) => self.none.push(condition(of, test)),
            }
        }
        Ok(true)
    }

    fn exclude(
        &mut self,
        of: &ValueSource,
        others: &OtherValues<'_>,
        counts: impl Fn(&str) -> bool,
    ) {
        let texts = others.texts().into_iter().filter(|text| counts(text));
        self.none.extend(texts.filter_map(|text| Some(condition(of, of.exact(text)?))));
    }

    /// The object `match` of a policy.
    ///
    /// # Errors
    /// What a document cannot say, and what to do.
    pub(super) fn document(&self) -> Result<Map<String, Value>, String> {
        let mut object = written(&self.all, Side::Match)?;
        let not = written(&self.none, Side::Not)?;
        if !not.is_empty() {
            object.insert("not".to_owned(), not.into());
        }
        Ok(object)
    }
}

fn condition(of: &ValueSource, test: ValueTest) -> ValueCondition {
    ValueCondition { of: of.clone(), test }
}

fn written(conditions: &[ValueCondition], side: Side) -> Result<Map<String, Value>, String> {
    let mut lists: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let mut paths = Vec::new();
    let mut parameters: BTreeMap<&str, Vec<&ValueTest>> = BTreeMap::new();
    for ValueCondition { of, test } in conditions {
        let (name, value) = match (of, test) {
            (ValueSource::Header(name), test) => {
                let (kind, value) = test.document();
                ("headers", json!({"name": name, kind: value}))
            }
            (ValueSource::Method, ValueTest::Exact(method)) => ("methods", json!(method)),
            (ValueSource::Host, ValueTest::Exact(host)) => ("hosts", json!(host)),
            (ValueSource::Address { .. }, ValueTest::Exact(network)) => {
                ("client_ip", json!(network))
            }
            (ValueSource::Path, test) => {
                paths.push(test);
                continue;
            }
            (ValueSource::Query(name), test) => {
                parameters.entry(name).or_default().push(test);
                continue;
            }
            (of, _) => {
                return Err(format!(
                    "a document has no such condition on {}: write what selects these requests \
                     into match",
                    of.words()
                ));
            }
        };
        let list = lists.entry(name).or_default();
        if !list.contains(&value) {
            list.push(value);
        }
    }
    let mut object = Map::new();
    for (name, list) in lists {
        if side == Side::Match && name != "headers" && list.len() > 1 {
            return Err(format!("no request is as `{name}` must be: remove one of the conditions"));
        }
        object.insert(name.to_owned(), list.into());
    }
    if let Some(test) = one_of(&paths, side)? {
        let (kind, value) = match test {
            ValueTest::Suffix(suffix) => ("suffix", json!(suffix)),
            test => test.document(),
        };
        object.insert("path".to_owned(), json!({kind: value}));
    }
    let mut parameters = parameters.into_iter();
    if let Some((name, tests)) = parameters.next()
        && let Some(test) = one_of(&tests, side)?
    {
        let (kind, value) = test.document();
        object.insert("query".to_owned(), json!({"name": name, kind: value}));
    }
    match parameters.next() {
        None => Ok(object),
        Some((name, _)) => Err(format!(
            "a document has one condition on a parameter of the query string, and {name:?} is a \
             second one: count by it in partition_by"
        )),
    }
}

/// One test that says as much as these.
fn one_of(tests: &[&ValueTest], side: Side) -> Result<Option<ValueTest>, String> {
    match (tests, side) {
        ([], _) => Ok(None),
        ([test], _) => Ok(Some((*test).clone())),
        (tests, Side::Match) if tests.iter().all(|test| Some(test) == tests.first()) => {
            Ok(tests.first().map(|test| (*test).clone()))
        }
        (_, Side::Match) => {
            Err("a document has one condition on this value: join them in a regex".to_owned())
        }
        (tests, Side::Not) => {
            let regexes: Option<Vec<String>> = tests.iter().map(|test| test.regex()).collect();
            let regex = regexes.map(|regexes| ValueTest::Regex(regexes.join("|")));
            regex
                .map(Some)
                .ok_or_else(|| "two conditions exclude each other: remove one".to_owned())
        }
    }
}

impl ValueTest {
    /// Its name and value in a document.
    fn document(&self) -> (&'static str, Value) {
        match self {
            Self::Exact(text) => ("exact", json!(text)),
            Self::Prefix(text) => ("prefix", json!(text)),
            Self::Suffix(text) => ("regex", json!(format!("{ANY}{}", regex_lite::escape(text)))),
            Self::Regex(text) => ("regex", json!(text)),
            Self::Present(is_there) => ("present", json!(is_there)),
        }
    }

    /// The same as an expression that matches the whole value.
    pub(super) fn regex(&self) -> Option<String> {
        Some(match self {
            Self::Exact(text) => regex_lite::escape(text),
            Self::Prefix(text) => format!("{}{ANY}", regex_lite::escape(text)),
            Self::Suffix(text) => format!("{ANY}{}", regex_lite::escape(text)),
            Self::Regex(text) => format!("(?:{text})"),
            Self::Present(_) => return None,
        })
    }
}

impl ValueSource {
    /// What people call it.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Header(name) => format!("the header {name:?}"),
            Self::Method => "the method".to_owned(),
            Self::Host => "the host".to_owned(),
            Self::Path => "the path".to_owned(),
            Self::Address { .. } => "the client's address".to_owned(),
            Self::Query(name) => format!("the parameter {name:?} of the query string"),
            Self::Metadata { filter, path } => {
                format!("the metadata {} of {filter}", path.join("."))
            }
        }
    }

    /// A source of an identity in a document; `None` for what every request has.
    pub(super) fn document(&self) -> Option<Value> {
        Some(match self {
            Self::Header(name) => json!({"header": {"name": name}}),
            Self::Method | Self::Host | Self::Path => return None,
            // The default counts IPv6 addresses by /64.
            Self::Address { ipv4: 32, ipv6, .. } => json!({"client_ip": {"ipv6_prefix": ipv6}}),
            Self::Address { ipv4, ipv6, .. } => {
                json!({"client_ip": {"ipv4_prefix": ipv4, "ipv6_prefix": ipv6}})
            }
            Self::Query(name) => json!({"query": {"name": name}}),
            Self::Metadata { filter, path } => {
                json!({"metadata": {"filter": filter, "path": path}})
            }
        })
    }

    /// What its identity is called, or its name in `partition_by`.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Header(name) | Self::Query(name) => name.clone(),
            Self::Method => "method".to_owned(),
            Self::Host => "host".to_owned(),
            Self::Path => "path".to_owned(),
            Self::Address { is_network: false, .. } => "remote-address".to_owned(),
            Self::Address { ipv4, ipv6, .. } => format!("remote-network-{ipv4}-{ipv6}"),
            Self::Metadata { path, .. } => path.join("."),
        }
    }
}
