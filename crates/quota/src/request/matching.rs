//! Which requests a policy applies to.

use std::borrow::Cow;
use std::slice;

use regex_lite::Regex;

use crate::request::facts::Facts;
use crate::request::network::Network;
use crate::request::{credentials, path};

/// Longest text, in bytes, that an expression is matched against. Matching may cost 125 ns a byte,
/// before any quota is checked.
///
/// A longer text is in doubt, and the policy applies: the text counts as matched, and under `not`
/// as not matched. So a long path or header does not bypass a policy.
pub(crate) const MAX_MATCHED: usize = 2048;

/// Conditions that must all hold; without any, every request matches.
///
/// A request without the fact that a condition tests (a path, say) does not match. The matcher
/// fetches the cheapest facts first, and none after a condition that fails.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    /// One of these, in upper case; empty is any.
    pub(crate) methods: Vec<Box<str>>,
    /// The path.
    pub(crate) path: Option<PathPattern>,
    /// One of these; empty is any.
    pub(crate) hosts: Vec<HostPattern>,
    /// All of these.
    pub(crate) headers: Vec<HeaderCondition>,
    /// A query parameter.
    pub(crate) query: Option<QueryCondition>,
    /// The name of the Envoy route is one of these; empty is any.
    pub(crate) routes: Vec<Box<str>>,
    /// The client's address is in one of these; empty is any.
    pub(crate) networks: Vec<Network>,
    /// None of its conditions may hold. It has at least one, and no `not` of its own.
    pub(crate) not: Option<Box<Matcher>>,
}

/// A condition on the normalized path, without query string and fragment. Patterns are normalized
/// as well, and compared byte by byte.
#[derive(Debug)]
pub(crate) enum PathPattern {
    /// The whole path. Both sides are compared without a trailing slash.
    Exact(Box<[u8]>),
    /// Its beginning.
    Prefix(Box<[u8]>),
    /// Its end.
    Suffix(Box<[u8]>),
    /// The whole path as an expression.
    Regex(WholeRegex),
}

/// A regular expression that matches whole texts. It sees bytes that are not UTF-8 as U+FFFD, so
/// that `.` and negated classes match them.
#[derive(Debug)]
pub(crate) struct WholeRegex(Box<Regex>);

/// A condition on the host without port, in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HostPattern {
    /// The whole host.
    Exact(Box<str>),
    /// `*.example.org`, kept as `.example.org`: any host below `example.org`, however deep, but not
    /// `example.org` itself.
    Below(Box<str>),
}

/// A condition on a header.
#[derive(Debug)]
pub(crate) struct HeaderCondition {
    /// In lower case.
    pub(crate) name: Box<str>,
    /// What its values must be.
    pub(crate) value: ValuePattern,
}

/// A condition on a query parameter.
#[derive(Debug)]
pub(crate) struct QueryCondition {
    /// Decoded.
    pub(crate) name: Box<str>,
    /// What its decoded values must be.
    pub(crate) value: ValuePattern,
}

/// A condition on the values of a header, without surrounding spaces and tabs, or of a query
/// parameter. One matching value is enough, except under `not`.
#[derive(Debug)]
pub(crate) enum ValuePattern {
    /// A whole value.
    Exact(Box<str>),
    /// The beginning of a value.
    Prefix(Box<str>),
    /// The beginning of a value in any case: the scheme of credentials, or a part of it.
    Scheme(Box<str>),
    /// A whole value as an expression.
    Regex(WholeRegex),
    /// There is one, even if it is empty.
    Present,
    /// There is none.
    Absent,
}

/// What a text counts as that is too long for an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    Matches,
    Fails,
}

