//! The commands that show what the store knows.

pub(super) mod document_status;
pub(super) mod domains;
pub(super) mod history;
pub(super) mod top;
pub(super) mod usage;
pub(super) mod why;
