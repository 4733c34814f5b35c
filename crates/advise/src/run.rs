//! Reads logs on all processors and counts.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use xxhash_rust::xxh3::xxh3_64;

use crate::count::{Batch, Counted, Counts, Taken};
use crate::faults::{self, Malformed};
use crate::input::{Chunk, Faults, Piece, Progress, Schedule};
use crate::line::{Line, Reader, Request};
use crate::progress::Bar;
use crate::{Error, Options};

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
    /// Requests that were counted.
    pub(crate) requests: u64,
    /// Units that they took.
    pub(crate) units: u64,
    /// Requests that name nobody.
    pub(crate) nobody: u64,
    /// Requests that were not asked for.
    pub(crate) other: u64,
    pub(crate) malformed: Malformed,
    /// The numbers of the logs that have lines.
    with_lines: BTreeSet<usize>,
    /// Those that have a line that is understood.
    understood: BTreeSet<usize>,
    /// When the first and the last request began, in milliseconds since the Unix epoch.
    pub(crate) span: Option<(i64, i64)>,
    /// A name of somebody who was counted.
    pub(crate) somebody: Option<String>,
}

/// What was read and counted.
pub(crate) struct Outcome {
    pub(crate) read: Read,
    pub(crate) counted: Counted,
    /// The only policy that was seen.
    pub(crate) policy: Option<String>,
    /// Logs that have lines, and none that is understood.
    pub(crate) no_logs: Vec<PathBuf>,
    /// Logs that were cut short, and how.
    pub(crate) damaged: Vec<(PathBuf, String)>,
}

