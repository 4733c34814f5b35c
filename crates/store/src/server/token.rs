//! The bearer tokens that callers show.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use subtle::{Choice, ConstantTimeEq};

/// Most bytes of a token file.
const LONGEST: u64 = 64 * 1024;

/// Tokens of which a caller shows one. A clone shares them, and what is read later. Never shown.
///
/// With two of them a token is exchanged without an outage: add the new one to the file, give it to the callers, and
/// take the old one out.
#[derive(Clone)]
pub struct Tokens(Arc<Shared>);

struct Shared {
    file: Option<PathBuf>,
    state: RwLock<State>,
}

struct State {
    tokens: Vec<Vec<u8>>,
    /// The file holds none just now, which was logged.
    complained: bool,
}

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
    /// It holds no token, or something else beside them.
    #[error(
        "the token file {0} must hold tokens of visible ASCII characters, one on each line, in at most 64 KiB"
    )]
    Malformed(String),
}

impl Tokens {
    /// Reads the tokens that a file holds, one a line. Empty lines and white space around a token do not count.
    ///
    /// # Errors
    /// When the file cannot be read, holds no token, or holds something else.
    pub fn from_file(path: &Path) -> Result<Self, TokenError> {
        Ok(Self::with(look(path)?, Some(path.to_owned())))
    }

    /// Tokens of visible ASCII, one a line; `None` for anything else.
    pub fn new(text: &[u8]) -> Option<Self> {
        Some(Self::with(parse(text)?, None))
    }

    fn with(tokens: Vec<Vec<u8>>, file: Option<PathBuf>) -> Self {
        Self(Arc::new(Shared { file, state: RwLock::new(State { tokens, complained: false }) }))
    }

    /// Reads their file again. Where it holds no tokens, those it held before stay valid.
    pub fn read_again(&self) {
        let Some(path) = &self.0.file else { return };
        let found = look(path);
        // No panic can happen while it is locked, so a poisoned lock guards nothing that is broken.
        let mut state = self.0.state.write().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(tokens) => {
                if tokens != state.tokens {
                    let count = tokens.len();
                    tracing::info!("{} has changed: tokens in use now: {count}", path.display());
                }
                *state = State { tokens, complained: false };
            }
            Err(error) => {
                if !state.complained {
                    tracing::warn!("{error}; the tokens that it held before stay valid");
                }
                state.complained = true;
            }
        }
    }

    /// Whether an `Authorization` header shows one of the tokens. Takes the same time for every wrong one of a length.
    pub fn admits(&self, authorization: &[u8]) -> bool {
        let shown = match authorization.split_at_checked(7) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => token.trim_ascii(),
            _ => return false,
        };
        let state = self.0.state.read().unwrap_or_else(PoisonError::into_inner);
        let any = |any: Choice, token: &Vec<u8>| any | token.ct_eq(shown);
        state.tokens.iter().fold(Choice::from(0), any).into()
    }
}

fn look(path: &Path) -> Result<Vec<Vec<u8>>, TokenError> {
    let shown = || path.display().to_string();
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST + 1).read_to_end(&mut text))
        .map_err(|source| TokenError::Read { path: shown(), source })?;
    // The last token of a file that is too long would be cut, and so be one that nobody chose.
    let whole = text.len() as u64 <= LONGEST;
    parse(&text).filter(|_| whole).ok_or_else(|| TokenError::Malformed(shown()))
}

fn parse(text: &[u8]) -> Option<Vec<Vec<u8>>> {
    let lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty());
    let tokens: Vec<_> = lines.map(<[u8]>::to_owned).collect();
    let good = |token: &Vec<u8>| token.iter().all(u8::is_ascii_graphic);
    (!tokens.is_empty() && tokens.iter().all(good)).then_some(tokens)
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
    fn only_the_tokens_themselves_are_admitted() {
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
    fn a_token_file_is_read_again_and_a_bad_one_keeps_the_last_tokens() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        fs::write(&path, "old\n").unwrap();
        let tokens = Tokens::from_file(&path).unwrap();
        let shared = tokens.clone();
        let valid = || ["old", "new"].map(|token| shared.admits(format!("Bearer {token}").as_bytes()));
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
