//! Standard output and standard error.
//!
//! Nobody may read them, or the disk behind them may be full. What was done is done all the same: words about it are lost
//! then, and only data that cannot be written is a fault.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// How data was written.
#[derive(Debug)]
pub(crate) enum Written {
    /// All of it.
    Whole,
    /// Whoever read it has gone, which is no fault of anyone.
    NobodyReads,
}

/// Writes data to standard output.
///
/// # Errors
/// One sentence when it cannot be written.
pub(crate) fn write(text: &str) -> Result<Written, String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Written::Whole),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Written::NobodyReads),
        Err(error) => Err(format!("cannot write to standard output: {error}")),
    }
}

/// The same for a command whose last word that is.
///
/// # Errors
/// One sentence when it cannot be written.
pub(crate) fn print(text: &str) -> Result<ExitCode, String> {
    write(text).map(|_| ExitCode::SUCCESS)
}

/// Writes words to standard error, for what must be read before anything is done.
///
/// # Errors
/// When they cannot be written.
pub(crate) fn tell(words: &str) -> io::Result<()> {
    let mut err = io::stderr().lock();
    err.write_all(words.as_bytes()).and_then(|()| err.flush())
}

/// The same with a line's end, where that can be.
pub(crate) fn tell_line(words: &str) {
    let _ = tell(&format!("{words}\n"));
}
