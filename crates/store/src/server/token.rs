//! The bearer token that callers show.

use std::fmt;
use std::path::Path;

use subtle::ConstantTimeEq;

/// A secret of visible ASCII. Never shown.
#[derive(Clone)]
pub struct Token(Vec<u8>);

/// Why a token file is refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It cannot be read.
    #[error("cannot read the token file {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// It holds no token.
    #[error("the token file {0} must hold one token of visible ASCII characters")]
    Empty(String),
}

impl Token {
    /// Reads the token that a file holds; white space around it does not count.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no token.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        let shown = || path.display().to_string();
        let text = std::fs::read(path).map_err(|source| TokenError::Read { path: shown(), source })?;
        Self::new(text.trim_ascii()).ok_or_else(|| TokenError::Empty(shown()))
    }

    /// A token of visible ASCII; `None` for anything else.
    pub fn new(token: &[u8]) -> Option<Self> {
        (!token.is_empty() && token.iter().all(u8::is_ascii_graphic)).then(|| Self(token.to_owned()))
    }

    /// Whether an `Authorization` header shows this token. Takes the same time for every wrong one of its
    /// length.
    pub fn admits(&self, authorization: &[u8]) -> bool {
        match authorization.split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                self.0.ct_eq(token.trim_ascii()).into()
            }
            _ => false,
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_admitted() {
        let token = Token::new(b"s3cret").unwrap();
        assert!(token.admits(b"Bearer s3cret") && token.admits(b"bearer s3cret"));
        for wrong in ["", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Basic s3cret", "s3cret"] {
            assert!(!token.admits(wrong.as_bytes()), "{wrong}");
        }
        assert!(Token::new(b"").is_none() && Token::new(b"a b").is_none());
    }
}
