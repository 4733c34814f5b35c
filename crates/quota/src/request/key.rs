//! How a partition is written into a counter key. Each partition has one text, and no two
//! partitions share one.
//!
//! An encoded partition is the `label=value` of each entry, joined by `,`. Bytes outside
//! `[A-Za-z0-9._~@:/-]` are `%XX` in labels and values, so `=`, `,` and the braces around a
//! partition only ever separate. Everything else has a form without `=`:
//!
//! * `*` is the partition without entries, and `-` an entry that is missing and shared;
//! * a value that is secret, or longer than [`MAX_VALUE`] bytes, is `~` and the first 32
//!   hexadecimal digits of its keyed digest (HMAC-SHA-256). A `~` that begins any other value is
//!   `%7E`;
//! * a whole partition that would make a key longer than a message may carry ([`MAX_KEY`]) is `~`
//!   and such a digest of its text.

use std::fmt;
use std::fmt::Write as _;

use hmac::{Hmac, KeyInit, Mac};
use quotagate_protocol::MAX_KEY;
use sha2::{Digest, Sha256};

/// The longest value that is written out, in bytes before its encoding.
pub const MAX_VALUE: usize = 128;

/// An entry whose identity is missing and shared.
pub(crate) const MISSING: &str = "-";

/// The partition without entries.
pub(crate) const EVERYONE: &str = "*";

/// The label of an address.
pub(crate) const IP: &str = "ip";

/// What the labels of descriptors of the rate limit service begin with.
pub(crate) const DESCRIPTOR: &str = "descriptor";

/// How a value goes into a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrecy {
    /// Readable, unless it is too long.
    Plain,
    /// Always a digest.
    Secret,
}

impl Secrecy {
    /// The secrecy of a value that `is_secret`, or is not.
    pub(crate) fn of(is_secret: bool) -> Self {
        if is_secret { Self::Secret } else { Self::Plain }
    }
}

/// Makes the digests that stand for secret and long values.
#[derive(Clone)]
pub(crate) struct Digester(Hmac<Sha256>);

impl Digester {
    /// Keyed by a secret of the operator.
    pub(crate) fn keyed(key: &[u8]) -> Self {
        // HMAC itself pads and hashes keys like this. Doing it here accepts a key of any length.
        const BLOCK: usize = 64;
        let mut block = [0; BLOCK];
        let hashed = Sha256::digest(key);
        let key = if key.len() > BLOCK { hashed.as_slice() } else { key };
        for (to, from) in block.iter_mut().zip(key) {
            *to = *from;
        }
        Self(Hmac::new(&block.into()))
    }

    /// Keyed by a key derived from `domain`. It hides values from view, but not from an attacker
    /// who guesses them.
    pub(crate) fn derived(domain: &str) -> Self {
        let seed =
            Sha256::new().chain_update(b"quotagate digest key\0").chain_update(domain.as_bytes());
        Self::keyed(&seed.finalize())
    }

    /// Whether both write the same digests.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let digest = |of: &Self| of.0.clone().finalize().into_bytes();
        digest(self) == digest(other)
    }

    /// Writes `~` and 32 hexadecimal digits.
    fn write(&self, out: &mut String, value: &[u8]) {
        out.push('~');
        for byte in self.0.clone().chain_update(value).finalize().into_bytes().iter().take(16) {
            // Writing to a String cannot fail.
            let _ = write!(out, "{byte:02x}");
        }
    }
}

impl fmt::Debug for Digester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digester(..)")
    }
}

/// The part of a key before its partition: `<domain>:<policy>:{`.
pub(crate) fn head(domain: &str, policy: &str) -> Box<str> {
    format!("{domain}:{policy}:{{").into()
}

/// The label of the one `name` after `kind.`, such as `header.x-api-key`.
pub(crate) fn label(kind: &str, name: &str) -> Box<str> {
    let mut out = format!("{kind}.");
    escape(&mut out, name.as_bytes());
    out.into()
}

/// The label of the names of a `path` after `kind`, joined by dots; a dot within one of them is
/// `%2E`, so that no two paths share a label.
pub(crate) fn path_label<'n>(kind: &str, path: impl IntoIterator<Item = &'n str>) -> Box<str> {
    let mut out = kind.to_owned();
    for name in path {
        out.push('.');
        push_name(&mut out, name);
    }
    out.into()
}

/// Appends a name within which a dot is `%2E`.
pub(crate) fn push_name(out: &mut String, name: &str) {
    let start = out.len();
    escape(out, name.as_bytes());
    let escaped = out.split_off(start).replace('.', "%2E");
    out.push_str(&escaped);
}

/// The label of an entry of a descriptor of the rate limit service; a long key is a digest.
pub(crate) fn descriptor_label(key: &str, digester: &Digester) -> Box<str> {
    if key.len() <= MAX_VALUE {
        return label(DESCRIPTOR, key);
    }
    let mut out = format!("{DESCRIPTOR}.");
    digester.write(&mut out, key.as_bytes());
    out.into()
}

/// Appends `label=value` to the entries in `out`. `label` is already encoded; `value` is not, and
/// must not be empty.
pub(crate) fn write_entry(
    out: &mut String,
    label: &str,
    value: &[u8],
    secrecy: Secrecy,
    digester: &Digester,
) {
    out.push_str(label);
    out.push('=');
    if secrecy == Secrecy::Secret || value.len() > MAX_VALUE {
        return digester.write(out, value);
    }
    match value.strip_prefix(b"~") {
        Some(rest) => {
            out.push_str("%7E");
            escape(out, rest);
        }
        None => escape(out, value),
    }
}

/// Closes a key made of a [`head`] of `head` bytes and a partition.
pub(crate) fn close(key: &mut String, head: usize, digester: &Digester) {
    if key.len() >= MAX_KEY {
        let partition = key.split_off(head);
        digester.write(key, partition.as_bytes());
    }
    key.push('}');
}

