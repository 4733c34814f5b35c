//! The messages of `envoy.service.ratelimit.v3`, as far as the service reads and writes them.
//!
//! Names and tags are those of `envoy/service/ratelimit/v3/rls.proto` and
//! `envoy/extensions/common/ratelimit/v3/ratelimit.proto`, as of Envoy 1.40. They are written by
//! hand because all of Envoy's API takes half a minute to compile, in each build.

use std::fmt::Write as _;

use bytes::{Buf, BufMut};
use prost::DecodeError;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost_types::{Duration, Struct};

/// The name of the service.
pub const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of its only method.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The longest message, in bytes: that of gRPC, unless a server says otherwise.
pub(crate) const MAX_MESSAGE: usize = 4 << 20;
/// Most descriptors of a request.
pub(crate) const MAX_DESCRIPTORS: usize = 256;
/// Most entries of a descriptor. No rule is deeper.
pub(crate) const MAX_ENTRIES: usize = 64;
/// What is wrong with a request that has more descriptors.
pub(crate) const TOO_MANY_DESCRIPTORS: &str =
    "rate limit descriptor list must have at most 256 descriptors: send fewer";
/// What is wrong with a descriptor that has more entries.
pub(crate) const TOO_MANY_ENTRIES: &str =
    "a rate limit descriptor must have at most 64 entries: send fewer";

/// Checks how many descriptors and entries an encoded [`RateLimitRequest`] has, without decoding
/// it. A message that cannot be read passes: decoding it says why.
///
/// # Errors
/// When there are too many.
pub(crate) fn check_counts(message: &[u8]) -> Result<(), &'static str> {
    let (mut descriptors, mut fault) = (0, None);
    let _ = each(message, 2, |descriptor| {
        descriptors += 1;
        let mut entries = 0;
        let _ = each(descriptor, 1, |_| {
            entries += 1;
            entries <= MAX_ENTRIES
        });
        if descriptors > MAX_DESCRIPTORS {
            fault = Some(TOO_MANY_DESCRIPTORS);
        } else if entries > MAX_ENTRIES {
            fault = Some(TOO_MANY_ENTRIES);
        }
        fault.is_none()
    });
    fault.map_or(Ok(()), Err)
}

/// Passes each occurrence of a field that holds bytes to `take`, until that returns false.
fn each(
    mut message: &[u8],
    field: u32,
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<(), DecodeError> {
    while !message.is_empty() {
        let (tag, kind) = decode_key(&mut message)?;
        if tag != field || kind != WireType::LengthDelimited {
            skip_field(kind, tag, &mut message, DecodeContext::default())?;
            continue;
        }
        let length = usize::try_from(decode_varint(&mut message)?).unwrap_or(usize::MAX);
        match message.get(..length) {
            Some(bytes) if take(bytes) => message.advance(length),
            _ => break,
        }
    }
    Ok(())
}

/// Asks whether a request is within its limits, and counts it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitRequest {
    /// Selects the rules.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// What the request is. Each descriptor is counted by itself.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<Descriptor>,
    /// The hits of descriptors that have none of their own; 0 is 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// One description of the request.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Descriptor {
    /// From the outermost level of the rules inwards.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<DescriptorEntry>,
    /// Replaces the limit of the rule.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RequestLimit>,
    /// The hits; 0 looks without counting.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether the hits are refunded.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A key and a value. Envoy sends the bytes of a header as they are. What is not UTF-8 is read with
/// escapes, because a client must not get past its limits by a byte that no text has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DescriptorEntry {
    /// The key.
    pub key: String,
    /// The value.
    pub value: String,
}

impl prost::Message for DescriptorEntry {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        for (tag, text) in [(1, &self.key), (2, &self.value)] {
            if !text.is_empty() {
                prost::encoding::string::encode(tag, text, buffer);
            }
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        let text = match tag {
            1 => &mut self.key,
            2 => &mut self.value,
            _ => return prost::encoding::skip_field(wire_type, tag, buffer, context),
        };
        let mut bytes = Vec::new();
        prost::encoding::bytes::merge(wire_type, &mut bytes, buffer, context)?;
        *text = escape_bytes(bytes);
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let fields = [(1, &self.key), (2, &self.value)].into_iter();
        let set = fields.filter(|(_, text)| !text.is_empty());
        set.map(|(tag, text)| prost::encoding::string::encoded_len(tag, text)).sum()
    }

    fn clear(&mut self) {
        self.key.clear();
        self.value.clear();
    }
}

