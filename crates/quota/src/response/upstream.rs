//! The response of an upstream, as far as policies read it; and the quota headers that it already
//! has, because another limiter is behind this one.

use crate::config::HeaderFamily;

/// The status of a response that another limiter has refused.
const TOO_MANY_REQUESTS: u16 = 429;

/// The response of an upstream.
pub trait Upstream {
    /// Its status.
    fn status(&self) -> Option<u16>;

    /// The values of the header of this lower-case name, line by line.
    fn header(&self, name: &str) -> Vec<Vec<u8>>;

    /// Whether it has a header of one of these lower-case names.
    fn has_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| !self.header(name).is_empty())
    }

    /// The first value of the header of this lower-case name.
    fn first_header(&self, name: &str) -> Option<Vec<u8>> {
        self.header(name).into_iter().next()
    }

    /// The first value of the trailer of this lower-case name. Asked for only when the trailers
    /// have come.
    fn first_trailer(&self, name: &str) -> Option<Vec<u8>> {
        self.trailer(name).into_iter().next()
    }

    /// The values of the trailer of this lower-case name, line by line. Asked for only when the
    /// trailers have come.
    fn trailer(&self, _name: &str) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// A member of the stream's dynamic metadata: the value at `path` below the namespace `filter`,
    /// as the host's raw bytes: eight of a number (IEEE 754, little-endian), or a text.
    fn metadata(&self, _filter: &str, _path: &[Box<str>]) -> Option<Vec<u8>> {
        None
    }
}

/// No response: the host has none, or cannot show it any more.
impl Upstream for () {
    fn status(&self) -> Option<u16> {
        None
    }

    fn header(&self, _name: &str) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// How the host writes a header of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderWrite {
    /// The response has no header of this name, so the host need not look for one.
    Add,
    /// It replaces all headers of its name.
    Replace,
}

/// Whose fields of a family the client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Precedence {
    Ours(HeaderWrite),
    Theirs,
    /// Ours after theirs, as further items of a list.
    Both,
}

/// Whose fields of `family` the client gets, if we have `remaining` units left.
///
/// On a 429 of the upstream its own fields say why. A field in another form than the family's
/// cannot be joined or compared with ours. So ours replace it, unless the upstream has refused.
pub(super) fn precedence(
    upstream: &impl Upstream,
    family: HeaderFamily,
    remaining: u64,
) -> Precedence {
    if !upstream.has_any(family.fields()) {
        return Precedence::Ours(HeaderWrite::Add);
    }
    let refused = || upstream.status() == Some(TOO_MANY_REQUESTS);
    if family == HeaderFamily::Ietf
        && family.fields().iter().all(|name| is_list(&list(upstream, name)))
    {
        return Precedence::Both;
    }
    let tighter = family != HeaderFamily::Ietf
        && left(upstream, family).is_some_and(|theirs| theirs <= remaining);
    if tighter || refused() { Precedence::Theirs } else { Precedence::Ours(HeaderWrite::Replace) }
}

/// The values of a header as one list. Empty if there is none, or if it is not text.
pub(super) fn list(upstream: &impl Upstream, name: &str) -> String {
    let values = upstream.header(name);
    let values: Option<Vec<&str>> =
        values.iter().map(|value| std::str::from_utf8(value).ok()).collect();
    let mut values = values.unwrap_or_default();
    values.retain(|value| !value.trim().is_empty());
    values.join(", ")
}

/// The fewest units that the upstream says are left.
fn left(upstream: &impl Upstream, family: HeaderFamily) -> Option<u64> {
    let fewest = |name: &str, read: fn(&str) -> Option<&str>| {
        let list = list(upstream, name);
        list.split([',', ';']).filter_map(|part| read(part.trim())?.parse::<u64>().ok()).min()
    };
    match family {
        HeaderFamily::XRateLimit => fewest("x-ratelimit-remaining", |part| Some(part)),
        HeaderFamily::Draft03 => fewest("ratelimit-remaining", |part| Some(part)),
        HeaderFamily::Concurrency => fewest("x-concurrency-remaining", |part| Some(part)),
        // The draft's later versions write r instead of remaining.
        HeaderFamily::Ietf | HeaderFamily::Draft07 => fewest("ratelimit", |part| {
            part.strip_prefix("remaining=").or_else(|| part.strip_prefix("r="))
        }),
    }
}

