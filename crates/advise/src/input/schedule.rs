//! Decides which log is read next: always the one that is furthest behind in time. So logs of
//! several proxies are read side by side, and rotated logs one after another.
//!
//! The thread that needs lines reads and decompresses them itself, so several logs are decompressed
//! at once. While memory is scarce, no log is read far ahead of the others.
//!
//! A thread reads one chunk at a time. At most [`OPEN`] logs are open, or as many as the system
//! allows: if more overlap in time, the rest waits until one of them is finished. Counts stay
//! correct, but windows that began before a waiting log stay open, so exact numbers need more
//! memory.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::chunks::{Chunk, Chunks};
use super::open::{self, Progress};
use crate::line::Reader;

/// How many lines at either end of a chunk are searched for a time.
const LOOK: usize = 200;

/// The most logs that are open at once. Each takes memory for its decompression.
const OPEN: usize = 256;
/// ENFILE and EMFILE: the system, or this process, may open no more files.
const TOO_MANY: [i32; 2] = [23, 24];

/// The logs, shared by all threads.
pub(crate) struct Schedule<'r> {
    paths: Vec<PathBuf>,
    reader: &'r Reader,
    progress: Progress,
    /// How far a log may be read ahead of the others while memory is scarce, in milliseconds.
    ahead: i64,
    state: Mutex<State>,
    changed: Condvar,
}

/// Errors of logs.
pub(crate) struct Faults {
    /// The log that could not be read.
    pub(crate) failure: Option<(PathBuf, io::Error)>,
    /// Truncated logs, with the reasons.
    pub(crate) damaged: Vec<(PathBuf, String)>,
}

struct State {
    logs: Vec<Log>,
    /// The most logs that may be open.
    open: usize,
    /// The first time in the current chunk of each thread.
    under_way: Vec<Option<i64>>,
    damage: Vec<(usize, String)>,
    failure: Option<(usize, io::Error)>,
    stopped: bool,
}

/// A log, and the time in milliseconds that reading has reached.
enum Log {
    Closed(i64),
    Open(i64, Chunks),
    /// A thread is reading it.
    Taken(i64),
    Done,
}

/// The position of a chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkPosition {
    /// The index of its log.
    pub(crate) log: usize,
    /// Its position in the decompressed log, in bytes.
    pub(crate) offset: u64,
    /// Lines before it that were skipped because they are too long.
    pub(crate) too_long: u64,
}

impl<'r> Schedule<'r> {
    /// Reads the first time of each log.
    ///
    /// # Errors
    /// The log that cannot be read.
    pub(crate) fn new(
        paths: &[PathBuf],
        reader: &'r Reader,
        progress: &Progress,
        threads: usize,
        ahead: i64,
    ) -> Result<Self, (PathBuf, io::Error)> {
        let first = |path: &PathBuf| {
            let found = first_time(path, reader).map(|time| Log::Closed(time.unwrap_or(i64::MIN)));
            found.map_err(|error| (path.clone(), error))
        };
        let state = State {
            logs: paths.iter().map(first).collect::<Result<_, _>>()?,
            open: OPEN,
            under_way: vec![None; threads],
            damage: Vec::new(),
            failure: None,
            stopped: false,
        };
        Ok(Self {
            paths: paths.to_vec(),
            reader,
            progress: Progress::clone(progress),
            ahead,
            state: Mutex::new(state),
            changed: Condvar::new(),
        })
    }

    /// Reads the next chunk; none at the end. What the thread had before counts as done.
    pub(crate) fn next(
        &self,
        thread: usize,
        scarce: impl Fn() -> bool,
        chunk: &mut Chunk,
    ) -> Option<ChunkPosition> {
        loop {
            let (number, reached, open) = self.choose(thread, &scarce)?;
            let mut chunks = match open {
                Some(chunks) => chunks,
                None => {
                    match self.paths.get(number).map(|path| open::open(path, &self.progress))? {
                        Ok(source) => Chunks::new(source),
                        Err(error)
                            if is_too_many(&error) && self.wait_for_others(number, reached) =>
                        {
                            continue;
                        }
                        Err(error) => return self.fail(number, error),
                    }
                }
            };
            let filled = chunks.next(chunk);
            let first = self.time(chunk.split(|byte| *byte == b'\n'));
            let last = self.time(chunk.rsplit(|byte| *byte == b'\n'));
            let damage = chunks.damage().map(str::to_owned);
            if let (Some(why), true) = (&damage, chunk.is_empty() && filled.offset == 0) {
                return self.fail(number, io::Error::other(why.clone()));
            }
            let mut state = self.lock();
            if chunks.is_over() {
                state.damage.extend(damage.map(|why| (number, why)));
                state.set(number, Log::Done);
            } else {
                state.set(number, Log::Open(last.unwrap_or(reached).max(reached), chunks));
            }
            if let Some(under_way) = state.under_way.get_mut(thread) {
                *under_way = (!chunk.is_empty()).then(|| first.unwrap_or(reached));
            }
            drop(state);
            self.changed.notify_all();
            if !chunk.is_empty() || filled.too_long > 0 {
                return Some(ChunkPosition {
                    log: number,
                    offset: filled.offset,
                    too_long: filled.too_long,
                });
            }
        }
    }

