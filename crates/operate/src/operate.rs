//! The state of one process that answers calls: what operators see and change, and what the calls
//! show.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use quotagate_protocol::dials::DialsReply;
use quotagate_store::server::{Event, Hooks};
use quotagate_store::store::Store;

use crate::Fault;
use crate::api::{PublishedDocuments, PublisherKind};
use crate::change::counters::Counters;
use crate::change::dials::Dials;
use crate::change::document_replies::DocumentReplies;
use crate::change::documents::Documents;
use crate::change::domains::Domains;
use crate::change::expiry::Expiry;
use crate::change::history::History;
use crate::change::overrides::Overrides;
use crate::control::ControlHandle;
use crate::domain::boards::Boards;
use crate::domain::directory::Directory;
use crate::domain::views::Views;
use crate::fleet::Fleet;
use crate::watch::Watch;

/// What operators see and change: one part for each subject. As [`Hooks`] of the call endpoint, it
/// observes calls, learns what proxies report, and answers with the dials.
///
/// Call order: make one with [`new`](Self::new) or [`in_proxy`](Self::in_proxy), give it to the
/// endpoint, and keep [`run`](Self::run) running beside it.
///
/// ```
/// use std::sync::Arc;
///
/// use quotagate_operate::Operate;
/// use quotagate_store::server::{CallEndpoint, Connections, Hooks};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = quotagate_store::open(&"memory:".parse()?, "qg");
/// let operate = Arc::new(Operate::in_proxy(Arc::clone(&store)));
/// let hooks: Arc<dyn Hooks> = Arc::clone(&operate) as _;
/// let endpoint = CallEndpoint::new(store, Arc::new(Connections::default())).hooks(hooks);
/// let background = tokio::spawn(async move { operate.run().await });
/// # drop((endpoint, background));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Operate {
    /// What proxies receive for each domain.
    pub views: Arc<Views>,
    /// The known domains and policies.
    pub directory: Arc<Directory>,
    /// What was changed, by whom.
    pub history: Arc<History>,
    /// Dials of policies.
    pub dials: Dials,
    /// Published documents.
    pub documents: Arc<Documents>,
    /// What proxies get of them.
    document_replies: DocumentReplies,
    /// Runtime overrides of partitions.
    pub overrides: Arc<Overrides>,
    /// Counters of partitions.
    pub counters: Counters,
    /// The state of each domain.
    pub boards: Arc<Boards>,
    /// The list of domains.
    pub domains: Domains,
    /// What the calls of this process show.
    pub watch: Arc<Watch>,
    /// What the calls of all processes show that share the backend.
    pub fleet: Arc<Fleet>,
    expiry: Expiry,
    kind: PublisherKind,
}

