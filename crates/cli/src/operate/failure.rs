//! How a command that talks to the store ends without having done its work.

use std::process::ExitCode;

use super::words::clean;
use crate::standard::tell_line;

/// What went wrong, as one who can mend it is told: a sentence, and perhaps lines of help after it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The store refused it, or knows no such thing: status 1.
    Refused(String),
    /// There is no such dial, override or counter: status 1.
    Absent(String),
    /// The command was given wrongly: status 2.
    Usage(String),
    /// Nobody answered, or nobody who speaks as the store does, or the store cannot reach Redis: status 3.
    Unreachable(String),
    /// Whoever read the output has gone, which is no fault of anyone: status 0.
    NobodyReads,
}

impl Failure {
    /// Tells it on standard error.
    pub(crate) fn tell(&self) -> ExitCode {
        let (text, status) = match self {
            Self::Refused(text) | Self::Absent(text) => (text, 1),
            Self::Usage(text) => (text, 2),
            Self::Unreachable(text) => (text, 3),
            Self::NobodyReads => return ExitCode::SUCCESS,
        };
        for (i, line) in text.lines().enumerate() {
            let line = clean(line);
            if i == 0 { tell_line(&format!("quotagate: {line}")) } else { tell_line(&line) }
        }
        ExitCode::from(status)
    }
}
