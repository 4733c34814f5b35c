//! What operators do to a running fleet: dials, runtime overrides, looking at counters. It is the
//! same over every backend, whose [`ControlStore`](quotagate_store::control::ControlStore) keeps
//! it.
//!
//! * A dial is a field of a hash of its domain: `record::DialRecord` as JSON. It ends when its time
//!   is over.
//! * An override is a value beside its counters, which a reservation reads in its own step, and an
//!   entry of an index of its domain. The entry is written first and deleted last, and looked for
//!   once more after the override is set, so that none stays in force unlisted; an entry without
//!   override is dropped when it is listed.
//! * Every change has a new version and an entry of history, in the same step as its hash; an
//!   override's once it is set.
//!
//! Times are the backend's. Bounds: [`MAX_DOMAINS`] domains are watched at once, and of a domain
//! [`MAX_POLICIES`] policies are known and [`MAX_OVERRIDES`] overrides kept.

mod boards;
mod counters;
mod dials;
mod directory;
mod domains;
mod fault;
mod history;
mod overrides;
mod record;
mod reports;
mod shape;
mod view;
mod views;

use std::sync::Arc;
use std::time::Duration;

pub use quotagate_store::control::MAX_OVERRIDES;
use quotagate_store::store::Store;

pub use self::boards::Boards;
pub use self::counters::{Counters, LastQuota};
pub use self::dials::Dials;
pub use self::directory::Directory;
pub use self::domains::Domains;
pub use self::fault::Fault;
pub use self::history::History;
pub use self::overrides::Overrides;
pub use self::views::{Full, Views, Watched};

/// Most domains whose dials are kept in memory.
pub const MAX_DOMAINS: usize = 64;
/// Most policies of a domain that are known.
pub const MAX_POLICIES: usize = 1024;
/// Most domains that are known.
const MAX_NAMES: usize = 1024;
/// How long a policy or a domain is known after its last report.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A domain whose last report is younger may still have proxies. A store writes its reports to the
/// backend every ten minutes, so others learn of a report that late.
const REPORTED: Duration = Duration::from_secs(15 * 60);
/// How often a change is tried while others change the same field.
const TRIES: u32 = 16;

/// Operators' view of a store: one part for each thing that they change or see.
///
/// Make one with [`new`](Self::new), and keep [`keep_fresh`](Self::keep_fresh) running beside it.
pub struct Operate {
    /// What proxies get of each domain.
    pub views: Arc<Views>,
    /// Which domains and policies there are.
    pub directory: Arc<Directory>,
    /// What was changed, by whom.
    pub history: Arc<History>,
    /// Dials of policies.
    pub dials: Dials,
    /// Runtime overrides of partitions.
    pub overrides: Arc<Overrides>,
    /// Counters of partitions.
    pub counters: Counters,
    /// All that is known of a domain.
    pub boards: Arc<Boards>,
    /// The list of domains.
    pub domains: Domains,
}

impl Operate {
    /// Over `store`, with nothing at hand yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let views = Arc::new(Views::new(Arc::clone(&store)));
        let directory = Arc::new(Directory::new(Arc::clone(&store), Arc::clone(&views)));
        let history = Arc::new(History::new(store, Arc::clone(&views), Arc::clone(&directory)));
        let overrides = Arc::new(Overrides::new(Arc::clone(&directory), Arc::clone(&history)));
        let boards = Arc::new(Boards::new(Arc::clone(&directory), Arc::clone(&views)));
        Self {
            dials: Dials::new(Arc::clone(&directory), Arc::clone(&history)),
            counters: Counters::new(Arc::clone(&history), Arc::clone(&overrides)),
            domains: Domains::new(Arc::clone(&history), Arc::clone(&boards)),
            views,
            directory,
            history,
            overrides,
            boards,
        }
    }

    /// Reads the domains that proxies ask for once a second, and the others now and then. Never
    /// returns.
    pub async fn keep_fresh(&self) {
        tokio::join!(self.views.keep_fresh(), self.boards.keep_quiet());
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
