//! The token that a store requires. It comes from a variable or a file, so that no command line
//! shows it.

use std::path::Path;
use std::{env, fmt, fs};

use super::address::AdminAddr;
use crate::operate::failure::Failure;

const VARIABLE: &str = "QUOTAGATE_TOKEN";
/// The variables of `quotagate serve`: the token of operators, else the one of all callers.
const FILE_VARIABLES: [&str; 2] = ["QUOTAGATE_ADMIN_TOKEN_FILE", "QUOTAGATE_TOKEN_FILE"];

/// A token and its source. It is never shown.
#[derive(Clone)]
pub(crate) enum Token {
    /// No token was given.
    None,
    /// A token of visible ASCII characters.
    Given {
        /// The token itself.
        secret: String,
        /// The flag or variable that it comes from.
        source: String,
    },
}

impl Token {
    /// The token in `file`, else in `QUOTAGATE_TOKEN`, else in the file that one of
    /// [`FILE_VARIABLES`] names. A file may hold several tokens; the first one is used. Lines with
    /// names, which hold digests, are passed over.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no token.
    pub(crate) fn find(file: Option<&Path>) -> Result<Self, Failure> {
        if let Some(file) = file {
            return Self::from_file(file, "--token-file");
        }
        if let Some(token) = env::var_os(VARIABLE).filter(|token| !token.is_empty()) {
            let text = token.to_str().map(str::trim).unwrap_or_default();
            return Self::new(text, VARIABLE.to_owned());
        }
        let named =
            |name| env::var_os(name).filter(|file| !file.is_empty()).map(|file| (name, file));
        match FILE_VARIABLES.into_iter().find_map(named) {
            Some((name, file)) => Self::from_file(Path::new(&file), name),
            None => Ok(Self::None),
        }
    }

    fn from_file(file: &Path, source: &str) -> Result<Self, Failure> {
        let source = format!("{source} {}", file.display());
        match fs::read_to_string(file) {
            Ok(text) => {
                let mut lines = text.lines().map(str::trim);
                let first = lines.find(|line| !line.is_empty() && !line.contains([' ', '\t']));
                Self::new(first.unwrap_or_default(), source)
            }
            Err(error) => Err(Failure::Usage(format!("{source} cannot be read: {error}"))),
        }
    }

    fn new(text: &str, source: String) -> Result<Self, Failure> {
        let token = Self::Given { secret: text.to_owned(), source };
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(token)
        } else {
            Err(token.malformed())
        }
    }

    /// The token to send.
    pub(crate) fn secret(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Given { secret, .. } => Some(secret),
        }
    }

    /// The error for a token with characters that no token may have.
    pub(crate) fn malformed(&self) -> Failure {
        let source = match self {
            Self::None => VARIABLE,
            Self::Given { source, .. } => source,
        };
        Failure::Usage(format!(
            "{source} must hold one token of visible ASCII characters, the secret that `quotagate token new` printed"
        ))
    }

    /// The error for a token that the store rejects, or for a missing one.
    pub(crate) fn refused(&self, address: &AdminAddr) -> Failure {
        Failure::Refused(match self {
            Self::None => format!(
                "the store at {address} requires a token: put it into {VARIABLE}, or into a file and pass that with --token-file"
            ),
            Self::Given { source, .. } => {
                format!(
                    "the store at {address} rejects the token from {source}: use a token of the store's --admin-token-file, or of its --token-file if it has no other"
                )
            }
        })
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
    fn a_token_is_one_word_and_never_shown() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        for (text, good) in [
            ("s3cret\n", true),
            ("", false),
            ("two words", false),
            ("\ns3cret\nb", true),
            ("é", false),
        ] {
            fs::write(&file, text).unwrap();
            let found = Token::find(Some(&file));
            assert_eq!(
                found.as_ref().ok().and_then(Token::secret),
                good.then_some("s3cret"),
                "{text:?}"
            );
            assert!(!format!("{found:?}").contains("s3cret"));
        }
        let missing = Token::find(Some(&directory.path().join("none"))).unwrap_err();
        assert!(matches!(missing, Failure::Usage(text) if text.contains("cannot be read")));
    }
}