impl Operate {
    /// All parts over `store`, in a store's process. They have read nothing yet.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self::of(store, PublisherKind::Store)
    }

    /// The same in a proxy's process.
    pub fn in_proxy(store: Arc<dyn Store>) -> Self {
        Self::of(store, PublisherKind::Proxy)
    }

    /// The published documents of a domain, and what its proxies made of them: [`TakenUp`] says how
    /// many of them run which number, since when.
    ///
    /// [`TakenUp`]: crate::api::TakenUp
    ///
    /// # Errors
    /// If the domain is not known, or the backend fails.
    pub async fn document_status(&self, domain: Option<&str>) -> Result<PublishedDocuments, Fault> {
        self.documents.list(domain, &self.fleet.look().await).await
    }

    fn of(store: Arc<dyn Store>, kind: PublisherKind) -> Self {
        let watch = Arc::new(Watch::default());
        let control = ControlHandle::new(store);
        let fleet = Arc::new(Fleet::new(control.clone(), Arc::clone(&watch), kind));
        let views = Arc::new(Views::new(control.clone()));
        let directory = Arc::new(Directory::new(control.clone(), Arc::clone(&views)));
        let history = Arc::new(History::new(control, Arc::clone(&views), Arc::clone(&directory)));
        let overrides = Arc::new(Overrides::new(
            Arc::clone(&directory),
            Arc::clone(&history),
            Arc::clone(&watch),
        ));
        let documents = Arc::new(Documents::new(
            Arc::clone(&directory),
            Arc::clone(&history),
            Arc::clone(&fleet),
        ));
        let boards = Arc::new(Boards::new(Arc::clone(&directory), Arc::clone(&views)));
        Self {
            dials: Dials::new(Arc::clone(&directory), Arc::clone(&history), Arc::clone(&watch)),
            documents: Arc::clone(&documents),
            document_replies: DocumentReplies::new(history.control.clone()),
            counters: Counters::new(
                Arc::clone(&history),
                Arc::clone(&overrides),
                Arc::clone(&boards),
            ),
            domains: Domains::new(Arc::clone(&history), Arc::clone(&boards)),
            expiry: Expiry::new(
                Arc::clone(&history),
                Arc::clone(&overrides),
                Arc::clone(&boards),
                documents,
            ),
            views,
            directory,
            history,
            overrides,
            boards,
            watch,
            fleet,
            kind,
        }
    }

    /// Reads the domains that proxies ask for every second; drops windows that have ended;
    /// publishes what this process sees. A store, which has gauges of all domains, also reads the
    /// others every ten seconds, records which dials, overrides and documents have ended, reads
    /// what proxies publish, and counts requests by minute. Never returns.
    pub async fn run(&self) {
        let quiet = async {
            if self.kind == PublisherKind::Store {
                tokio::join!(
                    self.boards.keep_quiet(),
                    self.expiry.keep_recorded(),
                    self.fleet.keep_read(),
                    self.fleet.keep_minutes()
                );
            }
        };
        let reading = async { tokio::join!(self.views.keep_fresh(), quiet) };
        tokio::join!(reading, self.watch.keep_swept(), self.fleet.keep_published());
    }
}

impl Hooks for Operate {
    fn observe(&self, event: Event<'_>) {
        match event {
            Event::Invalid(key) => self.watch.invalid(key),
            Event::Refunded(refund) => self.watch.refunded(&refund.key, refund.units),
            Event::Charged(charge) => self.watch.charged(&charge.key, charge.units),
            Event::Reserved(ask, reserved) => self.watch.reserved(ask, reserved),
            Event::Answered { status, took } => self.watch.calls.add(status, took),
            Event::Received { .. } | Event::Undone(_) => {}
        }
    }

    fn quota(&self, key: &str) -> Option<u64> {
        self.views.quota(key)
    }

    fn version(&self, domain: &str) -> u64 {
        self.views.version(domain)
    }

    fn dials<'a>(
        &'a self,
        domain: &'a str,
        report: &'a [u8],
    ) -> BoxFuture<'a, Result<DialsReply, String>> {
        async move {
            let cached = self.views.wanted(domain).await.map_err(|full| full.to_string())?;
            // One that cannot be read counts nothing, and does not say who the proxy is.
            let report = cached.learn(report);
            if let Some(report) = &report {
                self.watch.reported(domain, report);
                if cached.is_due() {
                    let (directory, cached) = (Arc::clone(&self.directory), Arc::clone(&cached));
                    tokio::spawn(async move { directory.write_down(&cached).await });
                }
            }
            cached.reply(report.as_ref()).ok_or_else(|| "the dials cannot be read".to_owned())
        }
        .boxed()
    }

    fn document<'a>(
        &'a self,
        domain: &'a str,
        digest: &'a str,
        number: u64,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        async move {
            let cached = self.views.wanted(domain).await.map_err(|full| full.to_string())?;
            let documents = cached.view().and_then(|view| view.documents());
            let (documents, _) = documents.ok_or("the published documents cannot be read")?;
            self.document_replies.reply(domain, documents.numbered(number).clone(), digest).await
        }
        .boxed()
    }
}
