//! Configurations: of a listener's filter, and of a route.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use quotagate_operate::document::unknown_zones;
use quotagate_quota::config::{
    Config, DocumentOwner, Faults, GoodDocuments, Inheritance, PerRoute, Reach, WrongDocument,
};

use crate::abi::{FilterConfig, process};
use crate::documents::LiveDocuments;
use crate::link::{Callouts, Closed, Library, Link, check};
use crate::main_thread::MainThread;
use crate::metrics::Metrics;
use crate::shard::Shard;
use crate::{log, runtime};

/// A configuration in force: a document, and a shard for each Envoy worker that serves it.
pub struct Setup {
    config: Arc<Config>,
    link: Link,
    shards: Box<[OnceLock<Arc<Shard>>]>,
    metrics: Metrics,
    /// For a listener's filter that serves. Envoy wakes no route.
    main: Option<Arc<MainThread>>,
}

/// The configuration of a route.
pub enum Route {
    /// No policy counts its requests.
    Disabled,
    /// It has a document of its own.
    Own(Box<Setup>),
}

/// The last good documents of this process.
static GOOD_DOCUMENTS: Mutex<GoodDocuments> = Mutex::new(GoodDocuments::new());

/// The name of this process in reports, and in the log for operators who look for the proxy.
static PROCESS: LazyLock<Box<str>> = LazyLock::new(|| {
    let name = format!("{:016x}", RandomState::new().hash_one(()));
    log::info(&format!("the name of this proxy is {name}"));
    name.into()
});

impl Setup {
    /// The configuration of a listener's filter with this name, on Envoy's main thread.
    ///
    /// # Errors
    /// All faults of the document, if Envoy shall reject it.
    pub fn of_listener(
        name: &str,
        document: &[u8],
        filter_config: &FilterConfig<'_>,
    ) -> Result<Arc<Self>, Vec<String>> {
        log::follow_library();
        let owner = DocumentOwner::Filter(name.into());
        let main = (!process::only_validates()).then(|| MainThread::new(filter_config));
        let link = |config: &Config| match &config.store.reach {
            Reach::Cluster(store) => {
                let Some(main) = &main else { return Ok(Link::Nowhere) };
                start_runtime()?;
                Ok(Link::Callouts(Callouts::open(store, Arc::clone(main))))
            }
            Reach::Redis(_) | Reach::Nowhere => in_process(config),
        };
        let (config, link) = in_force(&owner, document, Config::parse_unordered(document), link)?;
        let metrics = Metrics::define(filter_config);
        let setup = Self::new(config, link, metrics, main);
        if setup.config.is_live() && !process::only_validates() {
            setup.follow(name);
        }
        Ok(Arc::new(setup))
    }

    /// Makes all shards, so that each of them takes up published documents without traffic, too.
    fn follow(&self, name: &str) {
        let owner = Inheritance::new(name, &*self.config.domain);
        let live = LiveDocuments::new(owner, Arc::clone(&self.config), carried_out);
        // Once for all, because this is Envoy's main thread.
        let inherited = live.inherited();
        for worker in 0..self.shards.len() {
            if let Some(shard) = self.shard(worker) {
                shard.follow(&live, inherited.clone());
            }
        }
    }

    fn new(
        mut config: Config,
        link: Link,
        metrics: Metrics,
        main: Option<Arc<MainThread>>,
    ) -> Self {
        config.process = PROCESS.clone();
        for warning in config.warnings() {
            log::warn(&warning.to_string());
        }
        let shards = (0..process::concurrency()).map(|_| OnceLock::new()).collect();
        Self { config: Arc::new(config), link, shards, metrics, main }
    }

    /// The shard of an Envoy worker, which no other worker shares. `None` if Envoy has more workers
    /// than it said.
    pub fn shard(&self, worker: usize) -> Option<&Arc<Shard>> {
        let make = || {
            let main = self.main.clone().filter(|_| process::counts_without_stream());
            Shard::new(worker, Arc::clone(&self.config), self.link.clone(), main)
        };
        Some(self.shards.get(worker)?.get_or_init(make))
    }

    /// The callouts, if it reaches the store by them.
    pub fn callouts(&self) -> Option<&Callouts> {
        match &self.link {
            Link::Callouts(callouts) => Some(callouts),
            Link::Library(_) | Link::Nowhere => None,
        }
    }

    /// Envoy's main thread was woken: makes calls, and writes metrics.
    pub fn woken(&self, config: &FilterConfig<'_>) {
        if let Some(callouts) = self.callouts() {
            callouts.make(config);
        }
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            shard.write_owed_metrics(config, &self.metrics);
        }
    }

    /// Envoy's counters.
    pub const fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The document.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Envoy destroys the configuration, after all of its streams, on any thread.
    pub fn close(&self) -> Closed {
        if let Some(main) = &self.main {
            main.close();
        }
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            shard.close();
        }
        self.callouts().map_or(Closed::Whole, Callouts::close)
    }
}

