//! Operating quotagate: what operators change in a running fleet, and what they see of it. It works
//! the same over every backend, through its
//! [`ControlStore`](quotagate_store::control::ControlStore), and needs no server.
//!
//! [`Operate`] is the state of one process. [`watch`] observes its calls, and [`Fleet`] merges what
//! all processes saw. [`document`] checks what a policy document says of its store,
//! and [`comparison`] says what happens to counters when another one replaces it. [`api`] defines
//! the JSON that operators exchange with the admin address of `quotagate-control`.
//!
//! * A dial is a field in a hash of its domain: `record::DialRecord` as JSON. It reverts when its
//!   time is over.
//! * An override is a value beside its counters, which a reservation reads in its own step, and an
//!   entry in an index of its domain. The entry is written first and deleted last, and checked
//!   again after the override is set, so that no override stays in force unlisted. Listing drops an
//!   entry that has no override.
//! * Every change makes a new version and an entry in history, in the same step as its hash. For an
//!   override that happens once it is set. A store also makes an entry for each dial or override
//!   that ends by its time.
//!
//! Times are the backend's. Bounds: [`MAX_DOMAINS`] domains watched at once, and in each domain
//! [`MAX_POLICIES`] known policies and [`MAX_OVERRIDES`] overrides.

pub mod api;
mod change;
pub mod comparison;
mod control;
pub mod document;
mod domain;
mod fault;
mod fleet;
mod operate;
mod pattern;
mod record;
pub mod text;
pub mod watch;

use std::time::Duration;

pub use quotagate_store::control::MAX_OVERRIDES;

pub use self::change::author::Author;
pub use self::change::counters::Counters;
pub use self::change::dials::Dials;
pub use self::change::document_content::{DocumentContent, ReadRules, RuleFileSummary};
pub use self::change::documents::Documents;
pub use self::change::domains::Domains;
pub use self::change::folder::FolderDocuments;
pub use self::change::history::{History, HistoryFilter, OnChange};
pub use self::change::overrides::Overrides;
pub use self::domain::boards::{Boards, DomainGauges, PolicyGauge};
pub use self::domain::directory::{Directory, DomainNames, clean, clean_text};
pub use self::domain::views::{Full, Views, Watched};
pub use self::fault::Fault;
pub use self::fleet::{Fleet, FleetSight, PolicySteps, Requests};
pub use self::operate::Operate;
pub use self::record::documents::{NamedDocuments, PublishedRules};
pub use self::record::share_words;

/// Most domains whose dials are kept in memory.
pub const MAX_DOMAINS: usize = 64;
/// Most known policies of a domain.
pub const MAX_POLICIES: usize = 1024;
/// Most policies of a domain in all documents that proxies reported lately.
const MAX_FORMS: usize = 4 * MAX_POLICIES;
/// Most known domains.
const MAX_NAMES: usize = 1024;
/// How long a policy or a domain stays known after its last report.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A domain may still have proxies while its last report is younger than this. A store writes
/// reports to the backend every ten minutes, so other stores see one up to ten minutes late.
const REPORTED: Duration = Duration::from_secs(15 * 60);
/// How many times a change is tried while others change the same field.
const TRIES: u32 = 16;

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
