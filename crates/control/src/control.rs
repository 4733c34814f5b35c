//! The state behind the admin address, fed by the calls that the store answers.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use quotagate_operate::Operate;
use quotagate_operate::api::Event as ApiEvent;
use quotagate_protocol::dials::DialsReply;
use quotagate_store::server::{Connections, Event, Hooks};
use quotagate_store::store::Store;

use crate::admin::permits::AdminPermits;
use crate::audit::{AuditLine, AuditLog};
use crate::listeners::Events;
use crate::metrics::Metrics;

/// What the admin address serves. It observes calls as the endpoint's [`Hooks`].
pub struct Control {
    pub store: Arc<dyn Store>,
    pub operate: Operate,
    pub events: Events,
    pub permits: AdminPermits,
    pub metrics: Metrics,
    pub connections: Arc<Connections>,
    pub audit: Option<Arc<AuditLog>>,
    /// What operators call this store, such as `production`.
    pub environment: Option<String>,
}

impl Control {
    /// A state over `store` that knows no domain yet.
    pub fn new(
        store: Arc<dyn Store>,
        connections: Arc<Connections>,
        audit: Option<AuditLog>,
    ) -> Self {
        let operate = Operate::new(Arc::clone(&store));
        let metrics = Metrics::new(&*store, &operate);
        let audit = audit.map(Arc::new);
        if let Some(audit) = audit.clone() {
            operate.history.on_change(Box::new(move |domain: &str, event: &ApiEvent| {
                let (audit, line) = (Arc::clone(&audit), AuditLine::of(domain, event));
                async move { audit.write(line).await }.boxed()
            }));
        }
        let (events, permits, environment) = (Events::default(), AdminPermits::default(), None);
        Self { store, operate, events, permits, metrics, connections, audit, environment }
    }
}

impl Hooks for Control {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Received { reservations, refunds, charges } => {
                self.metrics.items(reservations, refunds, charges);
            }
            Event::Undone(grants) => self.metrics.undone(grants),
            Event::Answered { status, took } => self.metrics.call(status, took),
            Event::Invalid(_) | Event::Refunded(_) | Event::Charged(_) | Event::Reserved(..) => {}
        }
        self.operate.observe(event);
    }

    fn quota(&self, key: &str) -> Option<u64> {
        self.operate.quota(key)
    }

    fn version(&self, domain: &str) -> u64 {
        self.operate.version(domain)
    }

    fn dials<'a>(
        &'a self,
        domain: &'a str,
        report: &'a [u8],
    ) -> BoxFuture<'a, Result<DialsReply, String>> {
        self.operate.dials(domain, report)
    }

    fn document<'a>(
        &'a self,
        domain: &'a str,
        digest: &'a str,
        number: u64,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        self.operate.document(domain, digest, number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Format;

    #[tokio::test]
    async fn grants_that_the_store_refunds_are_in_the_metrics() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let control = Control::new(store, Arc::default(), None);
        control.observe(Event::Undone(2));
        let text = control.metrics.render(&*control.store, &control.operate, Format::Plain);
        assert!(text.contains("quotagate_store_grants_undone_total 2"), "{text}");
    }
}
