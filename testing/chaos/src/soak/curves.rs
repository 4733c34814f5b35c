//! Resident memory and open descriptors of processes over time, sampled once a second.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use crate::footprint;

/// How often.
const STEP: Duration = Duration::from_secs(1);

/// A process, named by its role, which it keeps over restarts.
pub type Process = (String, u32);
/// The curves, by part.
pub type Curves = BTreeMap<String, Vec<Point>>;

/// What a process held at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The moment, in seconds from the start.
    pub at: f64,
    /// Resident memory.
    pub mib: f64,
    /// Open descriptors.
    pub descriptors: u64,
}

/// Samples until it is ended or dropped.
#[derive(Debug)]
pub struct Sampler {
    over: Arc<AtomicBool>,
    processes: Arc<Mutex<Vec<Process>>>,
    thread: JoinHandle<Curves>,
}

impl Sampler {
    /// Samples these processes.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(processes: Vec<Process>) -> Result<Self> {
        let (over, processes) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(processes)));
        let (theirs, list) = (Arc::clone(&over), Arc::clone(&processes));
        let thread = thread::Builder::new().spawn(move || {
            let (begun, mut curves) = (Instant::now(), Curves::new());
            while !theirs.load(Relaxed) {
                let processes = list.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for (part, pid) in processes {
                    // A process that has ended leaves a gap in its curve.
                    if let Ok(kib) = footprint::resident(pid) {
                        let (at, mib) = (begun.elapsed().as_secs_f64(), kib as f64 / 1024.0);
                        let point = Point { at, mib, descriptors: footprint::descriptors(pid) };
                        curves.entry(part).or_default().push(point);
                    }
                }
                sleep(STEP);
            }
            curves
        })?;
        Ok(Self { over, processes, thread })
    }

    /// Replaces the processes after a restart.
    pub fn set(&self, processes: Vec<Process>) {
        *self.processes.lock().unwrap_or_else(PoisonError::into_inner) = processes;
    }

    /// What was seen.
    ///
    /// # Errors
    /// When its thread has panicked.
    pub fn end(self) -> Result<Curves> {
        self.over.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow!("the sampler has panicked"))
    }
}
