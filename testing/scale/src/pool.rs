//! Several runs at a time, and their progress.

use std::io::{IsTerminal, Write as _, stderr};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use crate::report::Report;
use crate::suite::Run;
use crate::world;

/// How often the terminal shows progress.
const REFRESH: Duration = Duration::from_millis(250);

/// A run, while it is one of several.
struct Job<'a> {
    run: &'a Run,
    /// The completed thousandths.
    done: AtomicU32,
    report: Mutex<Option<Result<Report>>>,
}

/// Runs everything, `at_once` runs at a time, and returns the reports in order. Progress goes to
/// standard error.
///
/// # Errors
/// The first error of a run.
pub fn reports(runs: &[Run], at_once: usize) -> Result<Vec<Report>> {
    let job = |run| Job { run, done: AtomicU32::new(0), report: Mutex::new(None) };
    let jobs: Vec<Job<'_>> = runs.iter().map(job).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let worker = || {
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                job.perform();
            }
        };
        let workers: Vec<_> = (0..at_once.min(jobs.len())).map(|_| scope.spawn(worker)).collect();
        while stderr().is_terminal() && !workers.iter().all(|worker| worker.is_finished()) {
            show(&jobs);
            thread::park_timeout(REFRESH);
        }
    });
    let report = |job: Job<'_>| job.report.into_inner().unwrap_or_else(PoisonError::into_inner);
    jobs.into_iter().filter_map(report).collect()
}

impl Job<'_> {
    fn perform(&self) {
        let progress = |part: f64| self.done.store((part * 1000.0) as u32, Ordering::Relaxed);
        let report = world::run(&self.run.setup, progress);
        self.done.store(1000, Ordering::Relaxed);
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        if !stderr().is_terminal() {
            eprintln!("done: {}", self.run.title());
        }
    }
}

/// Prints one line over the previous one.
fn show(jobs: &[Job<'_>]) {
    let done = |job: &Job<'_>| job.done.load(Ordering::Relaxed);
    let over = jobs.iter().filter(|job| done(job) == 1000).count();
    let mut line = format!("\r\x1b[K{over} of {} runs", jobs.len());
    for job in jobs.iter().filter(|job| (1..1000).contains(&done(job))) {
        line.push_str(&format!("; {} {} %", job.run.title(), done(job) / 10));
    }
    if over == jobs.len() {
        line.push('\n');
    }
    // A terminal that is gone needs no progress.
    let _ = stderr().write_all(line.as_bytes());
}
