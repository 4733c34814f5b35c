//! A store that serves proxies and operators.
//!
//! [`serve()`] runs it: proxies call one address, and operators use the other one. The crate
//! `quotagate-store` counts, `quotagate-operate` knows what operators see and change. This one
//! offers that over HTTP: the admin API, metrics and the live page.

mod admin;
mod audit;
mod control;
mod folder;
mod listeners;
mod metrics;
mod serve;

pub use self::admin::guard::{TrustedProxy, is_json};
pub use self::audit::AuditLog;
pub use self::folder::{DocumentFolder, FileDocument, ReadDocuments};
pub use self::serve::{App, Serving, serve, serve_with};
pub use quotagate_operate::watch::RulesSighting;
pub use quotagate_operate::{MAX_DOMAINS, PublishedRules, ReadRules, RuleFileSummary};