impl Matcher {
    pub(crate) fn matches<'c>(&'c self, facts: &Facts<'c>) -> bool {
        const DOUBT: Doubt = Doubt::Matches;
        // Path parameters do not bypass a policy, whether the upstream knows them or not.
        let on_path = |pattern: &PathPattern| {
            facts.path().is_some_and(|path| pattern.matches(path, DOUBT))
                || facts.other_readings().iter().any(|path| pattern.matches(path, DOUBT))
        };
        (self.methods.is_empty() || self.among_methods(facts))
            && self.path.as_ref().is_none_or(on_path)
            && self.query.as_ref().is_none_or(|query| query.holds(facts, DOUBT))
            && (self.hosts.is_empty() || self.among_hosts(facts))
            && self.headers.iter().all(|header| header.holds(facts, DOUBT))
            && (self.networks.is_empty() || self.among_networks(facts))
            && (self.routes.is_empty() || self.among_routes(facts))
            && self.not.as_ref().is_none_or(|not| !not.holds_somewhere(facts))
    }

    /// Whether one of its conditions holds, beyond doubt: a `not` with this matcher then keeps the
    /// policy from applying.
    fn holds_somewhere<'c>(&'c self, facts: &Facts<'c>) -> bool {
        const DOUBT: Doubt = Doubt::Fails;
        // An upstream may know the path by any of its readings.
        let on_path = |pattern: &PathPattern| {
            facts.path().is_some_and(|path| pattern.matches(path, DOUBT))
                && facts.other_readings().iter().all(|path| pattern.matches(path, DOUBT))
        };
        (!self.methods.is_empty() && self.among_methods(facts))
            || self.path.as_ref().is_some_and(on_path)
            || self.query.as_ref().is_some_and(|query| query.holds(facts, DOUBT))
            || (!self.hosts.is_empty() && self.among_hosts(facts))
            || self.headers.iter().any(|header| header.holds(facts, DOUBT))
            || (!self.networks.is_empty() && self.among_networks(facts))
            || (!self.routes.is_empty() && self.among_routes(facts))
    }

    fn among_methods(&self, facts: &Facts<'_>) -> bool {
        facts.method().is_some_and(|method| self.methods.iter().any(|m| m.as_bytes() == method))
    }

    fn among_hosts(&self, facts: &Facts<'_>) -> bool {
        facts.host().is_some_and(|host| self.hosts.iter().any(|h| h.matches(host)))
    }

    fn among_networks(&self, facts: &Facts<'_>) -> bool {
        facts.address().is_some_and(|address| self.networks.iter().any(|n| n.contains(address)))
    }

    fn among_routes(&self, facts: &Facts<'_>) -> bool {
        facts.route().is_some_and(|route| self.routes.iter().any(|r| r.as_bytes() == route))
    }
}

impl HeaderCondition {
    fn holds<'c>(&'c self, facts: &Facts<'c>, doubt: Doubt) -> bool {
        let values = facts.header(&self.name);
        let values = values.as_slice();
        let may_hold = |values| match &self.value {
            ValuePattern::Exact(exact) => credentials::may_hold(exact, values),
            ValuePattern::Regex(_) => true,
            _ => false,
        };
        if credentials::are_ambiguous(&self.name, values) && may_hold(values) {
            return doubt == Doubt::Matches;
        }
        self.value.hold(values, doubt)
    }
}

impl QueryCondition {
    fn holds<'c>(&'c self, facts: &Facts<'c>, doubt: Doubt) -> bool {
        self.value.hold(&facts.parameter(&self.name), doubt)
    }
}

impl PathPattern {
    fn matches(&self, path: &[u8], doubt: Doubt) -> bool {
        match self {
            Self::Exact(text) => path::without_slash(path) == &**text,
            Self::Prefix(text) => path.starts_with(text),
            Self::Suffix(text) => path.ends_with(text),
            Self::Regex(regex) => regex.matches_any(&[path], doubt),
        }
    }
}

impl WholeRegex {
    /// Compiles the expression `text`, which must match a whole text.
    ///
    /// # Errors
    /// What is wrong with the expression.
    pub(crate) fn new(text: &str) -> Result<Self, regex_lite::Error> {
        // Compiles `text` alone first: the group around it must not make `a)|(b` valid.
        Regex::new(text)?;
        Ok(Self(Box::new(Regex::new(&format!(r"\A(?:{text})\z"))?)))
    }

