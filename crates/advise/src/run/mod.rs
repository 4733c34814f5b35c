//! Reads logs on all processors and counts requests.

mod exclude;
mod malformed;
mod progress;
mod read;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use quotagate_protocol::is_policy;
use xxhash_rust::xxh3::xxh3_64;

pub(crate) use self::read::Read;

use self::exclude::Exclude;
use self::progress::Bar;
use crate::concurrency::{Concurrent, Span, Spans};
use crate::count::{Batch, Counted, Counts, Taken};
use crate::display::shown;
use crate::error::Error;
use crate::input::{Chunk, ChunkPosition, Faults, Progress, Schedule};
use crate::line::{Line, Missing, Parts, Reader, Request};
use crate::options::Options;
use crate::window::{Numbers, Scale, Window};

/// Totals and counts of all logs.
pub(crate) struct Outcome {
    pub(crate) read: Read,
    pub(crate) windows: Vec<OfWindow>,
    /// How many units ran at once, if durations are read.
    pub(crate) concurrent: Option<Concurrent>,
    /// The only policy in the logs.
    pub(crate) policy: Option<String>,
    /// Logs that have lines but no readable one.
    pub(crate) unreadable: Vec<PathBuf>,
    /// Truncated logs, with the error that ended them.
    pub(crate) damaged: Vec<(PathBuf, String)>,
}

/// The counts for one window.
pub(crate) struct OfWindow {
    pub(crate) window: Window,
    pub(crate) scale: Scale,
    pub(crate) counted: Counted,
}

/// Reads and counts everything.
pub(crate) fn run(options: &Options, windows: Vec<Window>) -> Result<Outcome, Error> {
    let reader = Reader::new(&options.fields, &options.only).map_err(Error::Usage)?;
    let threads = options.threads.max(1);
    let progress = Progress::default();
    let ahead = options.lateness_ms();
    let schedule = Schedule::new(&options.logs, &reader, &progress, threads, ahead);
    let schedule = schedule.map_err(|(path, error)| Error::Unreadable { path, error })?;
    let job = Job {
        reader: &reader,
        schedule: &schedule,
        windows: windows.into_iter().map(|window| Counting::new(options, window)).collect(),
        spans: options.fields.duration.is_some().then(|| Spans::new(share(options), threads)),
        exclude: Exclude::new(&options.exclude),
        lateness_ms: ahead,
        policy: OnceLock::new(),
        no_time: OnceLock::new(),
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
    let Job { windows, spans, policy, no_time, failure, bar, .. } = job;
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
    if read.readable.is_empty()
        && let Some(first) = read.with_lines.first()
    {
        let shown = read.malformed.first().next();
        let (log, line) = shown.map_or((*first, ""), |(log, _, line)| (log, line));
        let lack = if line.starts_with('{') {
            no_time.into_inner().map(|why| format!(" ({why})"))
        } else {
            reader.text_lacks().map(|lack| format!(" (the format for text has no {lack})"))
        };
        return Err(Error::NoLog {
            path: path(log),
            line: line.to_owned(),
            lack: lack.unwrap_or_default(),
        });
    }
    let unreadable = read.with_lines.difference(&read.readable).map(|log| path(*log)).collect();
    let policy = policy.into_inner().map(|name| match String::from_utf8(name) {
        Ok(name) if is_policy(&name) => name,
        Ok(name) => shown(name.as_bytes()),
        Err(error) => shown(error.as_bytes()),
    });
    // First, because its requests take more memory than what is known of them in the end.
    let concurrent = spans.map(|spans| spans.finish(threads));
    let windows = windows
        .into_iter()
        .map(|Counting { window, scale, counts }| {
            let counted = counts.finish(threads, options.without_top);
            OfWindow { window, scale, counted }
        })
        .collect();
    Ok(Outcome { read, windows, concurrent, policy, unreadable, damaged })
}

struct Job<'a> {
    reader: &'a Reader,
    schedule: &'a Schedule<'a>,
    windows: Vec<Counting>,
    /// Running requests, if durations are read.
    spans: Option<Spans>,
    exclude: Exclude,
    lateness_ms: i64,
    policy: OnceLock<Vec<u8>>,
    /// Why a JSON line has no time.
    no_time: OnceLock<String>,
    failure: Mutex<Option<Error>>,
    bar: Bar,
}

/// What all threads share to count in one window.
struct Counting {
    window: Window,
    scale: Scale,
    counts: Counts,
}

/// What one thread has to count in one window.
struct Lane<'j> {
    numbers: Numbers<'j>,
    batch: Batch,
}

/// The bytes for each window, and for running requests if durations are read.
fn share(options: &Options) -> usize {
    let parts = options.windows.len() + usize::from(options.fields.duration.is_some());
    options.memory / parts.max(1)
}

impl Counting {
    fn new(options: &Options, window: Window) -> Self {
        let memory = share(options);
        let top = options.show_users.max(options.without_top);
        let scale = Scale::new(&window);
        let reach = scale.reach();
        Self { window, scale, counts: Counts::new(memory, top, reach) }
    }
}