/// Whether a field that is not empty may be a list, and not a dictionary as draft_07 writes it.
fn is_list(field: &str) -> bool {
    let first = field.split([',', ';']).next().unwrap_or_default();
    first.trim_start().starts_with('"') || !first.contains('=')
}

#[cfg(test)]
mod tests {
    use super::*;

    struct PlainResponse(u16, Vec<(&'static str, &'static str)>);

    impl Upstream for PlainResponse {
        fn status(&self) -> Option<u16> {
            Some(self.0)
        }

        fn header(&self, name: &str) -> Vec<Vec<u8>> {
            let named = self.1.iter().filter(|(known, _)| *known == name);
            named.map(|(_, value)| value.as_bytes().to_vec()).collect()
        }
    }

    #[test]
    fn the_tighter_limit_stays_and_a_429_keeps_theirs() {
        use HeaderFamily::{Draft03, Draft07, Ietf, XRateLimit};
        use Precedence::{Both, Theirs};
        const OURS: Precedence = Precedence::Ours(HeaderWrite::Replace);
        const ALONE: Precedence = Precedence::Ours(HeaderWrite::Add);
        let cases: [(HeaderFamily, &'static str, &'static str, Precedence, Precedence); 17] = [
            (XRateLimit, "x-ratelimit-remaining", "9", Theirs, Theirs),
            (XRateLimit, "x-ratelimit-remaining", "10", Theirs, Theirs),
            (XRateLimit, "x-ratelimit-remaining", "11", OURS, Theirs),
            (XRateLimit, "x-ratelimit-remaining", "30, 9;w=60", Theirs, Theirs),
            (XRateLimit, "x-ratelimit-remaining", "-1", OURS, Theirs),
            (XRateLimit, "x-ratelimit-remaining", "\u{ff}", OURS, Theirs),
            (XRateLimit, "x-ratelimit-limit", "9", OURS, Theirs),
            (XRateLimit, "ratelimit-remaining", "9", ALONE, ALONE),
            (Draft03, "ratelimit-remaining", "9", Theirs, Theirs),
            (Draft03, "ratelimit-remaining", "11", OURS, Theirs),
            (Draft07, "ratelimit", "limit=20, remaining=9, reset=5", Theirs, Theirs),
            (Draft07, "ratelimit", "limit=20, remaining=11, reset=5", OURS, Theirs),
            (Draft07, "ratelimit", "\"a\";r=9;t=5", Theirs, Theirs),
            (Ietf, "ratelimit", "\"a\";r=9;t=5", Both, Both),
            (Ietf, "ratelimit-policy", "100;w=60", Both, Both),
            (Ietf, "ratelimit", "limit=20, remaining=9, reset=5", OURS, Theirs),
            (Ietf, "x-ratelimit-remaining", "9", ALONE, ALONE),
        ];
        for (family, name, value, admitted, refused) in cases {
            for (status, expected) in [(200, admitted), (429, refused)] {
                let response = PlainResponse(status, vec![(name, value)]);
                assert_eq!(
                    precedence(&response, family, 10),
                    expected,
                    "{family:?} {status} {name}: {value}"
                );
            }
        }
    }

    #[test]
    fn header_lines_join_into_one_list() {
        let response = PlainResponse(200, vec![("a", "1"), ("a", " "), ("a", "2, 3")]);
        assert_eq!(list(&response, "a"), "1, 2, 3");
        assert_eq!(list(&response, "b"), "");
    }
}
