//! A store in memory, of which single steps of a change wait, fail, or let somebody else act first.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use quotagate_quota::wire::Return;
use quotagate_store::desk::{Cell, Change, Desk, Found, Note, Reply, Seen, Sheet, Shelf};
use quotagate_store::store::{Batch, Health, Settle, Store, StoreError};

/// A step that a change takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// An override is to be set.
    Set,
    /// A field is to be changed, and history told.
    Told,
    /// A cell is to be deleted.
    Delete,
}

/// What happens before a step; an error is its outcome.
pub type Before = Box<dyn Fn(Step) -> BoxFuture<'static, Result<(), StoreError>> + Send + Sync>;

pub struct Slow {
    pub inner: Arc<dyn Store>,
    pub before: Before,
}

impl Store for Slow {
    fn carry_out<'a>(&'a self, batch: &'a Batch, settle: &'a Settle<'a>) -> BoxFuture<'a, ()> {
        self.inner.carry_out(batch, settle)
    }

    fn give_back<'a>(&'a self, returns: &'a [Return]) -> BoxFuture<'a, ()> {
        self.inner.give_back(returns)
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn desk(&self) -> &dyn Desk {
        self
    }
}

impl Desk for Slow {
    fn backend(&self) -> &'static str {
        self.inner.desk().backend()
    }

    fn durable(&self) -> bool {
        self.inner.desk().durable()
    }

    fn read<'a>(&'a self, shelf: Shelf, domain: &'a str) -> Reply<'a, Sheet> {
        self.inner.desk().read(shelf, domain)
    }

    fn change<'a>(&'a self, domain: &'a str, change: &'a Change) -> Reply<'a, Option<u64>> {
        async move {
            if change.event.is_some() {
                (self.before)(Step::Told).await?;
            }
            self.inner.desk().change(domain, change).await
        }
        .boxed()
    }

    fn note<'a>(&'a self, shelf: Shelf, domain: &'a str, note: &'a Note) -> Reply<'a, ()> {
        self.inner.desk().note(shelf, domain, note)
    }

    fn history<'a>(&'a self, domain: &'a str, limit: usize) -> Reply<'a, Vec<Vec<u8>>> {
        self.inner.desk().history(domain, limit)
    }

    fn look<'a>(&'a self, cell: Cell<'a>) -> Reply<'a, Seen> {
        self.inner.desk().look(cell)
    }

    fn find<'a>(&'a self, domain: &'a str, entry: &'a str, most: usize) -> Reply<'a, Found> {
        self.inner.desk().find(domain, entry, most)
    }

    fn set_override<'a>(&'a self, key: &'a str, value: &'a str, for_ms: Option<u64>) -> Reply<'a, ()> {
        async move {
            (self.before)(Step::Set).await?;
            self.inner.desk().set_override(key, value, for_ms).await
        }
        .boxed()
    }

    fn delete<'a>(&'a self, cell: Cell<'a>) -> Reply<'a, bool> {
        async move {
            (self.before)(Step::Delete).await?;
            self.inner.desk().delete(cell).await
        }
        .boxed()
    }
}
