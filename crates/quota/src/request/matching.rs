//! Which requests a policy is about.

use regex_lite::Regex;

use crate::request::Request;
use crate::request::facts::Facts;

/// Conditions that must all hold; without any, every request matches.
///
/// A request that lacks what a condition is about (a path, say) does not match.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    /// One of these; empty is any.
    pub(crate) methods: Vec<Box<str>>,
    /// The path.
    pub(crate) path: Option<PathPattern>,
    /// One of these; empty is any.
    pub(crate) hosts: Vec<HostPattern>,
}

/// A condition on the path without query string and fragment. Paths are compared byte by byte.
#[derive(Debug)]
pub(crate) enum PathPattern {
    /// The whole path.
    Exact(Box<str>),
    /// Its beginning.
    Prefix(Box<str>),
    /// Its end.
    Suffix(Box<str>),
    /// The whole path as an expression. Bytes that are no UTF-8 are U+FFFD to it, so that `.` and negated
    /// classes match them, and nothing else does.
    Regex(Box<Regex>),
}

/// A condition on the host without port, in lower case.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HostPattern {
    /// The whole host.
    Exact(Box<str>),
    /// `*.example.org`, kept as `.example.org`: any host below `example.org`, however deep, but not itself.
    Below(Box<str>),
}

impl Matcher {
    pub(crate) fn matches<R: Request>(&self, facts: &Facts<'_, R>) -> bool {
        let among_methods =
            || facts.method().is_some_and(|method| self.methods.iter().any(|m| m.as_bytes() == method));
        let among_hosts = || facts.host().is_some_and(|host| self.hosts.iter().any(|h| h.matches(host)));
        (self.methods.is_empty() || among_methods())
            && self.path.as_ref().is_none_or(|pattern| facts.path().is_some_and(|p| pattern.matches(p)))
            && (self.hosts.is_empty() || among_hosts())
    }
}

impl PathPattern {
    /// The expression `text`, which is to match a whole path.
    ///
    /// # Errors
    /// What is wrong with the expression.
    pub(crate) fn regex(text: &str) -> Result<Self, regex_lite::Error> {
        // By itself first: `a)|(b` must not become an expression by what is put around it.
        Regex::new(text)?;
        Ok(Self::Regex(Box::new(Regex::new(&format!(r"\A(?:{text})\z"))?)))
    }

    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(text) => path == text.as_bytes(),
            Self::Prefix(text) => path.starts_with(text.as_bytes()),
            Self::Suffix(text) => path.ends_with(text.as_bytes()),
            Self::Regex(regex) => regex.is_match(&String::from_utf8_lossy(path)),
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

/// A host without port and without the dot that may end it, in lower case.
pub(crate) fn normalize_host(mut authority: Vec<u8>) -> Vec<u8> {
    authority.truncate(host_len(&authority));
    if authority.last() == Some(&b'.') {
        authority.pop();
    }
    authority.make_ascii_lowercase();
    authority
}

/// How many bytes come before the port: what follows the last `:`, where that is digits only and the `:` is
/// not one of a bare IPv6 address.
fn host_len(authority: &[u8]) -> usize {
    let Some(colon) = authority.iter().rposition(|b| *b == b':') else {
        return authority.len();
    };
    let (host, port) = authority.split_at(colon);
    let bracketed = host.first() == Some(&b'[') && host.last() == Some(&b']');
    if port.iter().skip(1).all(u8::is_ascii_digit) && (bracketed || !host.contains(&b':')) {
        colon
    } else {
        authority.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_lose_port_case_and_the_last_dot() {
        for (authority, host) in [
            ("API.example.com", "api.example.com"),
            ("api.example.com:8080", "api.example.com"),
            ("api.example.com.:8080", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("api.example.com..", "api.example.com."),
            ("api.example.com:", "api.example.com"),
            ("api.example.com:http", "api.example.com:http"),
            ("[2001:DB8::1]:443", "[2001:db8::1]"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("2001:db8::1", "2001:db8::1"),
            (":80", ""),
            ("", ""),
        ] {
            assert_eq!(normalize_host(authority.into()), host.as_bytes(), "{authority}");
        }
    }

    #[test]
    fn a_wildcard_is_every_host_below_and_not_the_domain_itself() {
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
        assert!(PathPattern::Exact("/a".into()).matches(b"/a"));
        assert!(!PathPattern::Exact("/a".into()).matches(b"/a/"));
        assert!(PathPattern::Prefix("/api/".into()).matches(b"/api/\xff"));
        assert!(!PathPattern::Prefix("/api/".into()).matches(b"/api"));
        assert!(PathPattern::Suffix(".png".into()).matches(b"/\xff.png"));
        assert!(PathPattern::Exact("/k\u{e4}se".into()).matches(b"/k\xc3\xa4se"));
        assert!(!PathPattern::Exact("/\u{fffd}".into()).matches(b"/\xff"));
    }

    #[test]
    fn an_expression_matches_whole_paths() {
        let matches = |regex, path: &[u8]| PathPattern::regex(regex).unwrap().matches(path);
        assert!(matches("/a|/b", b"/b"));
        assert!(!matches("/a|/b", b"/bc"));
        assert!(!matches("/a|/b", b"x/a"));
        assert!(!matches("(?m)/a", b"/a\n/a"));
        assert!(!matches("/a$", b"/a\n"));
        assert!(matches("/users/[0-9]+", b"/users/42"));
        assert!(matches("/.*", b"/\xff\xfe"));
        assert!(!matches("/[a-z]*", b"/\xff"));
        for bad in ["a)|(b", "(", "[", "a{2", "(?x)a #"] {
            assert!(PathPattern::regex(bad).is_err(), "{bad}");
        }
    }
}
