//! Configurations: of a listener's filter, and of a route.

use std::sync::{Arc, OnceLock};

use quotagate_quota::config::{Config, Faults, PerRoute, Reach};
use quotagate_store::calendar::unknown_zones;

use crate::abi::{FilterConfig, process};
use crate::link::{Callouts, Closed, Library, Link, check};
use crate::metrics::Metrics;
use crate::shard::Shard;
use crate::{log, runtime};

/// A configuration in force: a document, and a shard for each Envoy worker that serves it.
pub struct Setup {
    config: Arc<Config>,
    link: Link,
    shards: Box<[OnceLock<Arc<Shard>>]>,
    metrics: Metrics,
}

/// The configuration of a route.
pub enum Route {
    /// No policy counts its requests.
    Disabled,
    /// It has a document of its own.
    Own(Setup),
}

impl Setup {
    /// The configuration of a listener's filter, on Envoy's main thread.
    ///
    /// # Errors
    /// All faults of the document.
    pub fn of_listener(
        document: &[u8],
        filter_config: &FilterConfig<'_>,
    ) -> Result<Arc<Self>, Vec<String>> {
        log::follow_library();
        let config = Config::parse_unordered(document).map_err(|faults| lines(&faults))?;
        known_zones(&config)?;
        readable_costs(&config)?;
        let link = match &config.store.reach {
            Reach::Cluster(_) if process::only_validates() => Link::Nowhere,
            Reach::Cluster(store) => {
                start_runtime()?;
                Link::Callouts(Callouts::open(store, filter_config))
            }
            Reach::Redis(_) => in_process(&config)?,
        };
        Ok(Arc::new(Self::new(config, link, Metrics::define(filter_config))))
    }

    fn new(config: Config, link: Link, metrics: Metrics) -> Self {
        for warning in config.warnings() {
            log::warn(&warning.to_string());
        }
        let shards = (0..process::concurrency()).map(|_| OnceLock::new()).collect();
        Self { config: Arc::new(config), link, shards, metrics }
    }

    /// The shard of an Envoy worker, which no other worker shares. `None` if Envoy has more workers
    /// than it said.
    pub fn shard(&self, worker: usize) -> Option<&Arc<Shard>> {
        let make = || Shard::new(Arc::clone(&self.config), self.link.clone());
        Some(self.shards.get(worker)?.get_or_init(make))
    }

    /// The callouts, if it reaches the store by them.
    pub fn callouts(&self) -> Option<&Callouts> {
        match &self.link {
            Link::Callouts(callouts) => Some(callouts),
            Link::Library(_) | Link::Nowhere => None,
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
        for shard in self.shards.iter().filter_map(OnceLock::get) {
            shard.close();
        }
        self.callouts().map_or(Closed::Whole, Callouts::close)
    }
}

impl Route {
    /// Reads the configuration of a route, on Envoy's main thread.
    ///
    /// # Errors
    /// All its faults.
    pub fn new(document: &[u8]) -> Result<Self, Vec<String>> {
        log::follow_library();
        let config = match PerRoute::parse(document).map_err(|faults| lines(&faults))? {
            PerRoute::Disabled => return Ok(Self::Disabled),
            PerRoute::Policies(config) => *config,
        };
        known_zones(&config)?;
        readable_costs(&config)?;
        let link = match &config.store.reach {
            Reach::Redis(_) => in_process(&config)?,
            Reach::Cluster(_) => {
                return Err(vec![
                    "store.cluster: Envoy makes no calls for a route: write store.redis".to_owned(),
                ]);
            }
        };
        Ok(Self::Own(Setup::new(config, link, Metrics::none())))
    }

    /// Envoy destroys the configuration.
    pub fn close(&self) {
        if let Self::Own(setup) = self {
            // A route makes no callouts.
            let _ = setup.close();
        }
    }
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

fn lines(faults: &Faults) -> Vec<String> {
    faults.iter().map(ToString::to_string).collect()
}
