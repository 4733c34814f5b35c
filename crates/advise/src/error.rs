//! Why there is no advice.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why there is no advice.
#[derive(Debug, Error)]
pub enum Error {
    /// Options contradict each other.
    #[error("{0}")]
    Usage(String),
    /// A log cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Unreadable {
        /// The log.
        path: PathBuf,
        /// The error of the operating system.
        error: io::Error,
    },
    /// No line of any log can be read as a request.
    #[error(
        "{} is not an access log in the expected format: its first line is {line:?}{lack}. Expected is one JSON object per \
         line, such as {EXAMPLE}, or text with --format, such as {FORMAT:?}. If your fields have other names, use \
         --time-field and --key-field", path.display()
    )]
    NoLog {
        /// The first log with lines.
        path: PathBuf,
        /// Its first line.
        line: String,
        /// What the line lacks, in parentheses, or nothing.
        lack: String,
    },
    /// Several policies counted the requests of the log.
    #[error(
        "the log has requests of several policies, such as {0} and {1}: choose one with --policy"
    )]
    SeveralPolicies(String, String),
    /// No request was counted.
    #[error("there is nothing to advise on: {0}")]
    Nothing(String),
    /// A bug of the advisor.
    #[error("a thread panicked: please report this")]
    Panicked,
}

/// A format with the necessary fields in front, where no client can shift them.
const FORMAT: &str = "[%START_TIME%] %FILTER_STATE(wasm.quotagate.partition:PLAIN)% %FILTER_STATE(wasm.quotagate.policy:PLAIN)% ...";
/// A line of the format in `envoy/access_log.yaml`, with the necessary fields only.
const EXAMPLE: &str = "{\"time\":\"2026-01-31T12:00:00.000Z\",\"quota_policy\":\"per-caller\",\"quota_partition\":\"jwt.sub=alice\"}";