/// The encoded partition of a counter's key `<domain>:<policy>:{<partition>}`.
pub(crate) fn partition_of(key: &str) -> &str {
    // Neither a domain nor a policy has a brace in its name.
    let brace = key.bytes().position(|byte| byte == b'{');
    let partition = brace.and_then(|brace| key.get(brace + 1..)?.strip_suffix('}'));
    partition.unwrap_or_default()
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'~' | b'@' | b':' | b'/' | b'-')
}

fn escape(out: &mut String, bytes: &[u8]) {
    out.reserve(bytes.len());
    let mut rest = bytes;
    loop {
        // Copies the bytes before the next escape at once: most values need none.
        let plain = rest.iter().take_while(|&&byte| is_plain(byte)).count();
        let (readable, others) = rest.split_at_checked(plain).unwrap_or((rest, &[]));
        out.push_str(std::str::from_utf8(readable).unwrap_or_default());
        let Some((byte, after)) = others.split_first() else { return };
        // Writing to a String cannot fail.
        let _ = write!(out, "%{byte:02X}");
        rest = after;
    }
}

/// Whether `text` is the digest of a value or partition: `~` and 32 lower-case hexadecimal digits.
pub fn is_digest(text: &str) -> bool {
    text.strip_prefix('~').is_some_and(|digits| {
        digits.len() == 32 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn entry(value: &[u8], secrecy: Secrecy) -> String {
        let mut out = String::new();
        write_entry(&mut out, "l", value, secrecy, &Digester::derived("shop"));
        out
    }

    fn plain(value: &[u8]) -> String {
        entry(value, Secrecy::Plain)
    }

    #[test]
    fn readable_bytes_stay_and_all_others_are_escaped() {
        assert_eq!(plain(b"aZ09._~@:/-"), "l=aZ09._~@:/-");
        assert_eq!(plain(b"a b=c,d{e}%\xff\0\n"), "l=a%20b%3Dc%2Cd%7Be%7D%25%FF%00%0A");
        assert_eq!(plain("käse".as_bytes()), "l=k%C3%A4se");
        assert_eq!(&*label("header", "x*y.z"), "header.x%2Ay.z");
        assert_eq!(&*path_label("jwt", ["https://a.b", "c,d"]), "jwt.https://a%2Eb.c%2Cd");
    }

    #[test]
    fn a_digest_is_the_hmac_that_other_tools_compute() {
        // RFC 4231, test cases 2 and 6 (a key longer than a block).
        let mut out = String::new();
        Digester::keyed(b"Jefe").write(&mut out, b"what do ya want for nothing?");
        assert_eq!(out, "~5bdcc146bf60754e6a042426089575c7");
        out.clear();
        Digester::keyed(&[0xaa; 131])
            .write(&mut out, b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(out, "~60e431591ee0b67f0d8a26aacbf5b77f");
    }

    #[test]
    fn secrets_and_long_values_are_digests_and_plain_values_never_look_like_one() {
        assert_eq!(plain(&[b'a'; 128]).len(), 2 + 128);
        assert_eq!(plain(&[b'a'; 129]).len(), 2 + 33);
        let secret = entry(b"key", Secrecy::Secret);
        assert!(secret.starts_with("l=~") && secret.len() == 2 + 33, "{secret}");
        let forged = plain(&secret.as_bytes()[2..]);
        assert_eq!(forged, secret.replacen('~', "%7E", 1));
        assert_ne!(Digester::derived("shop").tag(b"key"), Digester::derived("other").tag(b"key"));
        assert_eq!(format!("{:?}", Digester::keyed(b"hidden")), "Digester(..)");
    }

    #[test]
    fn no_two_values_share_an_encoding() {
        // Every value of up to three bytes over all characters that have a meaning somewhere.
        let alphabet = b"~%=,-*{}7Ea\0\xff ";
        let mut seen: HashMap<String, Vec<u8>> = HashMap::new();
        let mut values: Vec<Vec<u8>> = alphabet.iter().map(|b| vec![*b]).collect();
        for _ in 0..3 {
            let longer = values
                .iter()
                .flat_map(|v| alphabet.iter().map(move |b| [v.as_slice(), &[*b]].concat()))
                .collect();
            for value in std::mem::replace(&mut values, longer) {
                for secrecy in [Secrecy::Plain, Secrecy::Secret] {
                    let text = entry(&value, secrecy);
                    let of = text[2..].bytes();
                    assert!(
                        of.clone().all(|b| b.is_ascii_alphanumeric() || b"._~@:/-%".contains(&b)),
                        "{text}"
                    );
                    assert_eq!(text[2..].starts_with('~'), secrecy == Secrecy::Secret, "{text}");
                    let before = seen.insert(text, value.clone());
                    assert_eq!(before, None, "{value:?}");
                }
            }
        }
    }

    #[test]
    fn a_key_stays_within_a_message() {
        let digester = Digester::derived("shop");
        let head = head(&"d".repeat(64), &"p".repeat(64));
        for (len, digested) in
            [(MAX_KEY - head.len() - 1, false), (MAX_KEY - head.len(), true), (99_999, true)]
        {
            let mut key = format!("{head}{}", "a".repeat(len));
            close(&mut key, head.len(), &digester);
            assert!(key.len() <= MAX_KEY);
            assert_eq!(key.len() == head.len() + 33 + 1, digested, "{len}");
            assert!(key.starts_with(&*head) && key.ends_with('}'));
        }
    }

    impl Digester {
        fn tag(&self, value: &[u8]) -> String {
            let mut out = String::new();
            self.write(&mut out, value);
            out
        }
    }
}
