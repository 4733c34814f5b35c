//! Secrets in files, which are read again while the store runs.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// Most bytes of a file.
const MAX_BYTES: u64 = 64 * 1024;

/// What a file of secrets holds.
pub trait Secret: Sized {
    /// The content of a good file, in words: "`FILE` must hold `EXPECTED`".
    const EXPECTED: &'static str;

    /// Reads the content of a file.
    ///
    /// # Errors
    /// What is wrong with single lines, without their content; empty if the content as a whole is
    /// no such secret.
    fn parse(content: &[u8]) -> Result<Self, Vec<String>>;
}

/// A password: one line of text.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordLine(pub String);

/// A file with one line, the password.
pub type PasswordFile = SecretFile<PasswordLine>;

/// A file of secrets, whose last good content stays in use while the file is missing or wrong. The
/// content is never shown.
pub struct SecretFile<T> {
    path: PathBuf,
    state: RwLock<SecretState<T>>,
}

struct SecretState<T> {
    last: Option<Arc<T>>,
    /// What the log said last of the file; empty while the file is good.
    logged: String,
}

/// Why a file of secrets is refused.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It holds something else.
    #[error("{path} {reason}")]
    Malformed {
        /// The file.
        path: String,
        /// What it must hold, or all its faults.
        reason: String,
    },
}

impl<T: Secret> SecretFile<T> {
    /// The file at `path`, which is not read yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            state: RwLock::new(SecretState { last: None, logged: String::new() }),
        }
    }

    /// The file at `path`, which is read now.
    ///
    /// # Errors
    /// When it cannot be read, or holds something else.
    pub fn open(path: &Path) -> Result<Self, SecretError> {
        let file = Self::new(path);
        file.read()?;
        Ok(file)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again. Returns its last good content if it is missing or wrong now. The log
    /// says so once for each fault.
    ///
    /// # Errors
    /// When no content was ever good.
    pub fn read(&self) -> Result<Arc<T>, SecretError> {
        let found = self.load();
        // Nothing panics while the lock is held, so the content of a poisoned lock is intact.
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match (found, &state.last) {
            (Ok(secret), _) => {
                let secret = Arc::new(secret);
                *state = SecretState { last: Some(Arc::clone(&secret)), logged: String::new() };
                Ok(secret)
            }
            (Err(error), Some(last)) => {
                let last = Arc::clone(last);
                let said = error.to_string();
                if state.logged != said {
                    tracing::warn!("{said}; its last good content stays in use");
                }
                state.logged = said;
                Ok(last)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// The content that was read last, without reading the file.
    pub fn last(&self) -> Option<Arc<T>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).last.clone()
    }

    fn load(&self) -> Result<T, SecretError> {
        let path = || self.path.display().to_string();
        let mut content = Vec::new();
        File::open(&self.path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut content))
            .map_err(|source| SecretError::Unreadable { path: path(), source })?;
        // A file that is too long would be cut, and its last line be a secret that nobody chose.
        let is_whole = content.len() as u64 <= MAX_BYTES;
        let secret = if is_whole { T::parse(&content) } else { Err(Vec::new()) };
        secret.map_err(|faults| SecretError::Malformed {
            path: path(),
            reason: if faults.is_empty() {
                format!("must hold {}", T::EXPECTED)
            } else {
                format!("has faults: {}", faults.join("; "))
            },
        })
    }
}

impl<T> fmt::Debug for SecretFile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SecretFile").field(&self.path).finish()
    }
}

impl Secret for PasswordLine {
    const EXPECTED: &'static str = "one line of at most 64 KiB, the password";

    fn parse(content: &[u8]) -> Result<Self, Vec<String>> {
        let text = str::from_utf8(content).map_err(|_| Vec::new())?;
        let password = text.trim_end_matches(['\r', '\n']);
        let one_line = !password.is_empty() && !password.contains(['\r', '\n']);
        if one_line { Ok(Self(password.to_owned())) } else { Err(Vec::new()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn file_is_read_again_and_a_wrong_one_keeps_the_last_password() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let file = PasswordFile::new(&path);
        assert!(file.read().err().unwrap().to_string().contains("cannot be read: No such file"));
        for (text, expected) in [
            (Some("0ne\n"), "0ne"),
            (Some("tw0 words\r\n"), "tw0 words"),
            (Some(""), "tw0 words"),
            (Some("a\nb\n"), "tw0 words"),
            (None, "tw0 words"),
            (Some("thr33"), "thr33"),
        ] {
            match text {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
            }
            assert_eq!(file.read().unwrap().0, expected, "{text:?}");
        }
        fs::write(&path, "s3cret\nmore\n").unwrap();
        let error = PasswordFile::new(&path).read().err().unwrap().to_string();
        assert!(
            error.contains("must hold one line of at most 64 KiB, the password")
                && !error.contains("s3cret"),
            "{error}"
        );
    }
}
