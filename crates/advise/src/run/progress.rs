//! A progress bar on a terminal.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::input::Progress;

const KNOWN: &str = "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
const UNKNOWN: &str = "{spinner} {bytes}, {bytes_per_sec}, for {elapsed}";

/// A bar on standard error that disappears at the end.
pub(crate) struct Bar {
    bar: ProgressBar,
    progress: Progress,
}

impl Bar {
    /// A bar for these logs. It has a length if all sizes are known, and is drawn on a terminal
    /// only.
    pub(crate) fn new(logs: &[PathBuf], progress: &Progress, wanted: bool) -> Self {
        let size = |log: &PathBuf| {
            log.metadata().ok().filter(|data| data.is_file()).map(|data| data.len())
        };
        let total: Option<u64> = logs.iter().map(size).sum();
        let target =
            if wanted { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(total, target);
        let template = if total.is_some() { KNOWN } else { UNKNOWN };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, progress: Progress::clone(progress) }
    }

    /// Redraws the bar.
    pub(crate) fn update(&self) {
        self.bar.set_position(self.progress.load(Ordering::Relaxed));
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
