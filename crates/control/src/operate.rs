//! How operators control a running fleet: dials, runtime overrides, counters. It works the same
//! over every backend, through its [`ControlStore`](quotagate_store::control::ControlStore).
//!
//! * A dial is a field in a hash of its domain: `record::DialRecord` as JSON. It reverts when its
//!   time is over.
//! * An override is a value beside its counters, which a reservation reads in its own step, and an
//!   entry in an index of its domain. The entry is written first and deleted last, and checked
//!   again after the override is set, so that no override stays in force unlisted. Listing drops an
//!   entry that has no override.
//! * Every change makes a new version and an entry in history, in the same step as its hash. For an
//!   override that happens once it is set.
//!
//! Times are the backend's. Bounds: [`MAX_DOMAINS`] domains watched at once, and in each domain
//! [`MAX_POLICIES`] known policies and [`MAX_OVERRIDES`] overrides.

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
/// Most known policies of a domain.
pub const MAX_POLICIES: usize = 1024;
/// Most known domains.
const MAX_NAMES: usize = 1024;
/// How long a policy or a domain stays known after its last report.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A domain may still have proxies while its last report is younger than this. A store writes
/// reports to the backend every ten minutes, so other stores see one up to ten minutes late.
const REPORTED: Duration = Duration::from_secs(15 * 60);
/// How many times a change is tried while others change the same field.
const TRIES: u32 = 16;

/// What operators see and change in a store: one part for each subject.
///
/// Make one with [`new`](Self::new), and keep [`keep_fresh`](Self::keep_fresh) running beside it.
pub struct Operate {
    /// What proxies receive for each domain.
    pub views: Arc<Views>,
    /// The known domains and policies.
    pub directory: Arc<Directory>,
    /// What was changed, by whom.
    pub history: Arc<History>,
    /// Dials of policies.
    pub dials: Dials,
    /// Runtime overrides of partitions.
    pub overrides: Arc<Overrides>,
    /// Counters of partitions.
    pub counters: Counters,
    /// The state of each domain.
    pub boards: Arc<Boards>,
    /// The list of domains.
    pub domains: Domains,
}

impl Operate {
    /// All parts over `store`. They have read nothing yet.
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

    /// Reads the domains that proxies ask for every second, and the others every ten. Never
    /// returns.
    pub async fn keep_fresh(&self) {
        tokio::join!(self.views.keep_fresh(), self.boards.keep_quiet());
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