    /// Whether it matches one of `texts`.
    fn matches_any(&self, texts: &[impl AsRef<[u8]>], doubt: Doubt) -> bool {
        if are_too_long(texts) {
            return doubt == Doubt::Matches;
        }
        texts.iter().any(|text| self.0.is_match(&String::from_utf8_lossy(text.as_ref())))
    }
}

/// Whether these texts have more than [`MAX_MATCHED`] bytes together. Then no expression is matched
/// with them, and the condition is in doubt.
fn are_too_long(texts: &[impl AsRef<[u8]>]) -> bool {
    texts.iter().map(|text| text.as_ref().len()).sum::<usize>() > MAX_MATCHED
}

impl ValuePattern {
    /// Makes the pattern fit values that are [credentials].
    pub(crate) fn of_credentials(self) -> Self {
        let text = |spelt: Cow<'_, [u8]>| Box::from(String::from_utf8_lossy(&spelt));
        match self {
            Self::Exact(exact) => {
                Self::Exact(text(credentials::normalize(exact.as_bytes().into())))
            }
            Self::Prefix(prefix) => match credentials::normalize_prefix(&prefix) {
                Some(spelt) => Self::Prefix(text(spelt)),
                None => Self::Scheme(prefix),
            },
            other => other,
        }
    }

    /// The upstream may read any value of a header or parameter that is given twice. So one value
    /// is enough where a policy then applies, and all must match where it then does not.
    fn hold(&self, values: &[impl AsRef<[u8]>], doubt: Doubt) -> bool {
        match doubt {
            Doubt::Fails if values.len() > 1 => {
                !self.is_in_doubt(values)
                    && values.iter().all(|value| self.matches(slice::from_ref(value), doubt))
            }
            _ => self.matches(values, doubt),
        }
    }

    fn is_in_doubt(&self, values: &[impl AsRef<[u8]>]) -> bool {
        matches!(self, Self::Regex(_)) && are_too_long(values)
    }

    fn matches(&self, values: &[impl AsRef<[u8]>], doubt: Doubt) -> bool {
        match self {
            Self::Exact(text) => values.iter().any(|value| value.as_ref() == text.as_bytes()),
            Self::Prefix(text) => {
                values.iter().any(|value| value.as_ref().starts_with(text.as_bytes()))
            }
            Self::Scheme(text) => values.iter().any(|value| {
                let begins = value.as_ref().get(..text.len());
                begins.is_some_and(|begins| begins.eq_ignore_ascii_case(text.as_bytes()))
            }),
            Self::Regex(regex) => regex.matches_any(values, doubt),
            Self::Present => !values.is_empty(),
            Self::Absent => values.is_empty(),
        }
    }
}

