//! The entry point: a store that serves proxies and operators.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use quotagate_operate::api::DocumentText;
use quotagate_operate::watch::RulesSighting;
use quotagate_operate::{Fault, PublishedRules, ReadRules};
use quotagate_protocol::dials::DocumentVersion;
use quotagate_store::server::{
    CallEndpoint, Callers, Connections, Hooks, ListenAddr, Listener, Tokens,
};
use quotagate_store::store::Store;
use serde_json::Value;
use tokio_util::task::AbortOnDropHandle;

use crate::admin::guard::{Guard, HostNames, Reach, TrustedProxy};
use crate::admin::{self, events};
use crate::audit::AuditLog;
use crate::control::Control;
use crate::folder::DocumentFolder;
use crate::metrics::Format;

/// What [`serve`] serves, and to whom.
///
/// Make one with [`new`](Self::new), set its options, and pass it to [`serve`].
pub struct App {
    store: Arc<dyn Store>,
    tokens: Option<Tokens>,
    guard: Guard,
    audit: Option<AuditLog>,
    environment: Option<String>,
    folder: Option<DocumentFolder>,
    read_rules: Option<ReadRules>,
}

impl App {
    /// Serves `store` to callers and operators who present one of `tokens`, or to everyone if
    /// `tokens` is `None`.
    pub fn new(store: Arc<dyn Store>, tokens: Option<Tokens>) -> Self {
        let guard = Guard { tokens: tokens.clone(), ..Guard::default() };
        Self {
            store,
            tokens,
            guard,
            audit: None,
            environment: None,
            folder: None,
            read_rules: None,
        }
    }

    /// Requires one of these tokens from operators instead. Callers do not have them.
    #[must_use]
    pub fn admin_tokens(mut self, tokens: Option<Tokens>) -> Self {
        self.guard.tokens = tokens.or(self.guard.tokens);
        self
    }

    /// Lets operators reach the admin address by these names, besides IP addresses and
    /// `localhost`.
    #[must_use]
    pub fn admin_hosts(mut self, hosts: Vec<String>) -> Self {
        self.guard.hosts = HostNames(hosts);
        self
    }

    /// Lets this proxy say who its operators are. Their roles are those of groups in the tokens of
    /// operators.
    #[must_use]
    pub fn proxy(mut self, proxy: Option<TrustedProxy>) -> Self {
        self.guard.proxy = proxy;
        self
    }

    /// Writes each change and each refused try to this log.
    #[must_use]
    pub fn audit(mut self, audit: Option<AuditLog>) -> Self {
        self.audit = audit;
        self
    }

    /// Calls the store by this name on the live page, in its title, its colour and every
    /// confirmation.
    #[must_use]
    pub fn environment(mut self, name: Option<String>) -> Self {
        self.environment = name;
        self
    }

    /// Publishes the documents of this folder whenever they change.
    #[must_use]
    pub fn documents(mut self, folder: Option<DocumentFolder>) -> Self {
        self.folder = folder;
        self
    }

    /// Lets operators publish rule files, too, which this reads.
    #[must_use]
    pub fn rules(mut self, read: ReadRules) -> Self {
        self.read_rules = Some(read);
        self
    }
}

/// Serves proxies on `calls` and operators on `admin` until `shutdown`, which yields how long to
/// drain. Needs a Tokio runtime.
///
/// Call order: open a store, bind both addresses, make an [`App`], call this. The future owns
/// everything, so dropping it stops the server at once. When `shutdown` ends,
/// 1. the server drains: `/readyz` fails, and the server asks connections to close. It still
///    serves new ones, so that no caller loses a call before it has found another store;
/// 2. after the drain the server accepts no more connections, and takes at most 5 s to answer the
///    calls that it accepted.
///
/// ```
/// use std::time::Duration;
/// use quotagate_control::{App, serve};
/// use quotagate_store::server::Listener;
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = quotagate_store::open(&"memory:".parse()?, "qg");
/// let calls = Listener::bind(&"127.0.0.1:0".parse()?).await?;
/// let admin = Listener::bind(&"127.0.0.1:0".parse()?).await?;
/// println!("proxies call {}, operators use {}", calls.address(), admin.address());
///
/// let (stop, stopped) = tokio::sync::oneshot::channel::<Duration>();
/// let shutdown = async { stopped.await.unwrap_or_default() };
/// let server = tokio::spawn(serve(calls, admin, App::new(store, None), shutdown));
///
/// stop.send(Duration::ZERO).expect("the server runs");
/// server.await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn serve(
    calls: Listener,
    admin: Listener,
    app: App,
    shutdown: impl Future<Output = Duration>,
) {
    let accept = |serving: Serving| serving.endpoint.accept(calls);
    serve_with(admin, app, accept, shutdown).await;
}

