//! Header maps as the ABI serializes them: the count, the sizes of every name and value, then names
//! and values, each with a NUL behind it. All numbers are four bytes, little-endian.

use quotagate_quota::response::Header;

/// Headers in the host's own buffer: values are copied only on demand.
#[derive(Debug)]
pub struct HeaderMap(Vec<u8>);

impl HeaderMap {
    /// Wraps a serialized map. Only the whole headers of a truncated map count.
    pub fn new(serialized: Vec<u8>) -> Self {
        Self(serialized)
    }

    /// The values of the header with this lower-case name, in their order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let named = self.iter().filter(move |(known, _)| *known == name.as_bytes());
        named.map(|(_, value)| value)
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let (count, rest) = number(&self.0).unwrap_or((0, &[]));
        let (mut sizes, mut text) =
            rest.split_at_checked(count.saturating_mul(8)).unwrap_or((&[], &[]));
        std::iter::from_fn(move || {
            let (name_size, rest) = number(sizes)?;
            let (value_size, rest) = number(rest)?;
            sizes = rest;
            let (name, rest) = text.split_at_checked(name_size)?;
            let (value, rest) = rest.get(1..)?.split_at_checked(value_size)?;
            text = rest.get(1..)?;
            Some((name, value))
        })
    }
}

/// The number that comes first, and what follows it.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<4>()?;
    Some((usize::try_from(u32::from_le_bytes(*number)).ok()?, rest))
}

/// These headers, serialized.
pub fn serialize(headers: &[Header<'_>]) -> Vec<u8> {
    let size = headers.iter().map(|(name, value)| name.len() + value.len() + 10).sum::<usize>() + 4;
    let mut map = Vec::with_capacity(size);
    let push_size = |map: &mut Vec<u8>, size: usize| {
        map.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
    };
    push_size(&mut map, headers.len());
    for (name, value) in headers {
        push_size(&mut map, name.len());
        push_size(&mut map, value.len());
    }
    for (name, value) in headers {
        for part in [name.as_bytes(), value.as_bytes()] {
            map.extend_from_slice(part);
            map.push(0);
        }
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serialized_headers_are_read_back_even_if_truncated() {
        let headers = [("x-a", "1".into()), ("x-b", "".into()), ("x-a", "two".into())];
        let serialized = serialize(&headers);
        let map = HeaderMap::new(serialized.clone());
        let values = |name| map.values(name).collect::<Vec<_>>();
        assert_eq!(values("x-a"), [&b"1"[..], b"two"]);
        assert_eq!(values("x-b"), [b""]);
        assert_eq!(values("x"), [b""; 0]);
        for len in 0..serialized.len() {
            let cut = HeaderMap::new(serialized.iter().take(len).copied().collect());
            assert!(cut.iter().count() < 3, "{len}");
        }
        assert_eq!(HeaderMap::new(vec![0xff; 64]).iter().count(), 0);
    }
}
