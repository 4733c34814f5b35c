//! What operating needs of a backend: a few hashes for each domain, which are changed in one step with the version and
//! the history, and single counters and overrides.
//!
//! What a dial or an override means is said once, in the crate `quotagate-control`; a backend keeps bytes.
//!
//! Bounds: [`MAX_FIELDS`] fields of a hash are read, those of [`MAX_VALUE`] bytes at most; the rest counts as left out.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::error::StoreError;

/// Most fields of a hash that are read.
pub const MAX_FIELDS: usize = 16_384;
/// Largest value of a field that is read, in bytes.
pub const MAX_VALUE: usize = 4096;
/// Runtime overrides of a domain.
pub const MAX_OVERRIDES: usize = 10_000;
/// Changes that are remembered of a domain.
pub const MAX_HISTORY: usize = 1000;
/// The field of the dials that holds their version; no policy can have this name.
pub const VERSION: &str = "#version";

/// Answers of the desk.
pub type Reply<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// Where operators' changes are kept, and where they see counters.
pub trait Desk: Send + Sync {
    /// What operators call the backend: `memory`, `redis`, `redis-cluster`, `redis-sentinel`.
    fn backend(&self) -> &'static str;

    /// Whether changes outlive this store's process.
    fn durable(&self) -> bool;

    /// A whole hash.
    fn read<'a>(&'a self, shelf: Shelf, domain: &'a str) -> Reply<'a, Sheet>;

    /// Makes a change in one step, unless somebody else was quicker: `None`, and nothing was changed. Else the version
    /// after it.
    fn change<'a>(&'a self, domain: &'a str, change: &'a Change) -> Reply<'a, Option<u64>>;

    /// Sets fields and deletes others in one step, without a new version and without history.
    fn note<'a>(&'a self, shelf: Shelf, domain: &'a str, note: &'a Note) -> Reply<'a, ()>;

    /// What was done, the newest first, at most `limit`.
    fn history<'a>(&'a self, domain: &'a str, limit: usize) -> Reply<'a, Vec<Vec<u8>>>;

    /// What a cell holds.
    fn look<'a>(&'a self, cell: Cell<'a>) -> Reply<'a, Seen>;

    /// The keys of counters of `domain` whose partition has this entry, `most` at most.
    fn find<'a>(&'a self, domain: &'a str, entry: &'a str, most: usize) -> Reply<'a, Found>;

    /// Sets the override of a counter's key, for so many milliseconds.
    fn set_override<'a>(&'a self, key: &'a str, value: &'a str, for_ms: Option<u64>) -> Reply<'a, ()>;

    /// Deletes a cell; whether there was one.
    fn delete<'a>(&'a self, cell: Cell<'a>) -> Reply<'a, bool>;
}

/// The hashes of a domain; the last one is of all domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shelf {
    /// Dials by policy, and their version.
    Dials,
    /// Which overrides there are, by `<policy>:{<partition>}`.
    Overrides,
    /// Policies that filters have told of, by name.
    Policies,
    /// Domains that filters have told of, by name.
    Domains,
}

/// A field and its value.
pub type Field = (String, Vec<u8>);

/// A hash at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sheet {
    /// The backend's time since the Unix epoch.
    pub now: Duration,
    /// The version, where it is the hash of dials and holds one.
    pub version: u64,
    /// The fields, without the version, in the order of their names.
    pub fields: Vec<Field>,
    /// Fields that are too large or too many, or no text.
    pub left_out: u64,
}

impl Sheet {
    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let at = self.fields.binary_search_by(|(field, _)| field.as_str().cmp(name)).ok()?;
        self.fields.get(at).map(|(_, value)| value.as_slice())
    }
}

/// A change of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Of which hash.
    pub shelf: Shelf,
    /// Its name.
    pub field: String,
    /// What it must hold still.
    pub old: Option<Vec<u8>>,
    /// What it holds then; `None` deletes it.
    pub new: Option<Vec<u8>>,
    /// What history tells of it. `None`: nothing, and the version stays.
    pub event: Option<Vec<u8>>,
}

/// What is noted in a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What is set, after what is dead was deleted.
    pub fields: Vec<Field>,
    /// Names of fields that are deleted.
    pub dead: Vec<String>,
    /// Most fields of the hash: a new one beyond is not set.
    pub most: usize,
    /// How long the hash is kept after its last note.
    pub keep: Duration,
}

/// A single value that belongs to a counter's key, `<domain>:<policy>:{<partition>}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    /// Its override.
    Override(&'a str),
    /// Its counter in a window.
    Counter {
        /// The key.
        key: &'a str,
        /// Length of the window in seconds.
        window_s: u32,
        /// The number of the window.
        number: u64,
    },
}

impl<'a> Cell<'a> {
    /// The key of the counter that it belongs to.
    pub const fn key(&self) -> &'a str {
        match *self {
            Self::Override(key) | Self::Counter { key, .. } => key,
        }
    }
}

/// What a cell holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The backend's time since the Unix epoch.
    pub now: Duration,
    /// Its text.
    pub value: Option<String>,
    /// Milliseconds until it ends by itself.
    pub ttl_ms: Option<u64>,
}

/// What a search has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Keys of counters, `<domain>:<policy>:{<partition>}`.
    pub keys: Vec<String>,
    /// Why there may be more.
    pub incomplete: Option<String>,
}

/// Whether the partition in a counter's key has this entry.
pub(crate) fn has_entry(key: &str, entry: &str) -> bool {
    let partition = key.split_once(":{").and_then(|(_, rest)| rest.strip_suffix('}'));
    partition.is_some_and(|partition| partition.split(',').any(|other| other == entry))
}

/// Drops what is beyond the bounds, and counts it.
pub(crate) fn within_bounds(
    fields: impl Iterator<Item = Field>,
    now: Duration,
    version: u64,
    left_out: u64,
) -> Sheet {
    let mut sheet = Sheet { now, version, fields: Vec::new(), left_out };
    for (name, value) in fields {
        if value.len() <= MAX_VALUE && sheet.fields.len() < MAX_FIELDS {
            sheet.fields.push((name, value));
        } else {
            sheet.left_out = sheet.left_out.saturating_add(1);
        }
    }
    sheet.fields.sort();
    sheet
}
