//! Patterns in which `*` stands for any text.

/// A pattern with at least one `*`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Wildcard {
    first: Box<str>,
    /// Between the first and the last `*`.
    middle: Box<[Box<str>]>,
    last: Box<str>,
}

impl Wildcard {
    /// Reads a pattern; `None` without a `*`.
    pub(super) fn of(pattern: &str) -> Option<Self> {
        let (first, rest) = pattern.split_once('*')?;
        let (middle, last) = match rest.rsplit_once('*') {
            Some((middle, last)) => {
                // Two `*` beside each other are as good as one.
                let parts = middle.split('*').filter(|part| !part.is_empty());
                (parts.map(Box::from).collect(), last)
            }
            None => (Box::default(), rest),
        };
        Some(Self { first: first.into(), middle, last: last.into() })
    }

    /// Whether a text that begins with this may match.
    pub(super) fn may_begin_with(&self, text: &str) -> bool {
        text.starts_with(&*self.first) || self.first.starts_with(text)
    }

    /// Whether the whole text matches.
    pub(super) fn matches(&self, text: &str) -> bool {
        let rest = text.strip_prefix(&*self.first).and_then(|rest| rest.strip_suffix(&*self.last));
        let Some(mut rest) = rest else { return false };
        for part in &self.middle {
            let Some((_, after)) = rest.split_once(&**part) else { return false };
            rest = after;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn star_stands_for_any_text() {
        for (pattern, matching, others) in [
            ("foo*", &["foo", "foobar"][..], &["f", "afoo"][..]),
            ("*", &["", "x"], &[]),
            ("*foo", &["foo", "xfoo"], &["foox"]),
            ("a*b*c", &["abc", "aXbYc", "abbc"], &["ab", "acb", "ac"]),
            ("aa*aa", &["aaaa", "aaXaa"], &["aa", "aaa"]),
            ("a**b", &["ab", "aXb"], &["a"]),
        ] {
            let wildcard = Wildcard::of(pattern).unwrap();
            for text in matching {
                assert!(wildcard.matches(text), "{pattern} {text}");
            }
            for text in others {
                assert!(!wildcard.matches(text), "{pattern} {text}");
            }
        }
        assert!(Wildcard::of("plain").is_none());
    }
}
