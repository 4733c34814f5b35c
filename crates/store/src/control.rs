//! Where the changes of operators are kept, and where operators see counters.
//!
//! A backend stores bytes: a few hashes and a history for each domain, single counters and runtime
//! overrides. What a dial or an override means is decided above all backends.
//!
//! Bounds: a reader gets at most [`HashName::max_fields`] fields of a hash, each of at most
//! [`MAX_VALUE`] bytes. Further fields are counted in [`Snapshot::left_out`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use quotagate_protocol::MAX_UNITS;

use crate::error::StoreError;
use crate::window::CounterId;

/// Most fields of a hash of dials, overrides, policies or domains that are read.
pub const MAX_FIELDS: usize = 16_384;
/// Most publishers.
pub const MAX_PUBLISHERS: usize = 256;
/// Most items that a publisher publishes.
pub const MAX_PUBLISHED: usize = 200;
/// Largest value of a field that is read, in bytes.
pub const MAX_VALUE: usize = 4096;
/// Most runtime overrides of a domain.
pub const MAX_OVERRIDES: usize = 10_000;
/// Most changes that the history of a domain keeps.
pub const MAX_HISTORY: usize = 1000;
/// Most published documents of a domain that are kept.
pub const MAX_DOCUMENTS: usize = 64;
/// The field of the documents' hash that holds the record of the last one.
pub const LAST_DOCUMENT: &str = "#last";
/// The field of the dials' hash that holds their version. No policy can have this name.
pub const VERSION: &str = "#version";

/// The future of a [`ControlStore`]'s answer.
pub type Reply<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The operators' side of a backend.
pub trait ControlStore: Send + Sync {
    /// The name that operators see: `memory`, `redis`, `redis-cluster` or `redis-sentinel`.
    fn backend(&self) -> &'static str;

    /// Whether changes outlive this process.
    fn durable(&self) -> bool;

    /// Reads a whole hash.
    fn read<'a>(&'a self, hash: HashName, domain: &'a str) -> Reply<'a, Snapshot>;

    /// Makes a change in one step and returns the version after it. Returns `None`, and changes
    /// nothing, if the field no longer holds [`Change::old`].
    fn change<'a>(&'a self, domain: &'a str, change: &'a Change) -> Reply<'a, Option<u64>>;

    /// Publishes a document in one step and returns the version after it. Returns `None`, and
    /// changes nothing, if another one was published after [`Publication::old`].
    fn publish<'a>(
        &'a self,
        domain: &'a str,
        publication: &'a Publication,
    ) -> Reply<'a, Option<u64>>;

    /// The text of the published document with this number.
    fn document<'a>(&'a self, domain: &'a str, number: u64) -> Reply<'a, Option<Vec<u8>>>;

    /// Deletes all published documents of a domain, and their records, in one step. Returns
    /// `false`, and deletes nothing, if the record of the last one is no longer `last`.
    fn forget_documents<'a>(&'a self, domain: &'a str, last: Option<&'a [u8]>) -> Reply<'a, bool>;

    /// Deletes fields and sets others in one step, without a new version and without history.
    fn upsert<'a>(&'a self, hash: HashName, domain: &'a str, upsert: &'a Upsert) -> Reply<'a, ()>;

    /// The newest `limit` entries of the history, the newest first.
    fn history<'a>(&'a self, domain: &'a str, limit: usize) -> Reply<'a, Vec<Vec<u8>>>;

    /// Reads a single key.
    fn get<'a>(&'a self, key: Key<'a>) -> Reply<'a, KeyState>;

    /// Finds the counters of `domain` whose partition contains this entry, at most `max`.
    fn find<'a>(
        &'a self,
        domain: &'a str,
        entry: &'a str,
        kept: KeptCounters,
        max: usize,
    ) -> Reply<'a, FoundKeys>;

    /// A page of the counters of a policy, in no order: the first one, or the one after the page
    /// that named it in [`CounterPage::next`]. A counter that is there all the time is on a page,
    /// and perhaps on several.
    fn page<'a>(
        &'a self,
        domain: &'a str,
        policy: &'a str,
        kept: KeptCounters,
        from: Option<&'a str>,
    ) -> Reply<'a, CounterPage>;

    /// Sets the override of a counter's key, for so many milliseconds or until it is deleted.
    fn set_override<'a>(
        &'a self,
        key: &'a str,
        value: &'a str,
        for_ms: Option<u64>,
    ) -> Reply<'a, ()>;

    /// Deletes a key and returns whether it existed.
    fn delete<'a>(&'a self, key: Key<'a>) -> Reply<'a, bool>;

    /// Who holds slots of a counter's key, or waits for them.
    fn slots<'a>(&'a self, key: &'a str) -> Reply<'a, SlotsState>;

    /// Frees the slots that workers hold of a counter's key: those of one worker or of one proxy,
    /// whose workers have names that begin with its own and a dot; of all workers if `of` is
    /// `None`.
    ///
    /// This is for workers that are dead or cut off, and whose slots operators need at once:
    /// without it they are free [`HOLDING`](quotagate_protocol::HOLDING) after the last message. A
    /// worker that lives holds them again from its next message, within 3 seconds. What others were
    /// granted meanwhile exceeds the limit until enough requests have ended.
    fn release<'a>(&'a self, key: &'a str, of: Option<&'a str>) -> Reply<'a, Released>;
}

