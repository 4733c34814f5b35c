//! How people name a partition, and how that name becomes the text in a counter's key.
//!
//! A name is one or more `label=value`, joined by `,`. People type it or copy it from a key. The
//! same rules serve both:
//!
//! * In labels and values, `%XX` is the byte with these two hexadecimal digits. Every other
//!   character stands for itself. So people can paste what a store, a log or a header shows. They
//!   type `%25` for a `%` before two hexadecimal digits.
//! * A `,` begins another entry if a label and `=`, or an entry `-`, follow it. Any other `,`
//!   belongs to the value, as in `peer.subject=CN=alice,O=Shop`. People type `%2C` for a `,` that
//!   would be misread.
//! * A value that is `~` and 32 hexadecimal digits in lower case is a digest. People type `%7E` for
//!   the `~` of a real value that looks like one.
//! * A value over 128 bytes becomes its digest, as in the filter, and so does a [`Secret`]. Nobody
//!   types a secret into a name: its label alone marks the position.
//! * A value that is `*` alone is refused, because it is no wildcard. People type `%2A`.
//! * `*` is the partition of everyone, `-` a missing value that is shared, `~` and 32 digits alone
//!   a digest of a whole partition.
//!
//! Values are normalized as in the filter, unless that depends on the configuration: methods in
//! upper case, hosts in their one spelling, paths without query, parameters and trailing slash,
//! addresses in the notation of their family. An IPv6 address without `/n` is that one address:
//! only the configuration knows how many bits count.

use std::fmt;

use quotagate_protocol::MAX_KEY;

pub use super::key::is_digest;
use super::key::{self, Digester, MAX_VALUE, Secrecy};
use super::partition::BuiltIn;
use super::{host, path, percent, source};

/// Makes the digests that stand for secret and long values. Never shown.
#[derive(Clone, Debug)]
pub struct DigestKey(Digester);

impl DigestKey {
    /// The key that a filter of `domain` uses if its configuration has no `digest_key`.
    pub fn derived(domain: &str) -> Self {
        Self(Digester::derived(domain))
    }

    /// `digest_key` of the filter's configuration.
    pub fn keyed(key: &[u8]) -> Self {
        Self(Digester::keyed(key))
    }
}

/// A value that keys hold only as a digest.
#[derive(Clone)]
pub struct Secret {
    label: String,
    value: Vec<u8>,
}

impl Secret {
    /// The secret that is counted under `label`, such as `header.x-api-key`.
    ///
    /// # Errors
    /// If the filter writes no such label, or there is no value.
    pub fn new(label: &str, value: Vec<u8>) -> Result<Self, NameError> {
        let label =
            encoded_label(label).ok_or_else(|| NameError::UnknownLabel(label.to_owned()))?;
        let value = match source::kind_of_label(&label) {
            // No error shows a secret. Values of the sources that may be secret are all accepted.
            Some(kind) => (kind.spell)(&label, value).unwrap_or_default(),
            None => value,
        };
        if value.is_empty() { Err(NameError::NoValue(label)) } else { Ok(Self { label, value }) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", self.label)
    }
}

/// Why a text names no partition.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty.
    #[error("a partition is named by label=value, such as jwt.sub=alice; `*` is everyone's")]
    Empty,
    /// It is a value alone.
    #[error("`{0}` lacks its label: write label=value, such as jwt.sub={0} or ip=192.0.2.7")]
    NoLabel(String),
    /// It is a label that no filter writes.
    #[error(
        "`{0}` is not a label: known are {labels}, method, host, path, route and descriptor.<key>; a dot within the name of a claim or a \
         filter is %2E",
        labels = source::ALL.each_ref().map(|kind| kind.labels).join(", ")
    )]
    UnknownLabel(String),
    /// Nothing follows its label.
    #[error("`{0}` has no value")]
    NoValue(String),
    /// Its value is `*`.
    #[error(
        "`{0}=*` names no partition, because `*` stands for no other values: name one value, or type \
         %2A for the character itself"
    )]
    Wildcard(String),
    /// Its label takes other values.
    #[error("`{label}={value}` must be {expected}")]
    Value {
        /// The label.
        label: String,
        /// The value that was typed.
        value: String,
        /// What it must be instead.
        expected: &'static str,
    },
    /// A secret was given whose label is not in it.
    #[error("the partition lacks the label of the secret {0}: write it there, without `=`")]
    Unplaced(String),
}

