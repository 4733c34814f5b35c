//! The state behind the admin address, fed by the calls that the store answers.

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt};
use quotagate_quota::protocol::dials::DialsReply;
use quotagate_store::server::{Connections, Event, Hooks};
use quotagate_store::store::Store;

use crate::listeners::Events;
use crate::metrics::Metrics;
use crate::operate::Operate;
use crate::watch::Watch;

/// What the admin address serves. It observes calls as the endpoint's [`Hooks`].
pub struct Control {
    pub store: Arc<dyn Store>,
    pub operate: Operate,
    pub watch: Watch,
    pub events: Events,
    pub metrics: Metrics,
    pub connections: Arc<Connections>,
}

impl Control {
    /// A state over `store` that knows no domain yet.
    pub fn new(store: Arc<dyn Store>, connections: Arc<Connections>) -> Self {
        let watch = Watch::default();
        let metrics = Metrics::new(&*store, &watch);
        let operate = Operate::new(Arc::clone(&store));
        Self { store, operate, watch, events: Events::default(), metrics, connections }
    }
}

impl Hooks for Control {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Received { reservations, refunds } => self.metrics.items(reservations, refunds),
            Event::Invalid(key) => self.watch.invalid(key),
            Event::Refunded(refund) => self.watch.refunded(&refund.key, refund.units),
            Event::Settled(ask, settled) => self.watch.settled(ask, settled),
            Event::Undone(grants) => self.metrics.undone(grants),
            Event::Answered { status, took } => self.metrics.call(status, took),
        }
    }

    fn version(&self, domain: &str) -> u64 {
        self.operate.views.version(domain)
    }

    fn dials<'a>(
        &'a self,
        domain: &'a str,
        report: &'a [u8],
    ) -> BoxFuture<'a, Result<DialsReply, String>> {
        async move {
            let cached =
                self.operate.views.wanted(domain).await.map_err(|full| full.to_string())?;
            // Reports decide nothing, so an unreadable one is ignored.
            if let Some(report) = cached.learn(report) {
                self.watch.reported(domain, &report);
                if cached.is_due() {
                    let (directory, cached) =
                        (Arc::clone(&self.operate.directory), Arc::clone(&cached));
                    let write_down = async move { directory.write_down(&cached).await };
                    drop(self.connections.spawn(write_down));
                }
            }
            cached.reply().ok_or_else(|| "the dials cannot be read".to_owned())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Format;

    #[tokio::test]
    async fn grants_that_the_store_refunds_are_in_the_metrics() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let control = Control::new(store, Arc::default());
        control.observe(Event::Undone(2));
        let text = control.metrics.render(&*control.store, &control.operate, Format::Plain);
        assert!(text.contains("quotagate_store_grants_undone_total 2"), "{text}");
    }
}