impl Job<'_> {
    /// The work of one thread.
    fn work<'j>(&'j self, thread: usize) -> Read {
        let _end = StopAtPanic(self.schedule);
        let lane =
            |of: &'j Counting| Lane { numbers: Numbers::new(&of.scale), batch: Batch::new() };
        let mut lanes: Vec<Lane<'j>> = self.windows.iter().map(lane).collect();
        let (mut read, mut chunk) = (Read::default(), Chunk::new());
        read.excluded = vec![0; self.exclude.number()];
        let mut running = Vec::new();
        let pressed = || {
            self.windows.iter().any(|window| window.counts.pressed())
                || self.spans.as_ref().is_some_and(Spans::pressed)
        };
        while let Some(piece) = self.schedule.next(thread, pressed, &mut chunk) {
            let before = (read.lines, read.malformed.number());
            read.malformed.add_too_long(piece.too_long);
            read.lines += piece.too_long;
            read.bytes += chunk.len() as u64;
            if let Err(error) = self.chunk(piece, &chunk, &mut read, &mut lanes, &mut running) {
                self.fail(error);
                break;
            }
            let lines = read.lines - before.0;
            if lines > 0 {
                read.with_lines.insert(piece.log);
            }
            if lines > read.malformed.number() - before.1 {
                read.readable.insert(piece.log);
            }
            let open = self.schedule.reached().saturating_sub(self.lateness_ms);
            for (window, lane) in self.windows.iter().zip(&mut lanes) {
                window.counts.add(&mut lane.batch, lane.numbers.open(open));
            }
            if let Some(spans) = &self.spans {
                spans.add(&mut running, open);
            }
            self.bar.update();
        }
        read
    }

    fn chunk(
        &self,
        piece: ChunkPosition,
        chunk: &[u8],
        read: &mut Read,
        lanes: &mut [Lane<'_>],
        running: &mut Vec<Span>,
    ) -> Result<(), Error> {
        let (mut begin, mut parts) = (0, Parts::default());
        for end in memchr::memchr_iter(b'\n', chunk).chain([chunk.len()]) {
            let line = chunk.get(begin..end).unwrap_or_default();
            let offset = piece.offset + begin as u64;
            begin = end + 1;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Some((offset, line)) = parts.join(offset, line) else { continue };
            let line = &*line;
            read.lines += 1;
            match self.reader.read(line) {
                Line::Request(request) => match self.exclude.find(&request.key) {
                    Some(number) => {
                        read.excluded.iter_mut().skip(number).take(1).for_each(|count| *count += 1)
                    }
                    None if self.push(&request, lanes) => {
                        self.check_policy(&request)?;
                        read.count(&request);
                        match request.duration_ms {
                            Some(duration_ms) => running.push(Span {
                                user: xxh3_64(&request.key),
                                start_ms: request.time_ms,
                                duration_ms,
                                units: request.units(),
                            }),
                            None => read.without_duration += u64::from(self.spans.is_some()),
                        }
                    }
                    None => read.malformed.add(piece.log, offset, line),
                },
                Line::Unidentified(Missing::Field) => read.without_field += 1,
                Line::Unidentified(Missing::UserAndPolicy) => read.not_counted += 1,
                Line::Unidentified(Missing::User) => read.without_user += 1,
                Line::NotSelected => read.not_selected += 1,
                Line::Malformed => {
                    if self.no_time.get().is_none()
                        && let Some(why) = self.reader.why_no_time(line)
                    {
                        let _ = self.no_time.set(why);
                    }
                    read.malformed.add(piece.log, offset, line);
                }
            }
        }
        for (offset, line) in parts.unfinished() {
            read.lines += 1;
            read.malformed.add(piece.log, offset, &line);
        }
        Ok(())
    }

    /// Counts a request in each of its windows; false if one of them has no number.
    fn push(&self, request: &Request<'_>, lanes: &mut [Lane<'_>]) -> bool {
        let (user, units) = (xxh3_64(&request.key), request.units());
        if lanes.iter_mut().any(|lane| lane.numbers.at(request.time_ms).is_none()) {
            return false;
        }
        let needs_name = self.windows.iter().any(|window| window.counts.wants_names());
        let name: Option<Rc<[u8]>> = needs_name.then(|| Rc::from(&*request.key));
        for Lane { numbers, batch } in lanes {
            if let Some(window) = numbers.at(request.time_ms) {
                batch.push(Taken { user, window, units }, name.clone());
            }
        }
        true
    }

    /// Fails at the second policy: one quota is for one policy.
    fn check_policy(&self, request: &Request<'_>) -> Result<(), Error> {
        let Some(name) = &request.policy else { return Ok(()) };
        let first = self.policy.get_or_init(|| name.to_vec());
        if **first == **name {
            return Ok(());
        }
        Err(Error::SeveralPolicies(shown(first), shown(name)))
    }

    fn fail(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.schedule.stop();
    }
}

/// Ends the other threads if this one panics.
struct StopAtPanic<'a>(&'a Schedule<'a>);

impl Drop for StopAtPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}
