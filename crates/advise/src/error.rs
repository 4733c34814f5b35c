//! Why there is no advice.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no advice.
#[derive(Debug, Error)]
pub enum Error {
    /// What was asked for does not fit together.
    #[error("{0}")]
    Usage(String),
    /// A log cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Unreadable {
        /// The log.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// No line of any log looks like a request.
    #[error(
        "{} is no access log that can be read: its first line is {line:?}{lack}. Expected is a JSON object a line, such as \
         {EXAMPLE}, or text with --format, such as {FORMAT:?}; other names are told by --time-field and --key-field", path.display()
    )]
    NoLog {
        /// The first of them.
        path: PathBuf,
        /// How it begins.
        line: String,
        /// What text lines lack to be read, in brackets; or nothing.
        lack: String,
    },
    /// The log holds what several policies counted.
    #[error("the log has requests of several policies, {0} and {1} among them: say which with --policy")]
    SeveralPolicies(String, String),
    /// Nothing was counted.
    #[error("there is nothing to advise on: {0}")]
    Nothing(String),
    /// A fault of ours.
    #[error("a thread has come to an unexpected end: please report this")]
    Panicked,
}

/// A format with what is needed, where a client cannot shift it.
const FORMAT: &str = "[%START_TIME%] %FILTER_STATE(wasm.quotagate.partition:PLAIN)% %FILTER_STATE(wasm.quotagate.policy:PLAIN)% ...";
/// A line as `envoy/access_log.yaml` has it, without what is not read.
const EXAMPLE: &str = "{\"time\":\"2026-01-31T12:00:00.000Z\",\"quota_policy\":\"per-caller\",\"quota_partition\":\"jwt.sub=alice\"}";
