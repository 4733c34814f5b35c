//! The entry point: a service that answers Envoys and operators.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use hyper::Request;
use hyper::body::Incoming;
use quotagate_control::{App, Serving, serve_with};
use quotagate_store::server::{CallEndpoint, Connections, Listener, STREAMS, connection_limits};
use quotagate_store::store::Store;
use tower::ServiceExt;

use crate::domain::{CountingOptions, Domain};
use crate::files::{Refused, RuleFolder, RulesByDomain};
use crate::grpc;
use crate::health::HealthState;
use crate::http::{HttpState, debug_router, router};
use crate::rules::RuleFile;
use crate::service::{AnswerOptions, RateLimitService};

/// Most calls at once of one connection. An Envoy worker sends all that its clients send at once
/// over one connection, before it learns of a limit: what is beyond the limit fails.
const CALL_STREAMS: u32 = 8192;
/// How often the rule files are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Where a service listens. Each address is bound.
pub struct Listeners {
    /// For Envoy.
    pub grpc: Listener,
    /// For `/json` and `/healthcheck`.
    pub http: Listener,
    /// For `/rlconfig`.
    pub debug: Listener,
    /// For operators: the live page and the admin API.
    pub admin: Listener,
    /// For Prometheus, and the path.
    pub metrics: Option<(Listener, String)>,
}

/// What a service does.
pub struct ServiceOptions {
    /// The rule files.
    pub rules: RuleFolder,
    /// How it counts.
    pub counting: CountingOptions,
    /// What it answers.
    pub answers: AnswerOptions,
}

/// Serves until `shutdown`, which yields how long to drain. `app` has the store, and says who may
/// operate. Needs a Tokio runtime.
pub async fn serve(
    listeners: Listeners,
    options: ServiceOptions,
    app: App,
    shutdown: impl Future<Output = Duration>,
) {
    let Listeners { grpc, http, debug, admin, metrics } = listeners;
    let accept = move |serving: Serving| async move {
        let service = Arc::new(RateLimitService::new(options.answers.clone()));
        let (store, connections) = (Arc::clone(&serving.store), Arc::clone(&serving.connections));
        let health = Arc::new(HealthState::new(store, Arc::clone(&connections)));
        let state = HttpState { service: Arc::clone(&service), health: Arc::clone(&health) };
        let calls = {
            let service = Arc::clone(&service);
            let respond = move |request| grpc::respond(Arc::clone(&service), request);
            let connections = &connections;
            async move {
                let limit = connection_limits().calls;
                connections.accept(&grpc, limit, CALL_STREAMS, respond).await
            }
        };
        let reading = RuleReading {
            options: &options,
            service: &service,
            health: &health,
            endpoint: Arc::clone(&serving.endpoint),
            store: Arc::clone(&serving.store),
        };
        let scrapes = async {
            let Some((listener, path)) = metrics else { return };
            let (serving, of_original) = (Arc::new(serving), Arc::clone(&service));
            let text = async move || {
                let text = serving.metrics() + &of_original.metrics.text();
                ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
            };
            accept_http(&connections, &listener, Router::new().route(&path, get(text))).await;
        };
        tokio::join!(
            calls,
            accept_http(&connections, &http, router(state.clone())),
            accept_http(&connections, &debug, debug_router(state)),
            scrapes,
            reading.keep_read(),
        );
    };
    serve_with(admin, app, accept, shutdown).await;
}

async fn accept_http(connections: &Connections, listener: &Listener, router: Router) {
    let respond = move |request: Request<Incoming>| {
        let router = router.clone();
        async move {
            // A router never fails.
            let Ok(response) = router.oneshot(request).await;
            response
        }
    };
    connections.accept(listener, connection_limits().admin, STREAMS, respond).await;
}

/// Keeps the rules of a service as the files are.
struct RuleReading<'s> {
    options: &'s ServiceOptions,
    service: &'s RateLimitService,
    health: &'s HealthState,
    endpoint: Arc<CallEndpoint>,
    store: Arc<dyn Store>,
}

impl RuleReading<'_> {
    /// Never returns.
    async fn keep_read(&self) {
        let mut known: Option<Vec<RuleFile>> = None;
        let mut complaint = None;
        loop {
            let folder = self.options.rules.clone();
            // Reading a folder may block, above all over a network.
            match tokio::task::spawn_blocking(move || folder.files()).await {
                Ok(Ok(files)) if known.as_ref() != Some(&files) => {
                    self.take(self.options.rules.rules(&files), &mut complaint);
                    known = Some(files);
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => self.take(Err(error), &mut complaint),
                Err(error) => tracing::error!("reading the rule files: {error}"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Puts rules in force, or says once why that cannot be.
    fn take(&self, read: Result<RulesByDomain, Refused>, complaint: &mut Option<String>) {
        match read {
            Ok(rules) => {
                self.service.metrics.loaded(true);
                let count: usize = rules.values().map(|domain| domain.rules().len()).sum();
                tracing::info!("{count} rules in {} domains are in force", rules.len());
                if rules.is_empty() {
                    let path = self.options.rules.path.display();
                    tracing::warn!("{path} holds no rule file, so every request passes");
                }
                for name in self.options.counting.unknown_names(rules.values()) {
                    tracing::warn!(
                        "no domain and no rule has the name {name:?} of --precision: names are as \
                         in `quotagate domains` and `quotagate dial list`, such as shop or \
                         shop/per-user"
                    );
                }
                self.replace(rules);
                self.health.set_rules(None);
                *complaint = None;
            }
            Err(refused) => {
                let mut lines = vec![refused.to_string()];
                if let Refused::Faults(faults) = &refused {
                    lines.extend(faults.iter().map(ToString::to_string));
                }
                let text = lines.join("\n");
                if complaint.as_ref() == Some(&text) {
                    return;
                }
                lines.iter().for_each(|line| tracing::error!("{line}"));
                self.service.metrics.loaded(false);
                if self.service.domains().is_some() {
                    tracing::warn!("the rules before stay in force");
                } else {
                    self.health.set_rules(Some(text.clone()));
                }
                *complaint = Some(text);
            }
        }
    }

    fn replace(&self, rules: RulesByDomain) {
        let known = self.service.domains().unwrap_or_default();
        let domain = |(name, rules): (Arc<str>, _)| {
            // What has not changed keeps what it knows of its counters.
            let domain = match known.get(&name).filter(|domain| domain.rules == rules) {
                Some(domain) => Arc::clone(domain),
                None => {
                    let endpoint = Arc::clone(&self.endpoint);
                    let store = Arc::clone(&self.store);
                    Arc::new(Domain::open(rules, &self.options.counting, endpoint, store))
                }
            };
            (name, domain)
        };
        let domains: BTreeMap<_, _> = rules.into_iter().map(domain).collect();
        self.service.replace_domains(Arc::new(domains));
    }
}