/// A partition as a person named it.
#[derive(Clone, Debug)]
pub struct Name(Vec<NamedEntry>);

#[derive(Clone, Debug)]
enum NamedEntry {
    /// An entry without `=`, or a digest. Already encoded.
    AsIs(String),
    /// A value under an encoded label.
    Value { label: String, value: Vec<u8> },
    /// Its digest.
    Secret(Secret),
}

impl Name {
    /// Parses `typed`. An entry that is the label of one of `secrets` stands for that secret. An
    /// empty `typed` stands for all `secrets` in their order.
    ///
    /// # Errors
    /// If no filter could count such a partition. The error says how to write it.
    pub fn parse(typed: &str, secrets: Vec<Secret>) -> Result<Self, NameError> {
        let mut secrets: Vec<Option<Secret>> = secrets.into_iter().map(Some).collect();
        if typed.is_empty() {
            let all: Vec<NamedEntry> =
                secrets.into_iter().flatten().map(NamedEntry::Secret).collect();
            return if all.is_empty() { Err(NameError::Empty) } else { Ok(Self(all)) };
        }
        if typed == key::EVERYONE || is_digest(typed) {
            return Self(vec![NamedEntry::AsIs(typed.to_owned())]).with_none_left(secrets);
        }
        let mut entries = Vec::new();
        for text in split(typed, &secrets) {
            let placed = encoded_label(text).and_then(|label| take(&mut secrets, &label));
            entries.push(match placed {
                Some(secret) => NamedEntry::Secret(secret),
                None => NamedEntry::parse(text)?,
            });
        }
        Self(entries).with_none_left(secrets)
    }

    fn with_none_left(self, secrets: Vec<Option<Secret>>) -> Result<Self, NameError> {
        match secrets.into_iter().flatten().next() {
            Some(secret) => Err(NameError::Unplaced(secret.label)),
            None => Ok(self),
        }
    }

    /// Whether [`encode`](Self::encode) makes a digest, and so needs the filter's own key.
    pub fn needs_key(&self) -> bool {
        // A byte takes at most three in the key. If that leaves room for the names of domain and
        // policy, the whole partition needs no digest.
        let most = |entry: &NamedEntry| match entry {
            NamedEntry::AsIs(text) => text.len() + 1,
            NamedEntry::Value { label, value } => label.len() + 2 + 3 * value.len(),
            NamedEntry::Secret(secret) => secret.label.len() + 35,
        };
        self.0.iter().any(NamedEntry::is_digested)
            || self.0.iter().map(most).sum::<usize>() > MAX_KEY - 256
    }

    /// The label of a header, cookie or query parameter whose value is written out. Such values are
    /// often secret, and then only the digest names the partition.
    pub fn written_out(&self) -> Option<&str> {
        self.0.iter().find_map(|entry| match entry {
            NamedEntry::Value { label, .. } => source::kind_of_label(label)
                .is_some_and(|kind| kind.is_often_secret)
                .then_some(label.as_str()),
            NamedEntry::AsIs(_) | NamedEntry::Secret(_) => None,
        })
    }

    /// An IPv6 address in it that is not a network. Most configurations count IPv6 clients by
    /// network.
    pub fn single_ipv6(&self) -> Option<&str> {
        self.0.iter().find_map(|entry| match entry {
            NamedEntry::Value { label, value } if label == key::IP => std::str::from_utf8(value)
                .ok()
                .filter(|text| text.contains(':') && !text.contains('/')),
            _ => None,
        })
    }