    /// The time that reading has reached: all later lines began after it, except late ones.
    pub(crate) fn reached(&self) -> i64 {
        let state = self.lock();
        let under_way = state.under_way.iter().flatten().copied();
        state.logs.iter().filter_map(Log::reached).chain(under_way).min().unwrap_or(i64::MAX)
    }

    /// Ends all threads.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// The errors of all logs.
    pub(crate) fn faults(self) -> Faults {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let path = |number: usize| self.paths.get(number).cloned().unwrap_or_default();
        let failure = state.failure.map(|(number, error)| (path(number), error));
        let damaged = state.damage.into_iter().map(|(number, why)| (path(number), why)).collect();
        Faults { failure, damaged }
    }

    /// Takes the next log to read, and waits while another thread has it.
    fn choose(
        &self,
        thread: usize,
        scarce: impl Fn() -> bool,
    ) -> Option<(usize, i64, Option<Chunks>)> {
        let mut state = self.lock();
        if let Some(under_way) = state.under_way.get_mut(thread) {
            *under_way = None;
        }
        loop {
            if state.stopped {
                return None;
            }
            let room = state.number_open() < state.open;
            let turn = |log: &Log| room || !matches!(log, Log::Closed(_));
            let turns = || state.logs.iter().enumerate().filter(|(_, log)| turn(log));
            let least = turns().filter_map(|(_, log)| log.reached()).min()?;
            let free = turns().filter(|(_, log)| !matches!(log, Log::Taken(_)));
            let next = free.filter_map(|(number, log)| Some((log.reached()?, number))).min();
            match next {
                Some((reached, number))
                    if !scarce() || reached <= least.saturating_add(self.ahead) =>
                {
                    let log = state.set(number, Log::Taken(reached));
                    let open = if let Log::Open(_, chunks) = log { Some(chunks) } else { None };
                    return Some((number, reached, open));
                }
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Closes a log that cannot be opened until another one is finished. Returns false if no other
    /// is open.
    fn wait_for_others(&self, number: usize, reached: i64) -> bool {
        let mut state = self.lock();
        state.set(number, Log::Closed(reached));
        let others = state.number_open();
        state.open = others.max(1);
        drop(state);
        self.changed.notify_all();
        others > 0
    }

    fn fail<T>(&self, number: usize, error: io::Error) -> Option<T> {
        self.lock().failure.get_or_insert((number, error));
        self.stop();
        None
    }

    fn time<'l>(&self, lines: impl Iterator<Item = &'l [u8]>) -> Option<i64> {
        lines.take(LOOK).find_map(|line| self.reader.time(line))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn number_open(&self) -> usize {
        self.logs.iter().filter(|log| matches!(log, Log::Open(..) | Log::Taken(_))).count()
    }

    fn set(&mut self, number: usize, log: Log) -> Log {
        self.logs.get_mut(number).map_or(Log::Done, |slot| std::mem::replace(slot, log))
    }
}

impl Log {
    fn reached(&self) -> Option<i64> {
        match self {
            Self::Closed(time) | Self::Open(time, _) | Self::Taken(time) => Some(*time),
            Self::Done => None,
        }
    }
}

/// The time of the first request in a log. None if the log can be read only once, or has no time.
fn first_time(path: &Path, reader: &Reader) -> io::Result<Option<i64>> {
    if !open::is_seekable(path) {
        return Ok(None);
    }
    let mut chunk = Chunk::new();
    Chunks::new(open::open(path, &Progress::default())?).next(&mut chunk);
    Ok(chunk.split(|byte| *byte == b'\n').take(LOOK).find_map(|line| reader.time(line)))
}

fn is_too_many(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| TOO_MANY.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::{Fields, Only};
    use std::fs;

    #[test]
    fn logs_are_read_completely_with_any_limit_of_open_logs() {
        // Logs of the same minute, each with two chunks.
        let directory = tempfile::tempdir().unwrap();
        let paths: Vec<PathBuf> =
            (0..7).map(|index| directory.path().join(format!("{index}"))).collect();
        for (index, path) in paths.iter().enumerate() {
            let line = |second: usize| {
                let fill = "x".repeat(1 << 20);
                format!(
                    "{{\"time\":\"2026-11-21T22:55:{second:02}Z\",\"quota_partition\":\"u\",\"fill\":\"{fill}\"}}\n"
                )
            };
            fs::write(path, [line(index), line(index + 20), line(index + 40)].concat()).unwrap();
        }
        let reader = Reader::new(&Fields::default(), &Only::default()).unwrap();
        for (most, scarce) in [(1, true), (3, true), (3, false), (100, false)] {
            // With 0, no log may be read ahead of the others.
            let schedule = Schedule::new(&paths, &reader, &Progress::default(), 1, 0).unwrap();
            schedule.lock().open = most;
            let (mut chunk, mut seen, mut lines) = (Chunk::new(), 0, 0);
            while schedule.next(0, || scarce, &mut chunk).is_some() {
                lines += memchr::memchr_iter(b'\n', &chunk).count();
                seen = seen.max(schedule.lock().number_open());
            }
            assert_eq!((lines, seen), (21, most.min(7)), "{most}");
            assert!(schedule.faults().failure.is_none());
        }
    }
}
