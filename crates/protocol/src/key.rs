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

/// The longest name of a domain or a policy, in bytes.
pub const MAX_NAME: usize = 256;

/// Whether a domain can have this name: `[A-Za-z0-9._~=/%@+-]{1,256}`. Policy documents allow fewer
/// names, and the rate limit service has domains such as `envoy-gateway/eg/http`.
pub fn is_domain(name: &str) -> bool {
    is_name(name)
}

/// Whether a policy can have this name: `[A-Za-z0-9._~=/%@+-]{1,256}`. Policy documents allow fewer
/// names, and the rate limit service has policies such as `message_type=marketing/to_number`.
pub fn is_policy(name: &str) -> bool {
    is_name(name)
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_of_name)
}

/// Whether this byte may occur in the name of a domain or a policy.
pub const fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'.' | b'_' | b'~' | b'=' | b'/' | b'%' | b'@' | b'+' | b'-')
}
