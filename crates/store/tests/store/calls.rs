//! A server with only the call endpoint.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::BoxFuture;
use quotagate_protocol::dials::DialsReply;
use quotagate_store::server::{
    CallEndpoint, Connections, Event, Hooks, ListenAddr, Listener, Tokens,
};
use quotagate_store::store::Store;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Grants that were refunded because their caller had left.
#[derive(Default)]
pub struct Undone(AtomicUsize);

impl Undone {
    pub fn count(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Hooks for Undone {
    fn observe(&self, event: Event<'_>) {
        if let Event::Undone(grants) = event {
            self.0.fetch_add(grants, SeqCst);
        }
    }

    fn version(&self, domain: &str) -> u64 {
        ().version(domain)
    }

    fn dials<'a>(
        &'a self,
        domain: &'a str,
        report: &'a [u8],
    ) -> BoxFuture<'a, Result<DialsReply, String>> {
        ().dials(domain, report)
    }
}

pub struct Calls {
    pub address: ListenAddr,
    pub connections: Arc<Connections>,
    pub undone: Arc<Undone>,
    /// Carries the duration of the drain. If it is dropped, the server stops without draining.
    pub stop: Option<oneshot::Sender<Duration>>,
    pub running: JoinHandle<()>,
}

impl Calls {
    pub async fn start(store: Arc<dyn Store>) -> Self {
        Self::with(store, "127.0.0.1:0", None).await
    }

    pub async fn with(store: Arc<dyn Store>, listen: &str, tokens: Option<Tokens>) -> Self {
        let listener = Listener::bind(&listen.parse().unwrap()).await.unwrap();
        let address = listener.address().clone();
        let (undone, connections) = (Arc::<Undone>::default(), Arc::<Connections>::default());
        let endpoint = CallEndpoint::new(store, Arc::clone(&connections));
        let endpoint = endpoint.tokens(tokens).hooks(Arc::clone(&undone) as Arc<dyn Hooks>);
        let (stop, stopped) = oneshot::channel();
        let serving = Arc::clone(&connections);
        let running = tokio::spawn(async move {
            serving
                .run(Arc::new(endpoint).accept(listener), async {
                    stopped.await.unwrap_or_default()
                })
                .await;
        });
        Self { address, connections, undone, stop: Some(stop), running }
    }
}
