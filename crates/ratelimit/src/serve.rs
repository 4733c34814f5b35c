//! The entry point: a service that answers Envoys and operators.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use futures_util::future::join_all;
use hyper::Request;
use quotagate_control::{App, MAX_DOMAINS, RulesSighting, Serving, serve_with};
use quotagate_store::server::{Arriving, Callers, Connections, Listener};
use tokio::sync::{Notify, oneshot};
use tower::ServiceExt;

use crate::domain::{CountingOptions, Domain};
use crate::files::{Refused, RuleFolder, RulesByDomain};
use crate::grpc;
use crate::health::{HealthNeeds, HealthState};
use crate::http::{ServiceState, debug_router, router};
use crate::published::{Followed, PublishedDomain, read_published};
use crate::rules::{RuleFile, written_name};
use crate::service::{AnswerOptions, RateLimitService};
use crate::xds::{self, XdsOptions};

/// Most calls at once of one connection. An Envoy worker sends all that its clients send at once
/// over one connection, before it learns of a limit: what is beyond the limit fails.
const CALL_STREAMS: u32 = 8192;
/// Most rules of a domain that commands and pages show. The store does not record further ones.
const MAX_POLICIES: usize = 1024;
/// How often the rule files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// The longest that the end of the service waits for the store.
const LAST: Duration = Duration::from_secs(1);
/// When changed rule files are looked at again.
const SECOND_LOOK: Duration = Duration::from_millis(50);

/// Where a service listens for callers. Each address is bound.
pub struct Listeners {
    /// For Envoy.
    pub grpc: Listener,
    /// For `/json` and `/healthcheck`.
    pub http: Listener,
    /// For `/rlconfig`.
    pub debug: Option<Listener>,
    /// For Prometheus, and the path.
    pub metrics: Option<(Listener, String)>,
}

/// What a service does.
pub struct ServiceOptions {
    /// Where rules come from.
    pub rules: RuleSource,
    /// Whether rules that operators publish replace them, domain by domain.
    pub follows_published: bool,
    /// How it counts.
    pub counting: CountingOptions,
    /// What it answers.
    pub answers: AnswerOptions,
    /// What a healthy service needs.
    pub health: HealthNeeds,
    /// Whether it listens for callers only when its source has said its rules, or what is wrong
    /// with them.
    pub waits_for_rules: bool,
}

/// Where rules come from.
#[derive(Clone, Debug)]
pub enum RuleSource {
    /// From files.
    Folder(RuleFolder),
    /// From an xDS server.
    Xds(Box<XdsOptions>),
}

/// Serves until `shutdown`, which yields how long to drain. Operators are served on `admin` at
/// once, and callers where `listen` binds, as soon as there are rules. `app` has the store, and
/// says who may operate. Needs a Tokio runtime.
///
/// # Errors
/// The error of `listen`.
pub async fn serve<E>(
    admin: Listener,
    listen: impl Future<Output = Result<Listeners, E>>,
    options: ServiceOptions,
    app: App,
    shutdown: impl Future<Output = Duration>,
) -> Result<(), E> {
    let (fail, failed) = oneshot::channel();
    let service = Arc::new(RateLimitService::new(options.answers.clone()));
    let served = Arc::clone(&service);
    let accept = move |serving: Serving| async move {
        let (store, connections) = (Arc::clone(&serving.store), Arc::clone(&serving.connections));
        let health = HealthState::new(options.health, store, Arc::clone(&connections));
        let (health, serving) = (Arc::new(health), Arc::new(serving));
        let state = ServiceState { service: Arc::clone(&service), health: Arc::clone(&health) };
        let reading = RuleReading {
            options: &options,
            service: &service,
            health: &health,
            serving: &serving,
            known: Mutex::default(),
            heard: Notify::new(),
            taken: Notify::new(),
            looked: Notify::new(),
        };
        let callers = async {
            reading.first().await;
            let Listeners { grpc, http, debug, metrics } = match listen.await {
                Ok(listeners) => listeners,
                Err(error) => {
                    // The receiver exists until this ends.
                    let _ = fail.send(error);
                    return;
                }
            };
            let calls = {
                let state = state.clone();
                let respond = move |request| grpc::respond(state.clone(), request);
                connections.accept(&grpc, Callers::Proxies(CALL_STREAMS), respond)
            };
            let scrapes = async {
                let Some((listener, path)) = &metrics else { return };
                let scraped = (Arc::clone(&serving), Arc::clone(&service));
                let text = async move || {
                    let (serving, service) = scraped;
                    let text = serving.metrics() + &service.metrics.text();
                    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
                };
                let router = Router::new().route(path, get(text));
                let router = serving.by_own_hosts(router, listener.address());
                accept_http(&connections, listener, router).await;
            };
            let debugging = async {
                let Some(listener) = &debug else { return };
                let router = debug_router(state.clone());
                let router = serving.by_own_hosts(router, listener.address());
                accept_http(&connections, listener, router).await;
            };
            let http = accept_http(&connections, &http, router(state.clone()));
            tokio::join!(calls, http, debugging, scrapes);
        };
        tokio::join!(callers, reading.keep_read());
    };
    tokio::select! {
        () = serve_with(admin, app.rules(read_published), accept, shutdown) => {}
        Ok(error) = failed => return Err(error),
    }
    // What the last calls have refunded, and the hits that they owe.
    if tokio::time::timeout(LAST, served.settle()).await.is_err() {
        tracing::warn!(
            "the store did not take the last charges and refunds in time: hits may stay counted, \
             or later refunds may free what nobody took"
        );
    }
    Ok(())
}

