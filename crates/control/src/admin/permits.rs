//! Permits of the requests under `/v1/`: how many are under way, of each operator and in all.
//!
//! Every such request reads or writes Redis, and a search looks at all of its keys. The permits
//! leave Redis time to count, and room for other operators.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quotagate_operate::api;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::error::Refusal;
use super::operator::Access;

/// Searches of one operator, and of all, that are under way at once.
const SEARCHES: (usize, usize) = (2, 4);
/// Other requests of one operator, and of all, at the same time.
const OTHERS: (usize, usize) = (4, 16);
/// Requests of one operator that wait for a permit.
const WAITING: usize = 16;
/// Longest wait of a request for its permit. A command waits for its answer for 5 s.
const PATIENCE: Duration = Duration::from_secs(1);

/// The permits of all requests.
pub struct AdminPermits {
    searches: Gate,
    others: Gate,
}

/// The permits of one kind of requests.
struct Gate {
    name: &'static str,
    each: usize,
    all: Arc<Semaphore>,
    /// Permits of each operator who has a request under way or waiting. Operators without a name
    /// share theirs.
    operators: Mutex<HashMap<Option<String>, Arc<Semaphore>>>,
}

/// The permit of one request, until this is dropped.
pub struct AdminPermit {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Default for AdminPermits {
    fn default() -> Self {
        let gate = |name, (each, all)| {
            let (all, operators) = (Arc::new(Semaphore::new(all)), Mutex::default());
            Gate { name, each, all, operators }
        };
        Self { searches: gate("searches", SEARCHES), others: gate("requests", OTHERS) }
    }
}

impl AdminPermits {
    /// Waits for the permit of a request to this path.
    ///
    /// # Errors
    /// If too many requests are under way or wait.
    pub async fn acquire(&self, path: &str, access: &Access) -> Result<AdminPermit, Refusal> {
        let gate = match path {
            api::USAGE | api::PARTIES => &self.searches,
            _ => &self.others,
        };
        let permit = timeout(PATIENCE, gate.acquire(access.operator.name.as_deref())).await;
        permit.ok().flatten().ok_or_else(|| Refusal::Busy { who: access.who(), what: gate.name })
    }
}

impl Gate {
    /// `None` if too many requests of this operator wait.
    async fn acquire(&self, operator: Option<&str>) -> Option<AdminPermit> {
        let own = {
            let mut operators = self.operators.lock().unwrap_or_else(PoisonError::into_inner);
            // Every request that is under way or waits has a clone.
            operators.retain(|_, own| Arc::strong_count(own) > 1);
            let own = operators.entry(operator.map(str::to_owned));
            let own = own.or_insert_with(|| Arc::new(Semaphore::new(self.each)));
            if Arc::strong_count(own) > self.each + WAITING {
                return None;
            }
            Arc::clone(own)
        };
        let own = own.acquire_owned().await.ok()?;
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(AdminPermit { _own: own, _all: all })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::{FutureExt as _, join_all};

    use super::*;

    #[tokio::test]
    async fn operator_has_few_permits_at_once_and_leaves_some_to_others() {
        let permits = AdminPermits::default();
        let gate = &permits.searches;
        let held =
            [gate.acquire(Some("ann")).await.unwrap(), gate.acquire(Some("ann")).await.unwrap()];
        assert!(gate.acquire(Some("ann")).now_or_never().is_none(), "a third one of hers waits");
        let others = [gate.acquire(Some("ben")).await.unwrap(), gate.acquire(None).await.unwrap()];
        assert!(gate.acquire(Some("cy")).now_or_never().is_none(), "all permits are taken");
        let waiting = join_all((0..WAITING).map(|_| gate.acquire(Some("ann"))));
        tokio::select! {
            biased;
            _ = waiting => panic!("no permit is free"),
            permit = gate.acquire(Some("ann")) => assert!(permit.is_none(), "no more of hers wait"),
        }
        drop((held, others));
        assert!(gate.acquire(Some("ann")).await.is_some());
        assert!(gate.acquire(Some("cy")).await.is_some());
        assert_eq!(gate.operators.lock().unwrap().len(), 1, "nobody is remembered in vain");
    }
}