impl HostPattern {
    fn matches(&self, host: &[u8]) -> bool {
        match self {
            Self::Exact(text) => host == text.as_bytes(),
            Self::Below(text) => host.len() > text.len() && host.ends_with(text.as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_matches_subdomains_only() {
        let below = HostPattern::Below(".example.org".into());
        for (host, matches) in [
            ("a.example.org", true),
            ("a.b.example.org", true),
            ("example.org", false),
            (".example.org", false),
            ("badexample.org", false),
            ("a.example.org.evil", false),
        ] {
            assert_eq!(below.matches(host.as_bytes()), matches, "{host}");
        }
    }

    #[test]
    fn paths_match_byte_by_byte() {
        let exact = |text: &str| PathPattern::Exact(text.as_bytes().into());
        let matches = |pattern: PathPattern, path: &[u8]| pattern.matches(path, Doubt::Matches);
        assert!(matches(exact("/a"), b"/a"));
        assert!(matches(exact("/a"), b"/a/"));
        assert!(!matches(exact("/a"), b"/a/b"));
        assert!(matches(exact("/"), b"/"));
        assert!(matches(PathPattern::Prefix((*b"/api/").into()), b"/api/\xff"));
        assert!(!matches(PathPattern::Prefix((*b"/api/").into()), b"/api"));
        assert!(matches(PathPattern::Suffix((*b".png").into()), b"/\xff.png"));
        assert!(matches(exact("/k\u{e4}se"), b"/k\xc3\xa4se"));
        assert!(!matches(exact("/\u{fffd}"), b"/\xff"));
    }

    #[test]
    fn an_expression_matches_whole_texts() {
        let matches = |regex, text: &[u8]| {
            WholeRegex::new(regex).unwrap().matches_any(&[text], Doubt::Matches)
        };
        assert!(matches("/a|/b", b"/b"));
        assert!(!matches("/a|/b", b"/bc"));
        assert!(!matches("/a|/b", b"x/a"));
        assert!(!matches("(?m)/a", b"/a\n/a"));
        assert!(!matches("/a$", b"/a\n"));
        assert!(matches("/users/[0-9]+", b"/users/42"));
        assert!(matches("(?i)/admin", b"/ADMIN"));
        assert!(matches("/.*", b"/\xff\xfe"));
        assert!(!matches("/[a-z]*", b"/\xff"));
        for bad in ["a)|(b", "(", "[", "a{2", "(?x)a #"] {
            assert!(WholeRegex::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_text_too_long_for_an_expression_is_in_doubt() {
        let regex = WholeRegex::new("/a.*").unwrap();
        for doubt in [Doubt::Matches, Doubt::Fails] {
            let matched = doubt == Doubt::Matches;
            let matches = |text: &[u8]| regex.matches_any(&[text], doubt);
            assert!(!matches(&[b'b'; MAX_MATCHED]));
            assert!(matches(&[b"/a", &[b'b'; MAX_MATCHED - 2][..]].concat()));
            for len in [MAX_MATCHED + 1, 60_000] {
                assert_eq!(matches(&vec![b'b'; len]), matched, "{len}");
                assert_eq!(matches(&[b"/a".as_slice(), &vec![b'b'; len]].concat()), matched);
            }
        }
        let values = |len: usize| vec![vec![b'b'; len / 2]; 2];
        let pattern = ValuePattern::Regex(regex);
        assert!(!pattern.matches(&values(MAX_MATCHED), Doubt::Matches));
        let together = "all values of a header together";
        assert!(pattern.matches(&values(MAX_MATCHED + 2), Doubt::Matches), "{together}");
        assert!(!pattern.matches(&values(MAX_MATCHED + 2), Doubt::Fails), "{together}");
    }

    #[test]
    fn a_header_condition_holds_if_one_value_matches() {
        let regex = |text| ValuePattern::Regex(WholeRegex::new(text).unwrap());
        let both: &[&[u8]] = &[b"beta", b"1\xff"];
        for (pattern, values, holds) in [
            (ValuePattern::Exact("beta".into()), both, true),
            (ValuePattern::Exact("Beta".into()), both, false),
            (ValuePattern::Exact("bet".into()), both, false),
            (ValuePattern::Prefix("1".into()), both, true),
            (ValuePattern::Prefix("eta".into()), both, false),
            (regex("b.*|c"), both, true),
            (regex("eta"), both, false),
            (regex("1[^a]"), both, true),
            (ValuePattern::Present, both, true),
            (ValuePattern::Absent, both, false),
            (ValuePattern::Present, &[b""], true),
            (ValuePattern::Absent, &[b""], false),
            (ValuePattern::Present, &[], false),
            (ValuePattern::Absent, &[], true),
            (ValuePattern::Exact("a".into()), &[], false),
            (regex(".*"), &[], false),
        ] {
            let values: Vec<Vec<u8>> = values.iter().map(|value| value.to_vec()).collect();
            assert_eq!(pattern.matches(&values, Doubt::Matches), holds, "{pattern:?} {values:?}");
        }
    }
}