async fn accept_http(connections: &Connections, listener: &Listener, router: Router) {
    let respond = move |request: Request<Arriving>| {
        let router = router.clone();
        async move {
            // A router never fails.
            let Ok(response) = router.oneshot(request).await;
            response
        }
    };
    connections.accept(listener, Callers::Operators, respond).await;
}

/// The files of a folder, and their rules or what is wrong with them.
type FolderReading = (Vec<RuleFile>, Result<RulesByDomain, Refused>);

/// The files of a folder and their rules, unless they are the same as `before`. A file that is
/// being written is not taken: two looks must agree.
fn changed(
    folder: &RuleFolder,
    before: Option<&Vec<RuleFile>>,
) -> Result<Option<FolderReading>, Refused> {
    let mut files = folder.files()?;
    while before != Some(&files) {
        std::thread::sleep(SECOND_LOOK);
        let again = folder.files()?;
        if files == again {
            let rules = folder.rules(&files);
            return Ok(Some((files, rules)));
        }
        files = again;
    }
    Ok(None)
}

/// Keeps the rules of a service as their source says.
struct RuleReading<'s> {
    options: &'s ServiceOptions,
    service: &'s RateLimitService,
    health: &'s HealthState,
    serving: &'s Serving,
    known: Mutex<KnownRules>,
    /// Notified when the source has said rules, or what is wrong with them.
    heard: Notify,
    /// Notified when the source has new rules.
    taken: Notify,
    /// Notified after a look at what is published.
    looked: Notify,
}

#[derive(Default)]
struct KnownRules {
    /// The last good ones of the source.
    own: RulesByDomain,
    /// What operators publish, by domain.
    published: BTreeMap<Arc<str>, PublishedDomain>,
    /// What the log said last of rules of the source that were not taken.
    complaint: Option<Vec<String>>,
}

impl KnownRules {
    /// The domains whose published rules the service follows.
    fn followed(&self) -> impl Iterator<Item = &Arc<str>> {
        self.own.keys().take(MAX_DOMAINS)
    }

    /// Takes rules of the source. Domains that are not followed any more go by these.
    fn take(&mut self, own: RulesByDomain) {
        self.own = own;
        let followed: BTreeSet<Arc<str>> = self.followed().cloned().collect();
        self.published.retain(|name, _| followed.contains(name));
    }

    /// Keeps what a look found, unless the domain is not followed any more.
    fn keep_published(&mut self, name: Arc<str>, domain: PublishedDomain) {
        if self.followed().any(|followed| *followed == name) {
            self.published.insert(name, domain);
        }
    }

    /// What operators see of each domain.
    fn sightings(&self, follows_published: bool) -> Vec<RulesSighting> {
        let domains = self.own.len();
        let sighting = |(index, name): (usize, &Arc<str>)| {
            let follows = follows_published && index < MAX_DOMAINS;
            let published = self.published.get(name);
            let mut sighting =
                published.unwrap_or(&PublishedDomain::default()).sighting(name, follows);
            if follows_published && !follows {
                sighting.complaint = format!(
                    "the rate limit service follows published rules in {MAX_DOMAINS} of its \
                     {domains} domains, and {} is not among them: let another service have it",
                    sighting.domain
                );
            }
            sighting
        };
        self.own.keys().enumerate().map(sighting).collect()
    }
}

