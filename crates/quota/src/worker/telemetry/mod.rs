//! What a worker tells operators: counts, log lines and reports.

pub(crate) mod notices;
pub(crate) mod refusals;
pub(crate) mod report;
pub(crate) mod tally;