/// Reads and counts everything.
pub(crate) fn run(options: &Options) -> Result<Outcome, Error> {
    let reader = Reader::new(&options.fields, &options.only).map_err(Error::Usage)?;
    let threads = options.threads.max(1);
    let progress = Progress::default();
    let ahead = options.lateness_ms();
    let schedule = Schedule::new(&options.logs, &reader, &progress, threads, ahead);
    let schedule = schedule.map_err(|(path, error)| Error::Unreadable { path, error })?;
    let job = Job {
        reader: &reader,
        schedule: &schedule,
        counts: Counts::new(options.memory),
        window_ms: i64::from(options.window_s) * 1000,
        lateness_ms: ahead,
        policy: OnceLock::new(),
        failure: Mutex::new(None),
        bar: Bar::new(&options.logs, &progress, options.progress),
    };
    let reads = thread::scope(|scope| {
        let job = &job;
        let start = |thread| scope.spawn(move || job.work(thread));
        let handles: Vec<_> = (0..threads).map(start).collect();
        handles
            .into_iter()
            .map(|handle| handle.join().map_err(|_| Error::Panicked))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let Job { counts, policy, failure, bar, .. } = job;
    drop(bar);
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let Faults { failure, damaged } = schedule.faults();
    if let Some((path, error)) = failure {
        return Err(Error::Unreadable { path, error });
    }
    let mut read = Read::default();
    reads.into_iter().for_each(|other| read.merge(other));
    let path = |number: usize| options.logs.get(number).cloned().unwrap_or_default();
    if read.understood.is_empty()
        && let Some(first) = read.with_lines.first()
    {
        let shown = read.malformed.first().next();
        let (log, line) = shown.map_or((*first, ""), |(log, _, line)| (log, line));
        let text = !line.starts_with('{');
        let lack =
            reader.text_lacks().filter(|_| text).map(|lack| format!(" (the format for text has no {lack})"));
        return Err(Error::NoLog { path: path(log), line: line.to_owned(), lack: lack.unwrap_or_default() });
    }
    let no_logs = read.with_lines.difference(&read.understood).map(|log| path(*log)).collect();
    let policy = policy.into_inner().map(|name| faults::shown(&name));
    Ok(Outcome { read, counted: counts.finish(threads), policy, no_logs, damaged })
}

struct Job<'a> {
    reader: &'a Reader,
    schedule: &'a Schedule<'a>,
    counts: Counts,
    window_ms: i64,
    lateness_ms: i64,
    policy: OnceLock<Vec<u8>>,
    failure: Mutex<Option<Error>>,
    bar: Bar,
}

impl Job<'_> {
    /// What one thread does.
    fn work(&self, thread: usize) -> Read {
        let _end = StopAtPanic(self.schedule);
        let (mut read, mut batch, mut chunk) = (Read::default(), Batch::new(), Chunk::new());
        while let Some(piece) = self.schedule.next(thread, || self.counts.pressed(), &mut chunk) {
            let before = (read.lines, read.malformed.number());
            read.malformed.add_too_long(piece.too_long);
            read.lines += piece.too_long;
            read.bytes += chunk.len() as u64;
            if let Err(error) = self.chunk(piece, &chunk, &mut read, &mut batch) {
                self.fail(error);
                break;
            }
            let lines = read.lines - before.0;
            if lines > 0 {
                read.with_lines.insert(piece.log);
            }
            if lines > read.malformed.number() - before.1 {
                read.understood.insert(piece.log);
            }
            let open = self.window(self.schedule.reached().saturating_sub(self.lateness_ms));
            self.counts.add(&mut batch, open);
            self.bar.update();
        }
        read
    }

    fn chunk(&self, piece: Piece, chunk: &[u8], read: &mut Read, batch: &mut Batch) -> Result<(), Error> {
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', chunk).chain([chunk.len()]) {
            let line = chunk.get(begin..end).unwrap_or_default();
            let offset = piece.offset + begin as u64;
            begin = end + 1;
            if line.trim_ascii().is_empty() {
                continue;
            }
            read.lines += 1;
            match self.reader.read(line) {
                Line::Request(request) => match self.taken(&request) {
                    Some(taken) => {
                        self.check_policy(&request)?;
                        read.count(&request);
                        batch.push(taken);
                    }
                    None => read.malformed.add(piece.log, offset, line),
                },
                Line::Nobody => read.nobody += 1,
                Line::Other => read.other += 1,
                Line::Malformed => read.malformed.add(piece.log, offset, line),
            }
        }
        Ok(())
    }

    /// None where its window has no number: before 1970, or long after the year 2100.
    fn taken(&self, request: &Request<'_>) -> Option<Taken> {
        let window = u32::try_from(request.time_ms.div_euclid(self.window_ms)).ok()?;
        Some(Taken { user: xxh3_64(&request.key), window, units: request.cost })
    }

    fn window(&self, time_ms: i64) -> u32 {
        let window = time_ms.div_euclid(self.window_ms).max(0);
        u32::try_from(window).unwrap_or(u32::MAX)
    }

    /// One quota is for one policy.
    fn check_policy(&self, request: &Request<'_>) -> Result<(), Error> {
        let Some(name) = &request.policy else { return Ok(()) };
        let first = self.policy.get_or_init(|| name.to_vec());
        if **first == **name {
            return Ok(());
        }
        Err(Error::SeveralPolicies(faults::shown(first), faults::shown(name)))
    }

    fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.schedule.stop();
    }
}

/// Lets no thread wait for one that is gone.
struct StopAtPanic<'a>(&'a Schedule<'a>);

impl Drop for StopAtPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}

impl Read {
    fn count(&mut self, request: &Request<'_>) {
        self.requests += 1;
        self.units += u64::from(request.cost);
        let (first, last) = self.span.unwrap_or((request.time_ms, request.time_ms));
        self.span = Some((first.min(request.time_ms), last.max(request.time_ms)));
        // Who shares a counter for want of a name tells least.
        if self.somebody.as_deref().is_none_or(|name| name == "-") {
            self.somebody = Some(faults::shown(&request.key));
        }
    }

    fn merge(&mut self, other: Self) {
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.units += other.units;
        self.nobody += other.nobody;
        self.other += other.other;
        self.malformed.merge(other.malformed);
        self.with_lines.extend(other.with_lines);
        self.understood.extend(other.understood);
        self.span = match (self.span, other.span) {
            (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
            (one, two) => one.or(two),
        };
        self.somebody = self.somebody.take().or(other.somebody);
    }
}