impl RuleReading<'_> {
    /// Waits for the first word of the source, if the service does, and then for the first look at
    /// what is published. Redis may be away, so the service does not wait long for that.
    async fn first(&self) {
        if !self.options.waits_for_rules {
            return;
        }
        self.heard.notified().await;
        if self.options.follows_published {
            // The next look comes within that time in any case.
            let _ = tokio::time::timeout(LOOK, self.looked.notified()).await;
        }
    }

    /// Never returns.
    async fn keep_read(&self) {
        let own = async {
            match &self.options.rules {
                RuleSource::Folder(folder) => self.keep_folder_read(folder).await,
                RuleSource::Xds(options) => xds::follow(options, &mut |read| self.take(read)).await,
            }
        };
        let published = async {
            if self.options.follows_published {
                self.keep_published_read().await;
            }
        };
        tokio::join!(own, published);
    }

    /// Looks once a second at what is published for the domains of the source.
    async fn keep_published_read(&self) {
        loop {
            let names: Vec<Arc<str>> = self.known().followed().cloned().collect();
            let looks = join_all(names.into_iter().map(|name| self.follow_published(name))).await;
            let changes: Vec<String> = looks.into_iter().flatten().collect();
            if !changes.is_empty() {
                self.put_in_force(&self.known());
                changes.iter().for_each(|change| tracing::info!("{change}"));
            }
            // Also what could not be put in force.
            self.show(&self.known());
            if !self.known().own.is_empty() {
                self.looked.notify_one();
            }
            // Rules of the source may name further domains.
            let _ = tokio::time::timeout(LOOK, self.taken.notified()).await;
        }
    }

    /// Looks at what is published for a domain. Returns what the log says once it is in force.
    async fn follow_published(&self, name: Arc<str>) -> Option<String> {
        let mut domain = self.known().published.get(&name).cloned().unwrap_or_default();
        let followed = domain.follow(&name, self.serving).await;
        self.known().keep_published(name, domain);
        match followed {
            Followed::Same => None,
            Followed::Changed(said) => {
                self.service.metrics.loaded(true);
                Some(said)
            }
            Followed::Refused => {
                self.service.metrics.loaded(false);
                None
            }
        }
    }

    /// Nothing panics while it is locked.
    fn known(&self) -> MutexGuard<'_, KnownRules> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn keep_folder_read(&self, folder: &RuleFolder) {
        let mut known: Option<Arc<Vec<RuleFile>>> = None;
        loop {
            let (own, before) = (folder.clone(), known.clone());
            // Reading a folder may block, above all over a network, and many rules take time.
            match tokio::task::spawn_blocking(move || changed(&own, before.as_deref())).await {
                Ok(Ok(Some((files, rules)))) => {
                    self.take(rules.map_err(|refused| refused.lines()));
                    known = Some(Arc::new(files));
                }
                Ok(Ok(None)) => {}
                Ok(Err(refused)) => self.take(Err(refused.lines())),
                Err(error) => tracing::error!("reading the rule files: {error}"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes rules of the source, or says once why that cannot be.
    fn take(&self, read: Result<RulesByDomain, Vec<String>>) {
        self.heard.notify_one();
        let mut known = self.known();
        match read {
            Ok(rules) => {
                self.service.metrics.loaded(true);
                if rules.is_empty() {
                    let source = &self.options.rules;
                    tracing::warn!("{source} has no rules, so every request passes");
                }
                known.take(rules);
                self.put_in_force(&known);
                self.health.set_rules(None);
                known.complaint = None;
                self.taken.notify_one();
            }
            Err(lines) => {
                if known.complaint.as_ref() == Some(&lines) {
                    return;
                }
                lines.iter().for_each(|line| tracing::error!("{line}"));
                self.service.metrics.loaded(false);
                if self.service.domains().is_some() {
                    tracing::warn!("the rules before stay in force");
                } else {
                    self.health.set_rules(Some(lines.join("\n")));
                }
                known.complaint = Some(lines);
            }
        }
    }

    /// Puts the published rules of each domain in force, or else its own.
    fn put_in_force(&self, known: &KnownRules) {
        let in_force = |name| known.published.get(name).and_then(PublishedDomain::in_force);
        let rules: RulesByDomain = known
            .own
            .iter()
            .map(|(name, own)| {
                let rules = in_force(name).map_or(own, |(_, published)| published);
                (Arc::clone(name), Arc::clone(rules))
            })
            .collect();
        let count: usize = rules.values().map(|domain| domain.rules().len()).sum();
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let published = known.own.keys().filter(|name| in_force(name).is_some()).count();
        let published = match published {
            0 => String::new(),
            count => format!(", those of {count} domain{} published", plural(count)),
        };
        let domains = rules.len();
        tracing::info!(
            "{count} rule{} in {domains} domain{} {} in force{published}",
            plural(count),
            plural(domains),
            if count == 1 { "is" } else { "are" }
        );
        for name in self.options.counting.unknown_names(rules.values()) {
            tracing::warn!(
                "no domain and no rule has the name {name:?} of --precision: names are as in \
                 `quotagate domains` and `quotagate dial list`, such as shop or shop/per-user"
            );
        }
        for (name, domain) in &rules {
            if domain.rules().len() >= MAX_POLICIES {
                tracing::warn!(
                    "the domain {name} has {} rules: commands and pages show {MAX_POLICIES}, and \
                     dials of the others may not be sent",
                    domain.rules().len()
                );
            }
        }
        if self.options.follows_published {
            if domains > MAX_DOMAINS {
                tracing::warn!(
                    "published rules are followed in {MAX_DOMAINS} of {domains} domains, and dials and \
                     overrides of the others may not act: let another service have those"
                );
            }
            let numbers = known.own.keys().map(|name| {
                let version = in_force(name).map(|(version, _)| version.clone());
                (written_name(name), version.unwrap_or_default())
            });
            self.service.metrics.follows(numbers.collect());
        }
        self.replace(rules);
        self.show(known);
    }

    /// Shows operators which rules are in force.
    fn show(&self, known: &KnownRules) {
        self.serving.rules_in_force(known.sightings(self.options.follows_published));
    }

    fn replace(&self, rules: RulesByDomain) {
        let known = self.service.domains().unwrap_or_default();
        let domain = |(name, rules): (Arc<str>, _)| {
            // What has not changed keeps what it knows of its counters.
            let (endpoint, options) = (Arc::clone(&self.serving.endpoint), &self.options.counting);
            let domain = match known.get(&name) {
                Some(domain) if domain.rules == rules => Arc::clone(domain),
                Some(domain) => Arc::new(domain.successor(rules, options, endpoint)),
                None => {
                    let store = Arc::clone(&self.serving.store);
                    Arc::new(Domain::open(rules, options, endpoint, store))
                }
            };
            (name, domain)
        };
        let domains: BTreeMap<_, _> = rules.into_iter().map(domain).collect();
        self.service.replace_domains(Arc::new(domains));
    }
}

impl fmt::Display for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.path.display()),
            Self::Xds(options) => write!(f, "the xDS server {}", options.server),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::published::rules_of;
    use crate::rules::RuleDomain;

    /// Rules of a domain with this number.
    fn rules(index: usize) -> (Arc<str>, Arc<RuleDomain>) {
        let rules = rules_of(&format!("domain: shop{index:03}\ndescriptors: []\n")).unwrap();
        (Arc::clone(rules.name()), rules)
    }

    #[test]
    fn domain_that_is_not_followed_any_more_goes_by_its_own_rules() {
        let mut known = KnownRules::default();
        known.take((1..=MAX_DOMAINS).map(rules).collect());
        let last = rules(MAX_DOMAINS).0;
        known.keep_published(Arc::clone(&last), PublishedDomain::default());
        assert!(known.published.contains_key(&last));
        // Another domain takes its place, while a look at it is under way.
        known.take((0..=MAX_DOMAINS).map(rules).collect());
        assert!(known.published.is_empty());
        known.keep_published(last, PublishedDomain::default());
        assert!(known.published.is_empty());
    }

    #[test]
    fn domains_that_are_too_many_to_follow_say_so() {
        let own = (0..=MAX_DOMAINS).map(rules).collect();
        let known = KnownRules { own, ..KnownRules::default() };
        let seen = known.sightings(true);
        let (last, others) = seen.split_last().unwrap();
        assert!(others.iter().all(|of| of.follows && of.complaint.is_empty()));
        assert!(!last.follows);
        let why = "in 64 of its 65 domains, and shop064 is not among them";
        assert!(last.complaint.contains(why), "{}", last.complaint);
        assert!(known.sightings(false).iter().all(|of| !of.follows && of.complaint.is_empty()));
    }
}
