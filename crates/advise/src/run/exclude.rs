//! Users to leave out.

/// Names, and prefixes of names.
#[derive(Debug)]
pub(crate) struct Exclude(Vec<Pattern>);

#[derive(Debug)]
enum Pattern {
    Name(Vec<u8>),
    Prefix(Vec<u8>),
}

impl Exclude {
    /// A pattern that ends in `*` is a prefix.
    pub(crate) fn new(patterns: &[String]) -> Self {
        let pattern = |text: &String| match text.strip_suffix('*') {
            Some(prefix) => Pattern::Prefix(prefix.into()),
            None => Pattern::Name(text.as_bytes().into()),
        };
        Self(patterns.iter().map(pattern).collect())
    }

    /// How many patterns there are.
    pub(crate) fn number(&self) -> usize {
        self.0.len()
    }

    /// The index of the first pattern that matches this user.
    pub(crate) fn find(&self, user: &[u8]) -> Option<usize> {
        self.0.iter().position(|pattern| match pattern {
            Pattern::Name(name) => name == user,
            Pattern::Prefix(prefix) => user.starts_with(prefix),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_prefixes_match() {
        let exclude = Exclude::new(&["jwt.sub=eve".to_owned(), "ip=192.0.2.*".to_owned()]);
        let users = ["jwt.sub=eve", "jwt.sub=eve2", "ip=192.0.2.7", "ip=192.0.20.7", ""];
        assert_eq!(
            users.map(|user| exclude.find(user.as_bytes())),
            [Some(0), None, Some(1), None, None]
        );
    }
}