/// What [`serve_with`] passes to the code that serves callers.
pub struct Serving {
    /// Carries out calls.
    pub endpoint: Arc<CallEndpoint>,
    /// The store behind it.
    pub store: Arc<dyn Store>,
    /// Connections that the shutdown ends.
    pub connections: Arc<Connections>,
    /// Host names of this server, besides `localhost` and IP addresses.
    hosts: HostNames,
    control: Arc<Control>,
}

impl Serving {
    /// Serves `router` on this address only to requests that name it as operators do: by its IP
    /// address, as `localhost`, or by a name of [`App::admin_hosts`].
    pub fn by_own_hosts(&self, router: Router, address: &ListenAddr) -> Router {
        admin::by_own_hosts(router, self.hosts.clone(), address)
    }

    /// The server's metrics, in the text format that every scraper reads.
    pub fn metrics(&self) -> String {
        let Control { store, operate, metrics, .. } = &*self.control;
        metrics.render(&**store, operate, Format::Plain)
    }

    /// Tells operators which rules are in force in all domains of this service.
    pub fn rules_in_force(&self, rules: Vec<RulesSighting>) {
        self.control.operate.watch.rules_in_force(rules);
    }

    /// What rate limit services should have in this domain; `None` while that is not known.
    pub async fn published_rules(&self, domain: &str) -> Option<PublishedRules> {
        self.control.operate.views.wanted(domain).await.ok()?.rules()
    }

    /// The rule file that was published under this version.
    ///
    /// # Errors
    /// If it is lost, or the backend fails.
    pub async fn rule_file(&self, domain: &str, of: &DocumentVersion) -> Result<String, Fault> {
        let documents = &self.control.operate.documents;
        match documents.text(Some(domain), Some(of.number)).await? {
            DocumentText { record, document: Value::String(text), .. }
                if record.digest == of.digest =>
            {
                Ok(text)
            }
            _ => Err(Fault::Absent(format!("the text of number {} is lost", of.number))),
        }
    }
}

/// Serves operators on `admin` until `shutdown`, like [`serve`], and callers by what `accept`
/// returns, which never ends by itself.
pub async fn serve_with<F: Future<Output = ()>>(
    admin: Listener,
    app: App,
    accept: impl FnOnce(Serving) -> F,
    shutdown: impl Future<Output = Duration>,
) {
    let App { store, tokens, guard, audit, environment, folder, read_rules } = app;
    let connections = Arc::new(Connections::default());
    let control = Control::new(Arc::clone(&store), Arc::clone(&connections), audit);
    let control = Arc::new(Control { environment, ..control });
    if let Some(read) = read_rules {
        control.operate.documents.read_rules_with(read);
    }
    let hooks: Arc<dyn Hooks> = Arc::clone(&control) as _;
    let endpoint = CallEndpoint::new(Arc::clone(&store), Arc::clone(&connections));
    let endpoint = Arc::new(endpoint.tokens(tokens).hooks(hooks));
    let _background = AbortOnDropHandle::new(tokio::spawn({
        let control = Arc::clone(&control);
        async move {
            let published = async {
                if let Some(folder) = folder {
                    let documents = Arc::clone(&control.operate.documents);
                    folder.keep_published(documents, &control.metrics.faulty_files).await;
                }
            };
            tokio::join!(control.operate.run(), events::publish(&control), published)
        }
    }));
    let reach = Reach::of(admin.address());
    if !guard.serves(reach) {
        tracing::warn!("{}", admin::Refusal::Open);
    }
    let hosts = guard.hosts.clone();
    let router = admin::router(Arc::clone(&control), guard, reach);
    let serving =
        Serving { endpoint, store, connections: Arc::clone(&connections), hosts, control };
    let callers = accept(serving);
    let operators = Arc::clone(&connections);
    let accepting = async move {
        let respond = move |request| admin::respond(router.clone(), request);
        tokio::join!(callers, operators.accept(&admin, Callers::Operators, respond));
    };
    connections.run(accepting, shutdown).await;
}