impl Route {
    /// Reads the configuration of a route with this name, on Envoy's main thread.
    ///
    /// # Errors
    /// All its faults, if Envoy shall reject it.
    pub fn new(name: &str, document: &[u8]) -> Result<Self, Vec<String>> {
        log::follow_library();
        let owner = DocumentOwner::Route(name.into());
        let parsed = match PerRoute::parse(document) {
            Ok(PerRoute::Disabled) => return Ok(Self::Disabled),
            Ok(PerRoute::Policies(config)) => Ok(*config),
            Err(faults) => Err(faults),
        };
        let link = |config: &Config| match &config.store.reach {
            _ if config.is_live() => Err(vec![
                "live: published documents replace those of listeners only: leave it out in the \
                 document of a route"
                    .to_owned(),
            ]),
            Reach::Cluster(_) => Err(vec![
                "store.cluster: Envoy makes no calls for a route: write store.redis".to_owned(),
            ]),
            Reach::Redis(_) | Reach::Nowhere => in_process(config),
        };
        let (config, link) = in_force(&owner, document, parsed, link)?;
        Ok(Self::Own(Box::new(Setup::new(config, link, Metrics::none(), None))))
    }

    /// Envoy destroys the configuration.
    pub fn close(&self) {
        if let Self::Own(setup) = self {
            // A route makes no callouts.
            let _ = setup.close();
        }
    }
}

/// The configuration in force, and its way to the store: those of this document, else those that
/// are in force while it has faults.
///
/// # Errors
/// All faults, if Envoy shall reject the document.
fn in_force(
    owner: &DocumentOwner,
    document: &[u8],
    parsed: Result<Config, Faults>,
    link: impl Fn(&Config) -> Result<Link, Vec<String>>,
) -> Result<(Config, Link), Vec<String>> {
    let faults = match usable(parsed, &link) {
        Ok(usable) => {
            if !process::only_validates() {
                good_documents().keep(owner, &usable.0, document);
            }
            return Ok(usable);
        }
        Err(faults) => faults,
    };
    // Who validates a configuration asks for its faults.
    if process::only_validates() {
        return Err(faults);
    }
    let mut kept = None;
    let last_good = |wrong: &_| {
        let text = good_documents().last(owner, wrong)?.to_owned();
        let (config, link) = usable(Config::parse_unordered(text.as_bytes()), &link).ok()?;
        kept = Some(link);
        Some(config)
    };
    let instead = WrongDocument::read(document).instead(&faults, last_good);
    let Some(mut config) = instead else { return Err(faults) };
    for fault in &faults {
        log::error(&format!("configuration refused: {fault}"));
    }
    log::error(&config.in_force_instead());
    let link = kept.or_else(|| link(&config).ok()).unwrap_or(Link::Nowhere);
    if matches!(link, Link::Nowhere) {
        config.store.reach = Reach::Nowhere;
    }
    Ok((config, link))
}

/// A configuration that this form of the filter can carry out, and its way to the store.
///
/// # Errors
/// All faults of the document.
fn usable(
    parsed: Result<Config, Faults>,
    link: impl Fn(&Config) -> Result<Link, Vec<String>>,
) -> Result<(Config, Link), Vec<String>> {
    let config = carried_out(parsed?)?;
    let link = link(&config)?;
    Ok((config, link))
}

/// The configuration, if this form of the filter can carry it out.
///
/// # Errors
/// All faults of the document.
fn carried_out(config: Config) -> Result<Config, Vec<String>> {
    known_zones(&config)?;
    readable_costs(&config)?;
    Ok(config)
}

fn good_documents() -> MutexGuard<'static, GoodDocuments> {
    GOOD_DOCUMENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn in_process(config: &Config) -> Result<Link, Vec<String>> {
    let Reach::Redis(store) = &config.store.reach else { return Ok(Link::Nowhere) };
    if process::only_validates() {
        return check(store).map(|_| Link::Nowhere).map_err(|fault| vec![fault]);
    }
    start_runtime()?;
    Library::open(store).map(Link::Library).map_err(|fault| vec![fault])
}

/// Checks that every time zone is known. The filter itself knows none.
fn known_zones(config: &Config) -> Result<(), Vec<String>> {
    let faults = unknown_zones(config);
    if faults.is_empty() { Ok(()) } else { Err(faults.iter().map(ToString::to_string).collect()) }
}

/// Checks that the module can read every source of a real cost.
fn readable_costs(config: &Config) -> Result<(), Vec<String>> {
    let nested = config.nested_metadata_of_responses();
    let fault = |path: String| {
        format!(
            "{path}: must have one name, because Envoy hands only the first level of a response's \
             metadata to modules: let the filter write the number there, or let Envoy's \
             header_mutation, after this filter in http_filters, write it to a response header, \
             and name that in response_header"
        )
    };
    if nested.is_empty() { Ok(()) } else { Err(nested.into_iter().map(fault).collect()) }
}

fn start_runtime() -> Result<(), Vec<String>> {
    runtime::start().map_err(|error| vec![format!("cannot start a thread: {error}")])
}
