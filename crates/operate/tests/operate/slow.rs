//! A store in memory where a single step of a change can wait, fail, or let another operator act
//! first.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use quotagate_protocol::Adjustment;
use quotagate_store::control::{
    Change, ControlStore, CounterPage, FoundKeys, HashName, KeptCounters, Key, KeyState,
    Publication, Released, Reply, SlotsState, Snapshot, Upsert,
};
use quotagate_store::store::{Batch, Health, OnReserved, Store, StoreError};

/// A step that a change takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sets an override.
    Set,
    /// Changes a field and adds to history.
    Record,
    /// Deletes a key.
    Delete,
}

/// What happens before a step. An error becomes the result of the step.
pub type Before = Box<dyn Fn(Step) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

pub struct Slow {
    pub inner: Arc<dyn Store>,
    pub before: Before,
}

impl Store for Slow {
    fn carry_out<'a>(
        &'a self,
        batch: &'a Batch,
        on_reserved: &'a OnReserved<'a>,
    ) -> BoxFuture<'a, ()> {
        self.inner.carry_out(batch, on_reserved)
    }

    fn refund<'a>(&'a self, refunds: &'a [Adjustment]) -> BoxFuture<'a, ()> {
        self.inner.refund(refunds)
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn control(&self) -> &(dyn ControlStore + 'static) {
        self
    }
}

impl ControlStore for Slow {
    fn backend(&self) -> &'static str {
        self.inner.control().backend()
    }

    fn durable(&self) -> bool {
        self.inner.control().durable()
    }

    fn read<'a>(&'a self, hash: HashName, domain: &'a str) -> Reply<'a, Snapshot> {
        self.inner.control().read(hash, domain)
    }

    fn change<'a>(&'a self, domain: &'a str, change: &'a Change) -> Reply<'a, Option<u64>> {
        async move {
            if change.event.is_some() {
                (self.before)(Step::Record).await?;
            }
            self.inner.control().change(domain, change).await
        }
        .boxed()
    }

    fn publish<'a>(
        &'a self,
        domain: &'a str,
        publication: &'a Publication,
    ) -> Reply<'a, Option<u64>> {
        self.inner.control().publish(domain, publication)
    }

    fn document<'a>(&'a self, domain: &'a str, number: u64) -> Reply<'a, Option<Vec<u8>>> {
        self.inner.control().document(domain, number)
    }

    fn forget_documents<'a>(&'a self, domain: &'a str, last: Option<&'a [u8]>) -> Reply<'a, bool> {
        self.inner.control().forget_documents(domain, last)
    }

    fn upsert<'a>(&'a self, hash: HashName, domain: &'a str, upsert: &'a Upsert) -> Reply<'a, ()> {
        self.inner.control().upsert(hash, domain, upsert)
    }

    fn history<'a>(&'a self, domain: &'a str, limit: usize) -> Reply<'a, Vec<Vec<u8>>> {
        self.inner.control().history(domain, limit)
    }

    fn get<'a>(&'a self, key: Key<'a>) -> Reply<'a, KeyState> {
        self.inner.control().get(key)
    }

    fn find<'a>(
        &'a self,
        domain: &'a str,
        entry: &'a str,
        kept: KeptCounters,
        most: usize,
    ) -> Reply<'a, FoundKeys> {
        self.inner.control().find(domain, entry, kept, most)
    }

    fn page<'a>(
        &'a self,
        domain: &'a str,
        policy: &'a str,
        kept: KeptCounters,
        from: Option<&'a str>,
    ) -> Reply<'a, CounterPage> {
        self.inner.control().page(domain, policy, kept, from)
    }

    fn set_override<'a>(
        &'a self,
        key: &'a str,
        value: &'a str,
        for_ms: Option<u64>,
    ) -> Reply<'a, ()> {
        async move {
            (self.before)(Step::Set).await?;
            self.inner.control().set_override(key, value, for_ms).await
        }
        .boxed()
    }

    fn delete<'a>(&'a self, key: Key<'a>) -> Reply<'a, bool> {
        async move {
            (self.before)(Step::Delete).await?;
            self.inner.control().delete(key).await
        }
        .boxed()
    }

    fn slots<'a>(&'a self, key: &'a str) -> Reply<'a, SlotsState> {
        self.inner.control().slots(key)
    }

    fn release<'a>(&'a self, key: &'a str, of: Option<&'a str>) -> Reply<'a, Released> {
        self.inner.control().release(key, of)
    }
}
