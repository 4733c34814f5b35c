//! How a command ends that could not do its work.

use std::collections::BTreeSet;
use std::fmt;
use std::process::ExitCode;

use crate::standard::error_line;
use crate::text::clean;

/// What went wrong: a sentence, and perhaps lines of help after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The store refused the request, or does not know a name in it: status 1.
    Refused(String),
    /// There is no such dial, override or counter: status 1.
    Absent(String),
    /// What was printed may be a part only: status 1.
    Incomplete(String),
    /// The command is wrong: status 2.
    Usage(String),
    /// No server answered, or one that is no store, or the store cannot reach Redis: status 3.
    Unreachable(String),
    /// The reader of standard output has gone away. That is no error: status 0.
    ReaderGone,
}

/// Fails if an answer was not complete, for each reason once, so that a script does not take a part
/// for the whole.
pub(crate) fn whole<'w>(incomplete: impl IntoIterator<Item = &'w str>) -> Result<(), Failure> {
    let reasons: BTreeSet<&str> = incomplete.into_iter().collect();
    if reasons.is_empty() {
        return Ok(());
    }
    let reasons = reasons.into_iter().collect::<Vec<_>>().join("; ");
    Err(Failure::Incomplete(format!("the answer may not be complete: {reasons}")))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.parts().0)
    }
}

impl Failure {
    /// Its text and its status.
    fn parts(&self) -> (&str, u8) {
        match self {
            Self::Refused(text) | Self::Absent(text) | Self::Incomplete(text) => (text, 1),
            Self::Usage(text) => (text, 2),
            Self::Unreachable(text) => (text, 3),
            Self::ReaderGone => ("", 0),
        }
    }

    /// Writes it to standard error.
    pub(crate) fn report(&self) -> ExitCode {
        let (text, status) = self.parts();
        for (i, line) in text.lines().enumerate() {
            let line = clean(line);
            if i == 0 { error_line(&format!("quotagate: {line}")) } else { error_line(&line) }
        }
        ExitCode::from(status)
    }
}