/// The hashes of a domain. All domains share [`Domains`](Self::Domains) and
/// [`Publishers`](Self::Publishers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashName {
    /// Dials by policy, and their version.
    Dials,
    /// Which overrides exist, by `<policy>:{<partition>}`.
    Overrides,
    /// Policies that filters have reported, by name.
    Policies,
    /// Domains that filters have reported, by name.
    Domains,
    /// Processes that publish what they saw in their calls, by their ids.
    Publishers,
    /// What one process saw. Its id takes the place of the domain.
    Published,
    /// Records of the documents that operators published, by number, and of the last one as
    /// [`LAST_DOCUMENT`].
    Documents,
}

impl HashName {
    /// Most fields that are read.
    pub const fn max_fields(self) -> usize {
        match self {
            Self::Dials | Self::Overrides | Self::Policies | Self::Domains => MAX_FIELDS,
            // Beside them the last one, and room for what else may be there.
            Self::Documents => 2 * MAX_DOCUMENTS,
            Self::Publishers => MAX_PUBLISHERS,
            Self::Published => MAX_PUBLISHED,
        }
    }
}

/// A field's name and its value.
pub type Field = (String, Vec<u8>);

/// Identity of the last change of dials, overrides or documents of a domain.
///
/// A backend that lost its last changes gives their numbers to others, so a number is no identity:
/// compare both fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangesVersion {
    /// Number of the changes; 0 before the first.
    pub number: u64,
    /// When the last one was made, in microseconds since the Unix epoch.
    pub at_us: u64,
}

impl ChangesVersion {
    /// Whether all changes of an earlier version may be among these. If they are not, the backend
    /// lost some.
    pub fn follows(&self, earlier: &Self) -> bool {
        self.number > earlier.number || self == earlier
    }
}

/// A hash at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The backend's time since the Unix epoch.
    pub now: Duration,
    /// The version of the dials; that of no change for another hash.
    pub version: ChangesVersion,
    /// The fields without the version, sorted by name.
    pub fields: Vec<Field>,
    /// How many fields are missing here, because they are too large, too many or not UTF-8.
    pub left_out: u64,
}

impl Snapshot {
    /// The value of a field.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let index = self.fields.binary_search_by(|(field, _)| field.as_str().cmp(name)).ok()?;
        self.fields.get(index).map(|(_, value)| value.as_slice())
    }

    /// Sorts `fields`, and drops and counts what is beyond the bounds.
    pub(crate) fn within_bounds(
        hash: HashName,
        fields: impl Iterator<Item = Field>,
        now: Duration,
        version: ChangesVersion,
        left_out: u64,
    ) -> Self {
        let mut snapshot = Self { now, version, fields: Vec::new(), left_out };
        for (name, value) in fields {
            if value.len() <= MAX_VALUE && snapshot.fields.len() < hash.max_fields() {
                snapshot.fields.push((name, value));
            } else {
                snapshot.left_out = snapshot.left_out.saturating_add(1);
            }
        }
        snapshot.fields.sort();
        snapshot
    }
}

/// A change of one field, made only if the field still holds what the operator saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The hash of the field.
    pub hash: HashName,
    /// The field's name.
    pub field: String,
    /// The value that the field must still hold; `None` for a field that must not exist.
    pub old: Option<Vec<u8>>,
    /// The new value; `None` deletes the field.
    pub new: Option<Vec<u8>>,
    /// The entry for the history, which also makes a new version. `None` changes neither.
    pub event: Option<Vec<u8>>,
}

/// A document that is published, or the withdrawal of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// The record of the last one; `None` if there is none.
    pub old: Option<Vec<u8>>,
    /// Its own number.
    pub number: u64,
    /// Its record.
    pub record: Vec<u8>,
    /// The record of the last one from now on.
    pub last: Vec<u8>,
    /// Its text; `None` to withdraw.
    pub text: Option<Vec<u8>>,
    /// The number whose record and text are deleted.
    pub dropped: Option<u64>,
    /// The entry for the history.
    pub event: Vec<u8>,
}

