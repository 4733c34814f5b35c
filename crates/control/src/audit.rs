//! The audit log: a line of JSON for each change, each refused try, and each dial or override that
//! has ended.
//!
//! A change is written before its operator gets the answer, and after it is in history. Lines are
//! appended one by one to a file that is opened for each of them, so that it can be renamed at any
//! time. One thread writes them all, so a disk that hangs holds up nothing else. What cannot be
//! written stands in the log of the store instead, which says why.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use quotagate_operate::Author;
use quotagate_operate::api::Event;
use quotagate_operate::text::harmless;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The longest that an operator waits for a line.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most refused tries of unknown operators that are written in a second. Anyone can send them.
const MAX_UNKNOWN: u64 = 20;
/// Most lines that wait for the disk.
const MAX_WAITING: usize = 256;
/// The name that stands for standard error.
const STDERR: &str = "-";

/// The audit log.
pub struct AuditLog {
    path: PathBuf,
    writer: SyncSender<WaitingLine>,
    unknown: Mutex<UnknownTries>,
}

/// A line, and who waits until it is written.
type WaitingLine = (String, oneshot::Sender<io::Result<()>>);

/// The refused tries of unknown operators.
struct UnknownTries {
    /// When the second began in which they are counted.
    since: Instant,
    written: u64,
    omitted: u64,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The change is made.
    Done,
    /// The operator may not do that, or it is wrong.
    Refused,
    /// The store could not do it.
    Failed,
}

/// A line.
#[derive(Clone, Debug, Serialize)]
pub struct AuditLine {
    /// When, in UTC.
    pub time: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The name of the operator; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// More about the operator. `action` is what it tried.
    #[serde(flatten)]
    pub author: Author,
    /// Where.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// What was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// What is there now; of a refused change, the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
    /// What was done, or why it was not, in a sentence.
    pub text: String,
    /// How many refused tries of unknown operators were left out before this one.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted: u64,
}

impl AuditLog {
    /// The log in this file, or on standard error if the path is `-`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn open(path: &Path) -> io::Result<Self> {
        let since = Instant::now();
        let unknown = Mutex::new(UnknownTries { since, written: 0, omitted: 0 });
        append(path, b"")?;
        let (writer, waiting) = sync_channel(MAX_WAITING);
        let own = path.to_owned();
        thread::Builder::new().name("audit".to_owned()).spawn(move || write_all(&own, &waiting))?;
        Ok(Self { path: path.to_owned(), writer, unknown })
    }

    /// Writes a line. Does not wait for a disk that hangs.
    pub async fn write(&self, mut line: AuditLine) {
        if line.actor.is_none() && line.outcome == Outcome::Refused {
            match self.admit(Instant::now()) {
                Some(omitted) => line.omitted = omitted,
                None => return,
            }
        }
        let Ok(text) = serde_json::to_string(&line) else { return };
        let text = harmless(&text) + "\n";
        let (done, written) = oneshot::channel();
        let because = if self.writer.try_send((text.clone(), done)).is_err() {
            format!("{MAX_WAITING} lines wait for the disk")
        } else {
            match timeout(PATIENCE, written).await {
                Ok(Ok(Ok(()))) => return,
                Ok(Ok(Err(error))) => error.to_string(),
                Ok(Err(_)) => "its thread has ended".to_owned(),
                Err(_) => format!("it is not written after {} s", PATIENCE.as_secs()),
            }
        };
        let (path, line) = (self.path.display(), text.trim_end());
        tracing::error!("cannot write to the audit log {path}: {because}: {line}");
    }

    /// How many tries of unknown operators were left out before this one, if it is to be written.
    fn admit(&self, now: Instant) -> Option<u64> {
        // Nothing panics while the lock is held, so the content of a poisoned lock is intact.
        let mut tries = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(tries.since) >= Duration::from_secs(1) {
            (tries.since, tries.written) = (now, 0);
        }
        if tries.written >= MAX_UNKNOWN {
            tries.omitted = tries.omitted.saturating_add(1);
            return None;
        }
        tries.written = tries.written.saturating_add(1);
        Some(std::mem::take(&mut tries.omitted))
    }
}

