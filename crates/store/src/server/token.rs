//! The bearer tokens that callers show.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use subtle::{Choice, ConstantTimeEq};

use crate::secret::{Secret, SecretError, SecretFile};

/// The valid tokens; a caller shows one of them. Clones share the tokens and their updates. The
/// content is never shown.
///
/// A token is replaced without an outage in three steps: add the new one to the file, give it to
/// the callers, and remove the old one from the file.
#[derive(Clone)]
pub struct Tokens(Source);

#[derive(Clone)]
enum Source {
    Fixed(Arc<TokenLines>),
    File(Arc<SecretFile<TokenLines>>),
}

/// Tokens of visible ASCII characters, one on each line. Empty lines and white space around a token
/// do not count.
#[derive(PartialEq, Eq)]
struct TokenLines(Vec<Vec<u8>>);

impl Tokens {
    /// Reads the tokens in a file, one on each line.
    ///
    /// # Errors
    /// When the file cannot be read, holds no token, or holds something else.
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        Ok(Self(Source::File(Arc::new(SecretFile::open(path)?))))
    }

    /// Tokens of visible ASCII characters, one on each line; `None` for anything else.
    pub fn new(text: &[u8]) -> Option<Self> {
        Some(Self(Source::Fixed(Arc::new(TokenLines::parse(text)?))))
    }

    /// Reads the file again. If it holds no tokens now, the tokens that it held before stay valid.
    pub fn read_again(&self) {
        let Source::File(file) = &self.0 else { return };
        let before = file.last();
        if let Ok(now) = file.read()
            && before.is_some_and(|before| before != now)
        {
            tracing::info!(
                "{} has changed: {} tokens are valid now",
                file.path().display(),
                now.0.len()
            );
        }
    }

    /// Whether an `Authorization` header shows a valid token. Takes the same time for all wrong
    /// tokens of one length.
    pub fn admits(&self, authorization: &[u8]) -> bool {
        let shown = match authorization.split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
            _ => return false,
        };
        let valid = match &self.0 {
            Source::Fixed(tokens) => Some(Arc::clone(tokens)),
            Source::File(file) => file.last(),
        };
        let any = |any: Choice, token: &Vec<u8>| any | token.ct_eq(shown);
        valid.is_some_and(|tokens| tokens.0.iter().fold(Choice::from(0), any).into())
    }
}

impl Secret for TokenLines {
    const EXPECTED: &'static str =
        "tokens of visible ASCII characters, one on each line, in at most 64 KiB";

    fn parse(content: &[u8]) -> Option<Self> {
        let lines = content
            .split(|byte| *byte == b'\n')
            .map(<[u8]>::trim_ascii)
            .filter(|line| !line.is_empty());
        let tokens: Vec<_> = lines.map(<[u8]>::to_owned).collect();
        let good = |token: &Vec<u8>| token.iter().all(u8::is_ascii_graphic);
        (!tokens.is_empty() && tokens.iter().all(good)).then_some(Self(tokens))
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tokens")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_valid_tokens_are_admitted() {
        let tokens = Tokens::new(b"s3cret\n\n 0ther \r\n").unwrap();
        for good in ["Bearer s3cret", "bearer s3cret", "Bearer 0ther"] {
            assert!(tokens.admits(good.as_bytes()), "{good}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer s3cre",
            "Bearer s3crets",
            "Basic s3cret",
            "s3cret",
            "Bearer s3cret\n0ther",
        ] {
            assert!(!tokens.admits(wrong.as_bytes()), "{wrong}");
        }
        for none in ["", "\n", "a b", "good\nno good"] {
            assert!(Tokens::new(none.as_bytes()).is_none(), "{none:?}");
        }
    }

    #[test]
    fn token_file_is_read_again_and_a_wrong_one_keeps_the_last_tokens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, "old\n").unwrap();
        let tokens = Tokens::from_file(&path).unwrap();
        let shared = tokens.clone();
        let valid =
            || ["old", "new"].map(|token| shared.admits(format!("Bearer {token}").as_bytes()));
        for (text, expected) in [
            (Some("old\n"), [true, false]),
            (Some("old\nnew\n"), [true, true]),
            (Some(""), [true, true]),
            (None, [true, true]),
            (Some("two words\n"), [true, true]),
            (Some("new\n"), [false, true]),
        ] {
            match text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            tokens.read_again();
            assert_eq!(valid(), expected, "{text:?}");
        }
    }
}
