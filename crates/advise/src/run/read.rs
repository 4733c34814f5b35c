//! Totals of what one thread, or all threads, have read.

use std::collections::BTreeSet;

use super::malformed::Malformed;
use crate::display::shown;
use crate::line::Request;

/// Totals of what was read.
#[derive(Debug, Default)]
pub(crate) struct Read {
    pub(crate) lines: u64,
    pub(crate) bytes: u64,
    /// Requests that were counted.
    pub(crate) requests: u64,
    /// Their units.
    pub(crate) units: u64,
    /// Requests without a whole number in the field of the cost. Each counts as one unit.
    pub(crate) without_cost: u64,
    /// Requests without a whole number in the field of the duration, if it is read.
    pub(crate) without_duration: u64,
    /// Requests without the field for the user.
    pub(crate) without_field: u64,
    /// Requests with empty fields.
    pub(crate) not_counted: u64,
    /// Requests with a policy but without a user.
    pub(crate) without_user: u64,
    /// Requests of excluded users, by pattern.
    pub(crate) excluded: Vec<u64>,
    /// Requests of other policies or paths.
    pub(crate) not_selected: u64,
    pub(crate) malformed: Malformed,
    /// Indexes of logs with lines.
    pub(super) with_lines: BTreeSet<usize>,
    /// Indexes of logs with a line that can be read.
    pub(super) readable: BTreeSet<usize>,
    /// When the first and the last request began, in milliseconds since the Unix epoch.
    pub(crate) span: Option<(i64, i64)>,
    /// The partition of any counted request.
    pub(crate) partition: Option<String>,
}

impl Read {
    /// Counts a request.
    pub(super) fn count(&mut self, request: &Request<'_>) {
        self.requests += 1;
        self.units += u64::from(request.units());
        self.without_cost += u64::from(request.cost.is_none());
        let (first, last) = self.span.unwrap_or((request.time_ms, request.time_ms));
        self.span = Some((first.min(request.time_ms), last.max(request.time_ms)));
        // `-` is shared by callers without an identity: any other partition says more.
        if self.partition.as_deref().is_none_or(|name| name == "-") {
            self.partition = Some(shown(&request.key));
        }
    }

    /// Adds what another thread has read.
    pub(super) fn merge(&mut self, other: Self) {
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.requests += other.requests;
        self.units += other.units;
        self.without_cost += other.without_cost;
        self.without_duration += other.without_duration;
        self.without_field += other.without_field;
        self.not_counted += other.not_counted;
        self.without_user += other.without_user;
        self.excluded.resize(self.excluded.len().max(other.excluded.len()), 0);
        self.excluded.iter_mut().zip(other.excluded).for_each(|(count, other)| *count += other);
        self.not_selected += other.not_selected;
        self.malformed.merge(other.malformed);
        self.with_lines.extend(other.with_lines);
        self.readable.extend(other.readable);
        self.span = match (self.span, other.span) {
            (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
            (one, two) => one.or(two),
        };
        self.partition = self.partition.take().or(other.partition);
    }
}