/// Fields that are deleted and set in a hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upsert {
    /// Names of the fields to delete, before others are set.
    pub delete: Vec<String>,
    /// The fields to set.
    pub fields: Vec<Field>,
    /// Most fields of the hash. A new field beyond them is not set.
    pub max_fields: usize,
    /// How long the hash is kept after its last upsert.
    pub keep_for: Duration,
}

/// A single key that belongs to a counter's key, `<domain>:<policy>:{<partition>}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key<'a> {
    /// The override of this counter's key.
    Override(&'a str),
    /// The counter in one window.
    Counter {
        /// The counter's key.
        key: &'a str,
        /// The window.
        id: CounterId,
    },
}

impl<'a> Key<'a> {
    /// The counter's key that it belongs to.
    pub const fn counter(&self) -> &'a str {
        match *self {
            Self::Override(key) | Self::Counter { key, .. } => key,
        }
    }
}

/// What a single key holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyState {
    /// The backend's time since the Unix epoch.
    pub now: Duration,
    /// The key's text, for a counter its used units or the slots that are held; `None` if the key
    /// does not exist, or no worker holds a slot or waits for one.
    pub value: Option<String>,
    /// Milliseconds until an override expires; `None` if it does not. For the counter of a sliding
    /// window: until its last unit returns. For slots: until the last worker's are free, if it is
    /// dead.
    pub ttl_ms: Option<u64>,
    /// The quota of the last reservation of a counter that said its quota is not the policy's,
    /// before any override.
    pub own_quota: Option<u64>,
}

/// The slots of a counter at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotsState {
    /// The backend's time since the Unix epoch.
    pub now: Duration,
    /// The workers that hold slots or wait for them, sorted by name, at most [`MAX_FIELDS`].
    pub holders: Vec<SlotHolder>,
    /// How many workers are missing here, because they are too many or what they hold cannot be
    /// read. While one cannot be read, no slot is granted.
    pub left_out: u64,
}

/// A worker that holds slots of a counter or waits for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotHolder {
    /// Its name: the id of its proxy, its index in the proxy and a text that differs for each of
    /// its starts, with dots between them.
    pub worker: Arc<str>,
    /// The slots that it holds.
    pub held: u64,
    /// For how many milliseconds its longest live request has held a slot.
    pub longest_ms: u64,
    /// The slots that its requests wait for.
    pub waiting: u64,
    /// For how many milliseconds the oldest of them has waited.
    pub waited_ms: u64,
    /// Milliseconds until its slots are free, unless it says before that it holds them.
    pub ends_ms: u64,
    /// The limit that it named last, if that is not the policy's.
    pub own_quota: Option<u64>,
}

/// What a [release](ControlStore::release) freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// The workers that held slots.
    pub workers: u64,
    /// The slots.
    pub slots: u64,
    /// Workers whose fields nobody could read. While they were there, no slot was granted.
    pub unreadable: u64,
}

impl Released {
    /// Counts a worker that held so many slots.
    pub(crate) fn add(&mut self, slots: u64) {
        self.workers = self.workers.saturating_add(1);
        self.slots = self.slots.saturating_add(slots).min(MAX_UNITS);
    }
}

/// Whether a search finds counters whose window has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptCounters {
    /// Only those in which units are still counted.
    LeftOut,
    /// Those that are kept for operators, too.
    Found,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundKeys {
    /// Keys of counters, `<domain>:<policy>:{<partition>}`.
    pub keys: Vec<String>,
    /// Why there may be more.
    pub incomplete: Option<String>,
}

/// Some of the counters of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterPage {
    /// Their keys, `<domain>:<policy>:{<partition>}`.
    pub keys: BTreeSet<String>,
    /// What the next page is called; `None` for the last one.
    pub next: Option<String>,
    /// Why counters of this page may be missing: the part of the backend that has them is away.
    pub incomplete: Option<String>,
}

/// The caller asks for a page that no page has named, or that is gone.
pub(crate) fn unknown_page() -> StoreError {
    StoreError::Refused("the servers have changed meanwhile: begin with the first page".to_owned())
}

/// Whether the partition in a counter's key contains this entry.
pub(crate) fn has_entry(key: &str, entry: &str) -> bool {
    let partition = key.split_once(":{").and_then(|(_, rest)| rest.strip_suffix('}'));
    partition.is_some_and(|partition| partition.split(',').any(|other| other == entry))
}
