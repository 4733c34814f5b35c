//! Log lines, through Envoy: the module's own, and those of the store's library.

use std::io;
use std::sync::Once;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::abi::process;

const DEBUG: u32 = 1;
const INFO: u32 = 2;
const WARN: u32 = 3;
const ERROR: u32 = 4;

/// Writes what operators may look for.
pub fn info(line: &str) {
    process::log(INFO, &format!("quotagate: {line}"));
}

/// Writes a warning.
pub fn warn(line: &str) {
    process::log(WARN, &format!("quotagate: {line}"));
}

/// Writes an error.
pub fn error(line: &str) {
    process::log(ERROR, &format!("quotagate: {line}"));
}

/// Sends what the store's library logs to Envoy's log. Only the first call does anything.
pub fn follow_library() {
    static FIRST: Once = Once::new();
    FIRST.call_once(|| {
        let level = if process::logs(DEBUG) { Level::DEBUG } else { Level::INFO };
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_max_level(level)
            .with_writer(ToEnvoy)
            .finish();
        // Another library of the process may have set one before. Then its log has the lines.
        let _ = tracing::subscriber::set_global_default(subscriber);
    });
}

struct ToEnvoy;

/// One line.
struct Line(u32);

impl<'w> MakeWriter<'w> for ToEnvoy {
    type Writer = Line;

    fn make_writer(&'w self) -> Line {
        Line(INFO)
    }

    fn make_writer_for(&'w self, event: &Metadata<'_>) -> Line {
        Line(match *event.level() {
            Level::ERROR => ERROR,
            Level::WARN => WARN,
            Level::INFO => INFO,
            Level::DEBUG | Level::TRACE => DEBUG,
        })
    }
}

impl io::Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        process::log(self.0, &format!("quotagate: {}", String::from_utf8_lossy(bytes).trim_end()));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
