//! Which requests a policy applies to.

use regex_lite::Regex;

use crate::request::facts::Facts;
use crate::request::path;

/// Longest text, in bytes, that an expression is matched against. Matching may cost 125 ns a byte,
/// before any quota is checked.
///
/// A longer text counts as matched. So the policy applies, and a long path or header does not
/// bypass it.
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
    /// The name of the Envoy route is one of these; empty is any.
    pub(crate) routes: Vec<Box<str>>,
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

/// A condition on the values of a header, without surrounding spaces and tabs. One matching value
/// is enough.
#[derive(Debug)]
pub(crate) enum ValuePattern {
    /// A whole value.
    Exact(Box<str>),
    /// The beginning of a value.
    Prefix(Box<str>),
    /// A whole value as an expression.
    Regex(WholeRegex),
    /// There is one, even if it is empty.
    Present,
    /// There is none.
    Absent,
}

impl Matcher {
    pub(crate) fn matches<'c>(&'c self, facts: &Facts<'c>) -> bool {
        let among_methods = || {
            facts.method().is_some_and(|method| self.methods.iter().any(|m| m.as_bytes() == method))
        };
        let among_hosts =
            || facts.host().is_some_and(|host| self.hosts.iter().any(|h| h.matches(host)));
        let among_routes =
            || facts.route().is_some_and(|route| self.routes.iter().any(|r| r.as_bytes() == route));
        // Path parameters do not bypass a policy, whether the upstream knows them or not.
        let on_path = |pattern: &PathPattern| {
            facts.path().is_some_and(|path| pattern.matches(path))
                || facts.other_readings().iter().any(|path| pattern.matches(path))
        };
        (self.methods.is_empty() || among_methods())
            && self.path.as_ref().is_none_or(on_path)
            && (self.hosts.is_empty() || among_hosts())
            && self.headers.iter().all(|header| header.value.matches(&facts.header(&header.name)))
            && (self.routes.is_empty() || among_routes())
    }
}

impl PathPattern {
    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(text) => path::without_slash(path) == &**text,
            Self::Prefix(text) => path.starts_with(text),
            Self::Suffix(text) => path.ends_with(text),
            Self::Regex(regex) => regex.matches(path),
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

    fn matches(&self, text: &[u8]) -> bool {
        self.matches_any(&[text])
    }

    /// Whether it matches one of `texts`, or `texts` have more than [`MAX_MATCHED`] bytes together.
    fn matches_any(&self, texts: &[impl AsRef<[u8]>]) -> bool {
        texts.iter().map(|text| text.as_ref().len()).sum::<usize>() > MAX_MATCHED
            || texts.iter().any(|text| self.0.is_match(&String::from_utf8_lossy(text.as_ref())))
    }
}

impl ValuePattern {
    fn matches(&self, values: &[Vec<u8>]) -> bool {
        match self {
            Self::Exact(text) => values.iter().any(|value| value == text.as_bytes()),
            Self::Prefix(text) => values.iter().any(|value| value.starts_with(text.as_bytes())),
            Self::Regex(regex) => regex.matches_any(values),
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
        assert!(exact("/a").matches(b"/a"));
        assert!(exact("/a").matches(b"/a/"));
        assert!(!exact("/a").matches(b"/a/b"));
        assert!(exact("/").matches(b"/"));
        assert!(PathPattern::Prefix((*b"/api/").into()).matches(b"/api/\xff"));
        assert!(!PathPattern::Prefix((*b"/api/").into()).matches(b"/api"));
        assert!(PathPattern::Suffix((*b".png").into()).matches(b"/\xff.png"));
        assert!(exact("/k\u{e4}se").matches(b"/k\xc3\xa4se"));
        assert!(!exact("/\u{fffd}").matches(b"/\xff"));
    }

    #[test]
    fn an_expression_matches_whole_texts() {
        let matches = |regex, text: &[u8]| WholeRegex::new(regex).unwrap().matches(text);
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
    fn a_text_too_long_for_an_expression_counts_as_matched() {
        let regex = WholeRegex::new("/a.*").unwrap();
        for (len, matched) in [(MAX_MATCHED, false), (MAX_MATCHED + 1, true), (60_000, true)] {
            assert_eq!(regex.matches(&vec![b'b'; len]), matched, "{len}");
        }
        assert!(regex.matches(&[b"/a", &[b'b'; MAX_MATCHED - 2][..]].concat()));
        let values = |len: usize| vec![vec![b'b'; len / 2]; 2];
        let pattern = ValuePattern::Regex(regex);
        assert!(!pattern.matches(&values(MAX_MATCHED)));
        assert!(pattern.matches(&values(MAX_MATCHED + 2)), "all values of a header together");
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
            assert_eq!(pattern.matches(&values), holds, "{pattern:?} {values:?}");
        }
    }
}
