//! What one thread has read, and the same of all threads.

use std::collections::BTreeSet;

use super::malformed::Malformed;
use crate::display::shown;
use crate::line::Request;

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
    /// Requests that were counted.
    pub(crate) requests: u64,
    /// Units that they took.
    pub(crate) units: u64,
    /// Requests whose lines have no field for who is counted.
    pub(crate) no_field: u64,
    /// Requests that no policy counted.
    pub(crate) not_counted: u64,
    /// Requests that name nobody.
    pub(crate) nameless: u64,
    /// Requests of users who are left out, by what leaves them out.
    pub(crate) excluded: Vec<u64>,
    /// Requests that were not asked for.
    pub(crate) other: u64,
    pub(crate) malformed: Malformed,
    /// The numbers of the logs that have lines.
    pub(super) with_lines: BTreeSet<usize>,
    /// Those that have a line that is understood.
    pub(super) understood: BTreeSet<usize>,
    /// When the first and the last request began, in milliseconds since the Unix epoch.
    pub(crate) span: Option<(i64, i64)>,
    /// A name of somebody who was counted.
    pub(crate) somebody: Option<String>,
}

impl Read {
    /// Counts a request.
    pub(super) fn count(&mut self, request: &Request<'_>) {
        self.requests += 1;
        self.units += u64::from(request.cost);
        let (first, last) = self.span.unwrap_or((request.time_ms, request.time_ms));
        self.span = Some((first.min(request.time_ms), last.max(request.time_ms)));
        // Who shares a counter for want of a name tells least.
        if self.somebody.as_deref().is_none_or(|name| name == "-") {
            self.somebody = Some(shown(&request.key));
        }
    }

    /// Adds what another thread has read.
    pub(super) fn merge(&mut self, other: Self) {
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.units += other.units;
        self.no_field += other.no_field;
        self.not_counted += other.not_counted;
        self.nameless += other.nameless;
        self.excluded.resize(self.excluded.len().max(other.excluded.len()), 0);
        self.excluded.iter_mut().zip(other.excluded).for_each(|(count, other)| *count += other);
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
