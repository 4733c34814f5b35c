//! Standard output and standard error.
//!
//! Their reader may have gone away, or their disk may be full. That changes nothing about work that
//! is done already: messages are lost then, and only data that cannot be written is an error.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// How much of the data was written.
#[derive(Debug)]
pub(crate) enum Written {
    /// All of it.
    Whole,
    /// The reader has gone away, which is no error.
    ReaderGone,
}

/// Writes data to standard output.
///
/// # Errors
/// One sentence when it cannot be written.
pub(crate) fn write(text: &str) -> Result<Written, String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Written::Whole),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
        Err(error) => Err(format!("cannot write to standard output: {error}")),
    }
}

/// Writes the last data of a command to standard output.
///
/// # Errors
/// One sentence when it cannot be written.
pub(crate) fn print(text: &str) -> Result<ExitCode, String> {
    write(text).map(|_| ExitCode::SUCCESS)
}

/// Writes a message to standard error that must be readable before the command goes on.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn error_text(message: &str) -> io::Result<()> {
    let mut err = io::stderr().lock();
    err.write_all(message.as_bytes()).and_then(|()| err.flush())
}

/// Writes a line to standard error, if that is possible.
pub(crate) fn error_line(message: &str) {
    let _ = error_text(&format!("{message}\n"));
}