/// Bytes as a text: UTF-8 as it is, and U+FFFD and `xNN` for each byte that belongs to no letter,
/// or to a U+FFFD. So different bytes are different texts.
pub(crate) fn escape_bytes(bytes: Vec<u8>) -> String {
    const ESCAPE: char = char::REPLACEMENT_CHARACTER;
    const ESCAPED_ESCAPE: &str = "\u{fffd}xef\u{fffd}xbf\u{fffd}xbd";
    let bytes = match String::from_utf8(bytes) {
        Ok(text) if !text.contains(ESCAPE) => return text,
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    };
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(&chunk.valid().replace(ESCAPE, ESCAPED_ESCAPE));
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{ESCAPE}x{byte:02x}");
        }
    }
    text
}

/// A limit that the request itself brings.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct RequestLimit {
    /// How many hits.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// In which time. The numbers are those of [`Unit`].
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// The answer.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RateLimitResponse {
    /// What becomes of the request.
    #[prost(enumeration = "Code", tag = "1")]
    pub overall_code: i32,
    /// One for each descriptor, in their order.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// For the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// For later filters.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// What the limit of a descriptor says.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DescriptorStatus {
    /// Whether the descriptor is within its limit.
    #[prost(enumeration = "Code", tag = "1")]
    pub code: i32,
    /// The limit, if there is one.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<CurrentLimit>,
    /// The hits that are left.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Until the window ends.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit in force.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CurrentLimit {
    /// The name of the rule, if it has one.
    #[prost(string, tag = "3")]
    pub name: String,
    /// How many hits.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// In which time.
    #[prost(enumeration = "Unit", tag = "2")]
    pub unit: i32,
}

/// A header.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HeaderValue {
    /// Its name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Code {
    /// Never sent.
    Unknown = 0,
    /// It is within its limits.
    Ok = 1,
    /// It is not.
    OverLimit = 2,
}

/// The time of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    /// No time.
    Unknown = 0,
    /// A second.
    Second = 1,
    /// A minute.
    Minute = 2,
    /// An hour.
    Hour = 3,
    /// A day.
    Day = 4,
    /// A month.
    Month = 5,
    /// A year.
    Year = 6,
    /// A week.
    Week = 7,
}

impl Unit {
    /// All times, the shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its name in the protocol, such as `SECOND`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// The unit of this name, in any case.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// An entry with this value, as Envoy sends it.
    fn sent(value: &[u8]) -> DescriptorEntry {
        let length = u8::try_from(value.len()).unwrap();
        DescriptorEntry::decode([&[10, 1, b'k', 18, length], value].concat().as_slice()).unwrap()
    }

    #[test]
    fn bytes_that_are_no_text_are_read_and_different_ones_stay_different() {
        for (bytes, value) in [
            (&b"rel\xc3\xa9"[..], "rel\u{e9}"),
            (b"", ""),
            (b"rel\xe9", "rel\u{fffd}xe9"),
            (b"\xff\xfe", "\u{fffd}xff\u{fffd}xfe"),
            (b"a\\b", "a\\b"),
            (b"a\\xff", "a\\xff"),
            (b"a\\xff\xff", "a\\xff\u{fffd}xff"),
            ("rel\u{fffd}xe9".as_bytes(), "rel\u{fffd}xef\u{fffd}xbf\u{fffd}xbdxe9"),
            (b"\xef\xbf\xbd\xff", "\u{fffd}xef\u{fffd}xbf\u{fffd}xbd\u{fffd}xff"),
        ] {
            let entry = sent(bytes);
            assert_eq!((&*entry.key, &*entry.value), ("k", value), "{bytes:?}");
        }
        let entry = sent(b"v");
        assert_eq!(DescriptorEntry::decode(entry.encode_to_vec().as_slice()).unwrap(), entry);
    }

    fn request(descriptors: usize, entries: usize) -> Vec<u8> {
        let entry = DescriptorEntry { key: "k".to_owned(), value: "v".to_owned() };
        let limit = Some(RequestLimit { requests_per_unit: 5, unit: 1 });
        let descriptor =
            Descriptor { entries: vec![entry; entries], limit, ..Descriptor::default() };
        let descriptors = vec![descriptor; descriptors];
        let request = RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 1 };
        request.encode_to_vec()
    }

    #[test]
    fn descriptors_and_entries_are_counted_before_a_message_is_decoded() {
        for (descriptors, entries, expected) in [
            (0, 0, Ok(())),
            (MAX_DESCRIPTORS, MAX_ENTRIES, Ok(())),
            (MAX_DESCRIPTORS + 1, 0, Err(TOO_MANY_DESCRIPTORS)),
            (1, MAX_ENTRIES + 1, Err(TOO_MANY_ENTRIES)),
        ] {
            let message = request(descriptors, entries);
            assert_eq!(check_counts(&message), expected, "{descriptors} {entries}");
        }
        let good = request(2, 2);
        for length in 0..good.len() {
            assert_eq!(check_counts(good.get(..length).unwrap()), Ok(()), "cut at {length}");
        }
        assert_eq!(check_counts(&[0xff; 100]), Ok(()), "decoding it says what is wrong");
    }
}