impl AuditLine {
    /// A change that is in history.
    pub fn of(domain: &str, event: &Event) -> Self {
        let Event { at_ms, by, done, author, policy, partition, before, after, .. } = event.clone();
        Self {
            time: utc(at_ms),
            outcome: Outcome::Done,
            actor: Some(by),
            author,
            domain: Some(domain.to_owned()),
            policy,
            partition,
            before,
            after,
            text: done,
            omitted: 0,
        }
    }

    /// An attempt that was not carried out.
    pub fn tried(outcome: Outcome, actor: Option<String>, author: Author, text: String) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            time: utc(u64::try_from(now.as_millis()).unwrap_or(u64::MAX)),
            outcome,
            actor,
            author,
            domain: None,
            policy: None,
            partition: None,
            before: None,
            after: None,
            text,
            omitted: 0,
        }
    }
}

/// A time in milliseconds since the Unix epoch, as text.
fn utc(at_ms: u64) -> String {
    let at = i64::try_from(at_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.unwrap_or(Timestamp::MAX).to_string()
}

/// Writes lines until nobody can send one.
fn write_all(path: &Path, waiting: &Receiver<WaitingLine>) {
    for (line, done) in waiting {
        // Who sent it may have given up.
        let _ = done.send(append(path, line.as_bytes()));
    }
}

fn append(path: &Path, line: &[u8]) -> io::Result<()> {
    if path == Path::new(STDERR) {
        return io::stderr().lock().write_all(line);
    }
    // Only its owner may read it, as it names who was counted.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)?.write_all(line)
}

const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(actor: Option<&str>) -> AuditLine {
        let actor = actor.map(str::to_owned);
        AuditLine::tried(Outcome::Refused, actor, Author::default(), "no".to_owned())
    }

    fn lines(path: &Path) -> Vec<Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn file_may_be_renamed_at_any_time() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("audit"), directory.path().join("audit.1"));
        let log = AuditLog::open(&path).unwrap();
        log.write(refused(Some("ann"))).await;
        std::fs::rename(&path, &old).unwrap();
        log.write(refused(Some("bob"))).await;
        assert_eq!(
            (&lines(&old)[0]["actor"], &lines(&path)[0]["actor"]),
            (&"ann".into(), &"bob".into())
        );
        assert!(AuditLog::open(&directory.path().join("absent").join("audit")).is_err());
    }

    #[tokio::test]
    async fn line_shows_nobody_another_text_than_it_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let log = AuditLog::open(&path).unwrap();
        let said = "a\u{202e}b\u{2028}c\u{feff}d\u{85}é";
        log.write(AuditLine { policy: Some(said.to_owned()), ..refused(Some(said)) }).await;
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(['\u{202e}', '\u{2028}', '\u{feff}', '\u{85}']), "{text:?}");
        assert!(text.contains("a\\u202eb\\u2028c"), "{text:?}");
        let line = &lines(&path)[0];
        assert_eq!((&line["actor"], &line["policy"]), (&said.into(), &said.into()));
    }

    #[tokio::test]
    async fn disk_that_hangs_holds_up_no_operator_for_long() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let (writer, waiting) = sync_channel(1);
        let unknown = Mutex::new(UnknownTries { since: Instant::now(), written: 0, omitted: 0 });
        let log = AuditLog { path: pipe, writer, unknown };
        for name in ["ann", "bob"] {
            log.write(refused(Some(name))).await;
        }
        assert!(waiting.try_recv().is_ok_and(|(line, _)| line.contains("ann")));
        assert!(waiting.try_recv().is_err(), "the queue had no room for a second line");
    }

    #[tokio::test]
    async fn unknown_operators_cannot_flood_the_log_and_known_ones_are_always_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let log = AuditLog::open(&path).unwrap();
        let now = Instant::now();
        let admitted = (0..100).filter(|_| log.admit(now).is_some()).count();
        assert_eq!(admitted, 20);
        assert_eq!(log.admit(now + Duration::from_secs(1)), Some(80), "and it says how many");
        assert_eq!(log.admit(now + Duration::from_secs(1)), Some(0));
        for _ in 0..100 {
            log.write(refused(Some("ann"))).await;
        }
        assert_eq!(lines(&path).len(), 100);
    }
}
