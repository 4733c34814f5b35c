//! The store of quotagate: keeps the counters, in memory, in Redis or in Redis Cluster.
//!
//! [`store`] says what every backend does for filters, and [`control`] what it does for operators.
//! [`memory`] and [`redis`] are the backends. [`url`] parses the URL that names one, [`secret`]
//! reads passwords and tokens from files, and [`tls`] certificates. [`open`] makes a backend from a
//! URL. [`server`] is the address that proxies call. The crates `quotagate-operate` and
//! `quotagate-control` are for operators, and depend on this one.

use std::sync::Arc;

pub mod address;
pub mod control;
mod error;
mod in_flight;
mod login;
pub mod memory;
pub mod redis;
pub mod secret;
pub mod server;
mod sliding;
pub mod store;
pub mod tls;
pub mod url;
pub mod window;

use self::memory::{Memory, steady_clock};
use self::redis::{Redis, Target};
use self::store::Store;
use self::url::StoreUrl;

/// Opens the backend that `url` names. The backend connects in the background, now or as soon as it
/// can. Dropping it ends its tasks and closes its connections. Needs a Tokio runtime.
///
/// Every key in Redis begins with `prefix`, which must be a [`valid_prefix`].
pub fn open(url: &StoreUrl, prefix: &str) -> Arc<dyn Store> {
    let target = match url.clone() {
        StoreUrl::Memory => return Arc::new(Memory::new(steady_clock()).kept_swept()),
        StoreUrl::Cluster(login, seeds) => {
            return Arc::new(Redis::start_cluster(login, seeds, prefix));
        }
        StoreUrl::Redis(login, address) => Target::Address(login, address),
        StoreUrl::Socket(login, path) => Target::Socket(login, path),
        StoreUrl::Sentinel(login, sentinels, name) => Target::Sentinel { login, sentinels, name },
    };
    Arc::new(Redis::start(target, prefix))
}

/// Whether `prefix` may begin every key: 1 to 64 of `[A-Za-z0-9._-]`, so that it cannot change the
/// hash slot.
pub fn valid_prefix(prefix: &str) -> bool {
    (1..=64).contains(&prefix.len())
        && prefix.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}