    /// The encoded partition in the key of `policy`'s counter.
    pub fn encode(&self, key: &DigestKey, domain: &str, policy: &str) -> String {
        let head = key::head(domain, policy);
        let mut out = head.to_string();
        for (i, entry) in self.0.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            match entry {
                NamedEntry::AsIs(text) => out.push_str(text),
                NamedEntry::Value { label, value } => {
                    key::write_entry(&mut out, label, value, Secrecy::Plain, &key.0);
                }
                NamedEntry::Secret(Secret { label, value }) => {
                    key::write_entry(&mut out, label, value, Secrecy::Secret, &key.0);
                }
            }
        }
        key::close(&mut out, head.len(), &key.0);
        key::partition_of(&out).to_owned()
    }
}

impl NamedEntry {
    fn is_digested(&self) -> bool {
        match self {
            Self::AsIs(_) => false,
            Self::Value { value, .. } => value.len() > MAX_VALUE,
            Self::Secret(_) => true,
        }
    }

    fn parse(text: &str) -> Result<Self, NameError> {
        if text == key::MISSING {
            return Ok(Self::AsIs(text.to_owned()));
        }
        let Some((typed, value)) = text.split_once('=') else {
            return Err(match encoded_label(text) {
                Some(label) => NameError::NoValue(label),
                None => NameError::NoLabel(text.to_owned()),
            });
        };
        let label =
            encoded_label(typed).ok_or_else(|| NameError::UnknownLabel(typed.to_owned()))?;
        if value == key::EVERYONE {
            return Err(NameError::Wildcard(label));
        }
        if is_digest(value) {
            return Ok(Self::AsIs(format!("{label}={value}")));
        }
        let decoded = percent::decode(value.as_bytes());
        let value = match (source::kind_of_label(&label), label.as_str()) {
            (Some(kind), _) => (kind.spell)(&label, decoded).map_err(|expected| {
                NameError::Value { label: label.clone(), value: value.to_owned(), expected }
            })?,
            // These two decode by themselves.
            (None, "path") => path::without_slash(&path::normalize(value.as_bytes())).to_vec(),
            (None, "host") => host::normalize(value.as_bytes().into()).into_owned(),
            (None, "method") => decoded.to_ascii_uppercase(),
            (None, _) => decoded,
        };
        if value.is_empty() {
            return Err(NameError::NoValue(label));
        }
        Ok(Self::Value { label, value })
    }
}

/// The entries of a name.
fn split<'t>(typed: &'t str, secrets: &[Option<Secret>]) -> Vec<&'t str> {
    let mut entries = Vec::new();
    let mut rest = typed;
    let mut from = 0;
    while let Some(comma) = rest.get(from..).and_then(|text| text.find(',')).map(|at| from + at) {
        let (entry, after) = (rest.get(..comma), rest.get(comma + 1..));
        match (entry, after) {
            (Some(entry), Some(after)) if begins_entry(after, secrets) => {
                entries.push(entry);
                (rest, from) = (after, 0);
            }
            _ => from = comma + 1,
        }
    }
    entries.push(rest);
    entries
}

/// Whether an entry begins here, after a comma.
fn begins_entry(text: &str, secrets: &[Option<Secret>]) -> bool {
    let alone = text.split(',').next().unwrap_or_default();
    let is_secret = |label: String| secrets.iter().flatten().any(|secret| secret.label == label);
    alone == key::MISSING
        || alone.split_once('=').is_some_and(|(label, _)| encoded_label(label).is_some())
        || encoded_label(alone).is_some_and(is_secret)
}

fn take(secrets: &mut [Option<Secret>], label: &str) -> Option<Secret> {
    secrets.iter_mut().find(|secret| secret.as_ref().is_some_and(|s| s.label == label))?.take()
}

/// A label as the filter writes it. `None` if the filter writes no such label.
fn encoded_label(typed: &str) -> Option<String> {
    if BuiltIn::ALL.iter().any(|fact| fact.name() == typed) {
        return Some(typed.to_owned());
    }
    if let Some((key::DESCRIPTOR, name)) = typed.split_once('.') {
        let name = String::from_utf8(percent::decode(name.as_bytes())).ok()?;
        return (!name.is_empty()).then(|| key::label(key::DESCRIPTOR, &name).into());
    }
    source::ALL.iter().find_map(|kind| (kind.label)(typed))
}

#[cfg(test)]
mod tests;
