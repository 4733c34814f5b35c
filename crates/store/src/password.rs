//! A password in a file, which is read again for each connection.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Most bytes of a password file.
const LONGEST: u64 = 64 * 1024;

/// A file that holds one line, the password. Its content is never shown.
///
/// A file that cannot be read while the store runs is no reason to lose Redis: the last password stays in use.
pub struct PasswordFile {
    path: PathBuf,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    password: Option<String>,
    complained: bool,
}

/// Why a password file is refused.
#[derive(Debug, thiserror::Error)]
pub enum PasswordFileError {
    /// It cannot be read.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It holds something else than a password.
    #[error("{0} must hold one line of at most 64 KiB, the password")]
    Malformed(String),
}

impl PasswordFile {
    /// The file at `path`, which is not read yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), last: Mutex::default() }
    }

    /// The file at `path`, which holds a password.
    ///
    /// # Errors
    /// When it does not.
    pub fn open(path: &Path) -> Result<Self, PasswordFileError> {
        let file = Self::new(path);
        file.read()?;
        Ok(file)
    }

    /// The password that it holds now, or held before.
    ///
    /// # Errors
    /// When it was never good.
    pub fn read(&self) -> Result<String, PasswordFileError> {
        let found = self.look();
        // No panic can happen while it is locked, so a poisoned lock guards nothing that is broken.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match (found, &last.password) {
            (Ok(password), _) => {
                *last = Last { password: Some(password.clone()), complained: false };
                Ok(password)
            }
            (Err(error), Some(password)) => {
                let password = password.clone();
                if !last.complained {
                    tracing::warn!("{error}; the store goes on with the password that it held before");
                }
                last.complained = true;
                Ok(password)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn look(&self) -> Result<String, PasswordFileError> {
        let path = || self.path.display().to_string();
        let mut text = String::new();
        File::open(&self.path)
            .and_then(|file| file.take(LONGEST + 1).read_to_string(&mut text))
            .map_err(|source| PasswordFileError::Unreadable { path: path(), source })?;
        let password = text.trim_end_matches(['\r', '\n']);
        if text.len() as u64 > LONGEST || password.is_empty() || password.contains(['\r', '\n']) {
            return Err(PasswordFileError::Malformed(path()));
        }
        Ok(password.to_owned())
    }
}

impl fmt::Debug for PasswordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PasswordFile").field(&self.path).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_password_file_is_read_again_and_a_bad_one_keeps_the_last_password() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let file = PasswordFile::new(&path);
        assert!(file.read().unwrap_err().to_string().contains("cannot be read: No such file"));
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
            assert_eq!(file.read().unwrap(), expected, "{text:?}");
        }
        fs::write(&path, "s3cret\nmore\n").unwrap();
        let error = PasswordFile::new(&path).read().unwrap_err().to_string();
        assert!(
            error.contains("must hold one line of at most 64 KiB, the password") && !error.contains("s3cret"),
            "{error}"
        );
    }
}
