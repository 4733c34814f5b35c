//! The parts of a counter's key, `<domain>:<policy>:{<partition>}`.

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
