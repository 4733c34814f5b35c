//! What to read, and what to advise on.

use std::path::PathBuf;

use serde::Serialize;

use crate::line::{Fields, Only};

/// What to read, and what to advise on.
#[derive(Clone, Debug)]
pub struct Options {
    /// The logs; `-` is standard input.
    pub logs: Vec<PathBuf>,
    /// How lines are read.
    pub fields: Fields,
    /// Which requests are counted.
    pub only: Only,
    /// Users that are left out: names, or beginnings of names with `*` behind.
    pub exclude: Vec<String>,
    /// Lengths of the windows in seconds; each is judged by itself.
    pub windows_s: Vec<u32>,
    /// The quotas to judge; empty: a ladder up to the most that anybody took.
    pub quotas: Vec<u32>,
    /// How much the recommended quota may refuse.
    pub limits: Limits,
    /// How many of the users who took most are named.
    pub show_users: usize,
    /// Judge also without so many of the users who took most.
    pub without_top: usize,
    /// Most bytes of tables, shared by all windows.
    pub memory: usize,
    /// How late lines are expected at most, in seconds, once memory is scarce.
    pub lateness_s: u32,
    /// How many threads read.
    pub threads: usize,
    /// Whether to show on a terminal how far reading has come.
    pub progress: bool,
}

impl Default for Options {
    /// A minute, no log, and what `quotagate advise` takes unless told otherwise, with one thread.
    fn default() -> Self {
        Self {
            logs: Vec::new(),
            fields: Fields::default(),
            only: Only::default(),
            exclude: Vec::new(),
            windows_s: vec![60],
            quotas: Vec::new(),
            limits: Limits { users: 0.001, windows: 0.0001 },
            show_users: 0,
            without_top: 0,
            memory: 1 << 30,
            lateness_s: 3600,
            threads: 1,
            progress: false,
        }
    }
}

impl Options {
    /// [`Self::lateness_s`] in milliseconds.
    pub(crate) fn lateness_ms(&self) -> i64 {
        i64::from(self.lateness_s) * 1000
    }
}

/// The shares that a recommended quota must stay below.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Of users, 0.001 for 0.1 %.
    pub users: f64,
    /// Of user-windows.
    pub windows: f64,
}
