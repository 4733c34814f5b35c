//! What operators do to a running fleet: dials, overrides, looking at counters. The same over every backend, whose
//! [`ControlStore`] keeps it.
//!
//! * A dial is a field of a hash of its domain: `record::DialRecord` as JSON. One whose time is over counts no more.
//! * An override is a value beside its counters, which a reservation reads in its own step, and an entry of an index of
//!   its domain. The entry is written first and deleted last, and looked for once more after the override is set, so that
//!   none stays in force unlisted; an entry without override is dropped when it is listed.
//! * Every change has a new version and an entry of history, in the same step as its hash; an override's once it is set.
//!
//! Times are the backend's. Bounds: [`MAX_DOMAINS`] domains are watched at once, and of a domain [`MAX_POLICIES`] policies
//! are known and [`MAX_OVERRIDES`] overrides kept.

mod boards;
mod cache;
mod dials;
mod domains;
mod fault;
mod names;
mod overrides;
mod record;
mod reports;
mod shape;
mod usage;
mod view;

use std::sync::Arc;
use std::time::Duration;

use crate::api::Event;
use quotagate_store::control::{Change, ControlStore, HashName};
use quotagate_store::store::Store;

pub use self::cache::{Cached, Full};
pub use self::fault::Fault;
pub use quotagate_store::control::MAX_OVERRIDES;

/// Domains whose dials are kept at hand.
pub const MAX_DOMAINS: usize = 64;
/// Policies of a domain that are known.
pub const MAX_POLICIES: usize = 1024;
/// Domains that were ever told of.
const MAX_NAMES: usize = 1024;
/// How long a policy or a domain is known that no filter tells of any more.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A domain whose last report is younger may still have proxies. A store writes down what it was told every ten minutes, so
/// others learn of a report that late.
const REPORTED: Duration = Duration::from_secs(15 * 60);
/// How often a change is tried that others are quicker with.
const TRIES: u32 = 16;

/// Operators' view of a store.
pub struct Operate {
    store: Arc<dyn Store>,
    cache: cache::Cache,
    kept: boards::Kept,
}

/// A change that is to be made: what a field shall hold, and what is said of it.
struct Edit {
    new: Option<Vec<u8>>,
    done: String,
}

/// What was made.
struct Made {
    version: u64,
    done: String,
}

impl Operate {
    /// Over `store`, with nothing at hand yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, cache: cache::Cache::default(), kept: boards::Kept::default() }
    }

    fn control(&self) -> &dyn ControlStore {
        self.store.control()
    }

    /// Changes one field to what `edit` makes of its value and of the backend's time, and tells history.
    async fn change(
        &self,
        domain: &str,
        hash: HashName,
        field: &str,
        by: &str,
        edit: impl Fn(Option<&[u8]>, Duration) -> Result<Edit, Fault>,
    ) -> Result<Made, Fault> {
        for _ in 0..TRIES {
            let snapshot = self.control().read(hash, domain).await?;
            let old = snapshot.get(field);
            let Edit { new, done } = edit(old, snapshot.now)?;
            let event = Event { at_ms: millis(snapshot.now), by: by.to_owned(), done };
            let change = Change {
                hash,
                field: field.to_owned(),
                old: old.map(<[u8]>::to_vec),
                new,
                event: Some(record::write(&event)),
            };
            if let Some(version) = self.control().change(domain, &change).await? {
                tracing::info!("{}, by {}, in {domain}", event.done, event.by);
                self.reread(domain).await;
                return Ok(Made { version, done: event.done });
            }
        }
        Err(Fault::Contended)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
