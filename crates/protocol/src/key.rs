//! The key of a counter, and the names in it.

use super::{Invalid, MAX_KEY};

/// The parts of a counter's key, `<domain>:<policy>:{<partition>}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterKey<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The name of the policy.
    pub policy: &'a str,
    /// The entries of the partition.
    pub partition: &'a str,
}

impl<'a> CounterKey<'a> {
    /// Reads a key: printable ASCII without spaces and with one pair of braces. So it stays one
    /// argument of a command and one hash slot of a Redis Cluster.
    ///
    /// # Errors
    /// When it is too long or malformed.
    pub fn parse(key: &'a str) -> Result<Self, Invalid> {
        let invalid = |reason| Invalid { field: "key", reason };
        if key.len() > MAX_KEY {
            return Err(invalid(format!("must be at most {MAX_KEY} bytes long")));
        }
        let plain = |part: &str, extra: &[u8]| {
            !part.is_empty()
                && part
                    .bytes()
                    .all(|b| b.is_ascii_graphic() && !b"{}".contains(&b) && !extra.contains(&b))
        };
        let well_formed = |parts: &Self| {
            plain(parts.domain, b":") && plain(parts.policy, b":") && plain(parts.partition, b"")
        };
        Self::split(key).filter(well_formed).ok_or_else(|| {
            invalid("must be <domain>:<policy>:{<partition>} in printable ASCII".to_owned())
        })
    }

    /// The parts of a key that was [parsed](Self::parse) before.
    pub fn split(key: &'a str) -> Option<Self> {
        let (name, partition) = key.strip_suffix('}')?.split_once(":{")?;
        let (domain, policy) = name.split_once(':')?;
        Some(Self { domain, policy, partition })
    }
}

/// Whether a domain can have this name: `[a-z0-9._-]{1,64}`.
pub fn is_domain(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
}

/// Whether a policy can have this name: `[a-z0-9-]{1,64}`.
pub fn is_policy(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
