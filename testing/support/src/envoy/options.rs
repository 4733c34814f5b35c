//! The shipped configuration, with only the changes that a test needs.

use std::{
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::form::{self, Form, manager};
use crate::{paths, yaml};

/// The store's cluster in the shipped configuration, which the native one does not need.
const STORE: &str = "quota_store";
const UPSTREAM: &str = "upstream";
/// Few tests wait for what drains.
pub(super) const DRAIN_S: u32 = 1;
/// How long Envoy waits for a connection in tests.
const PATIENT: &str = "60s";

/// Log levels with which both forms of the filter log their own lines.
pub const LOG_LEVELS: &str = "wasm:info,dynamic_modules:info";

/// Where the filter finds the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// A port of 127.0.0.1.
    Port(u16),
    /// Several addresses, in turn.
    Several(Vec<SocketAddr>),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A change to the whole configuration.
type ConfigChange = dyn Fn(&mut Value) -> Result<()>;

/// See [`edits`](crate::edits).
#[derive(Clone)]
struct Edit(Arc<ConfigChange>);

impl fmt::Debug for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Edit")
    }
}

/// How to start Envoy.
#[derive(Debug, Clone)]
pub struct EnvoyOptions {
    /// Port of the listener; 0 = any.
    pub port: u16,
    /// Port of the admin interface; 0 = any.
    pub admin_port: u16,
    /// Port of the upstream.
    pub upstream: u16,
    /// The address of the store.
    pub store: StoreAddress,
    /// The form of the filter; without one, that of the run.
    pub form: Option<Form>,
    /// The Redis that a native module counts in by itself; without one, it calls the store.
    pub redis: Option<String>,
    /// The Wasm filter.
    pub wasm: PathBuf,
    /// The folder of the native module.
    pub modules: PathBuf,
    /// The filter's configuration, if it is not the shipped one.
    pub document: Option<Value>,
    /// Workers.
    pub concurrency: u32,
    /// For how many seconds connections may go on after their listener was replaced, and for one
    /// more after their process was.
    pub drain_s: u32,
    /// Without the filter.
    pub bare: bool,
    /// Log levels of components, as Envoy's `--component-log-level` takes them.
    pub log_levels: String,
    edits: Vec<Edit>,
}

impl EnvoyOptions {
    /// The shipped configuration on free ports, one worker, for this upstream and this store on
    /// 127.0.0.1.
    #[must_use]
    pub fn new(upstream: u16, store: u16) -> Self {
        Self {
            port: 0,
            admin_port: 0,
            upstream,
            store: StoreAddress::Port(store),
            form: None,
            redis: None,
            wasm: paths::filter(),
            modules: paths::parts(),
            document: None,
            concurrency: 1,
            drain_s: DRAIN_S,
            bare: false,
            log_levels: LOG_LEVELS.to_owned(),
            edits: Vec::new(),
        }
    }

    /// Without the filter, for comparison or if it was not built.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.bare = true;
        self
    }

    /// With this configuration of the filter.
    #[must_use]
    pub fn document(mut self, document: Value) -> Self {
        self.document = Some(document);
        self
    }

    /// In this form, whatever the form of the run.
    #[must_use]
    pub fn form(mut self, form: Form) -> Self {
        self.form = Some(form);
        self
    }

    /// With the filter of this folder, in either form.
    #[must_use]
    pub fn parts(mut self, folder: &Path) -> Self {
        self.wasm = folder.join(paths::FILTER);
        folder.clone_into(&mut self.modules);
        self
    }

    /// A native module counts in this Redis by itself. The Wasm filter has no Redis client: it
    /// goes on calling the store.
    #[must_use]
    pub fn redis(mut self, url: &str) -> Self {
        self.redis = Some(url.to_owned());
        self
    }

    /// Both forms call the store: for tests of the calls themselves.
    #[must_use]
    pub fn through_store(mut self) -> Self {
        self.redis = None;
        self
    }

    /// Whether the module counts in Redis, and the store is in no request's path.
    ///
    /// # Errors
    /// When the form of the run is unknown.
    pub fn counts_in_redis(&self) -> Result<bool> {
        Ok(self.redis.is_some() && self.form.map_or_else(Form::of_run, Ok)? == Form::Native)
    }

    /// With this many workers.
    #[must_use]
    pub fn concurrency(mut self, workers: u32) -> Self {
        self.concurrency = workers;
        self
    }

    /// Connections may go on for so many seconds after their listener or process was replaced.
    #[must_use]
    pub fn drain(mut self, seconds: u32) -> Self {
        self.drain_s = seconds;
        self
    }

    /// With the store elsewhere.
    #[must_use]
    pub fn store(mut self, address: StoreAddress) -> Self {
        self.store = address;
        self
    }

    /// With a change to the whole configuration. All such changes are made last, in the order
    /// given.
    #[must_use]
    pub fn edit(mut self, edit: impl Fn(&mut Value) -> Result<()> + 'static) -> Self {
        self.edits.push(Edit(Arc::new(edit)));
        self
    }

    /// The configuration that Envoy gets.
    ///
    /// # Errors
    /// When the shipped configuration lacks the parts that are replaced.
    pub fn config(&self) -> Result<Value> {
        let form = self.form.map_or_else(Form::of_run, Ok)?;
        let mut config = yaml::read(&form.shipped())?;
        *yaml::at(&mut config, "/admin/address")? = address("127.0.0.1", self.admin_port);
        *yaml::at(&mut config, "/static_resources/listeners/0/address")? =
            address("127.0.0.1", self.port);
        let redis = self.redis.as_ref().filter(|_| form == Form::Native);
        let clusters = yaml::at(&mut config, "/static_resources/clusters")?;
        let upstream = yaml::named(clusters, UPSTREAM)?;
        set_endpoints(upstream, &[address("127.0.0.1", self.upstream)])?;
        // With the shipped 1 s, a burst of requests on a busy test machine is answered 503: the
        // upstream's queue of new connections is full, and the kernel tries again after a second.
        upstream["connect_timeout"] = json!(PATIENT);
        if redis.is_none() {
            self.set_store(clusters, form)?;
        }
        if self.bare {
            yaml::list(manager(&mut config)?, "http_filters")?.retain(|f| !form::is_filter(f));
        } else {
            if form == Form::Wasm {
                let file = "/vm_config/code/local/filename";
                *yaml::at(form::plugin(&mut config)?, file)? = json!(self.wasm);
            }
            let document = form::document(&mut config)?;
            if let Some(own) = &self.document {
                *document = own.clone();
            }
            if form == Form::Native {
                set_counting(document, redis, self.document.is_none())?;
            }
        }
        for edit in &self.edits {
            (edit.0)(&mut config)?;
        }
        Ok(config)
    }

    /// Sets the endpoints of the store's cluster. The native configuration gets the cluster first.
    fn set_store(&self, clusters: &mut Value, form: Form) -> Result<()> {
        if form == Form::Native {
            let mut wasm = yaml::read(&Form::Wasm.shipped())?;
            let store = yaml::named(yaml::at(&mut wasm, "/static_resources/clusters")?, STORE)?;
            clusters.as_array_mut().context("no list")?.push(store.clone());
        }
        let store: Vec<Value> = match &self.store {
            StoreAddress::Port(port) => vec![address("127.0.0.1", *port)],
            StoreAddress::Several(all) => {
                all.iter().map(|one| address(&one.ip().to_string(), one.port())).collect()
            }
            StoreAddress::Unix(path) => vec![json!({ "pipe": { "path": path } })],
        };
        let cluster = yaml::named(clusters, STORE)?;
        if matches!(self.store, StoreAddress::Port(_)) {
            // With the shipped 0.25 s, a busy test machine makes calls fail.
            cluster["connect_timeout"] = json!(PATIENT);
        }
        set_endpoints(cluster, &store)
    }
}

/// Lets a native module count in this Redis. Without one, the shipped document calls the store, and
/// the document of a test says itself what it calls.
fn set_counting(document: &mut Value, redis: Option<&String>, shipped: bool) -> Result<()> {
    let (field, value) = match redis {
        Some(url) => ("redis", url.as_str()),
        None if shipped => ("cluster", STORE),
        None => return Ok(()),
    };
    let document = document.as_object_mut().context("the document is no object")?;
    let store = document.entry("store").or_insert_with(|| json!({}));
    let store = store.as_object_mut().context("the store of the document is no object")?;
    // A token belongs to the calls.
    for other in ["cluster", "token", "redis"] {
        store.remove(other);
    }
    store.insert(field.to_owned(), json!(value));
    Ok(())
}

/// Replaces the endpoints of a cluster; its type stays.
fn set_endpoints(cluster: &mut Value, addresses: &[Value]) -> Result<()> {
    let endpoints: Vec<Value> =
        addresses.iter().map(|a| json!({ "endpoint": { "address": a } })).collect();
    *yaml::at(cluster, "/load_assignment/endpoints")? = json!([{ "lb_endpoints": endpoints }]);
    Ok(())
}

fn address(host: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": host, "port_value": port } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envoy::Envoy;

    /// Puts the shipped addresses back, and the shipped waits of the clusters that were changed.
    fn with_shipped_values(mut config: Value, waits: &[(&str, &str)]) -> Value {
        *yaml::at(&mut config, "/admin/address").unwrap() = address("127.0.0.1", 9901);
        *yaml::at(&mut config, "/static_resources/listeners/0/address").unwrap() =
            address("127.0.0.1", 10_000);
        let clusters = yaml::at(&mut config, "/static_resources/clusters").unwrap();
        for (cluster, shipped) in waits {
            let cluster = yaml::named(clusters, cluster).unwrap();
            assert_eq!(cluster["connect_timeout"], PATIENT, "tests wait longer than users");
            cluster["connect_timeout"] = json!(shipped);
        }
        config
    }

    #[test]
    fn only_what_is_asked_for_is_replaced() {
        let options = EnvoyOptions::new(8080, 9180);
        let shipped = yaml::read(&Form::Wasm.shipped()).unwrap();
        let changed = options.clone().form(Form::Wasm).config().unwrap();
        let mut changed = with_shipped_values(changed, &[(STORE, "0.25s"), (UPSTREAM, "1s")]);
        *yaml::at(form::plugin(&mut changed).unwrap(), "/vm_config/code/local/filename").unwrap() =
            json!("dist/quotagate.wasm");
        assert_eq!(changed, shipped);
        let shipped = yaml::read(&Form::Native.shipped()).unwrap();
        let options = options.form(Form::Native).redis("redis://127.0.0.1:6379/0");
        assert_eq!(with_shipped_values(options.config().unwrap(), &[(UPSTREAM, "1s")]), shipped);
    }

    #[test]
    fn native_module_counts_in_redis_or_calls_the_store() {
        let store = |options: EnvoyOptions| {
            let mut config = options.form(Form::Native).config().unwrap();
            let store = form::document(&mut config).unwrap()["store"].clone();
            let clusters = yaml::at(&mut config, "/static_resources/clusters").unwrap();
            (store, yaml::named(clusters, STORE).is_ok())
        };
        let own = json!({"store": {"cluster": STORE, "token": "t", "timeout": "1s"}});
        let options = EnvoyOptions::new(1, 1).document(own.clone()).redis("memory:");
        assert_eq!(store(options.clone()), (json!({"redis": "memory:", "timeout": "1s"}), false));
        assert_eq!(store(options.through_store()), (own["store"].clone(), true));
        let (shipped, has_cluster) = store(EnvoyOptions::new(1, 1));
        assert_eq!((&shipped["cluster"], has_cluster), (&json!(STORE), true));
        assert!(shipped.get("redis").is_none());
    }

    #[test]
    fn unix_socket_replaces_the_store() {
        let mut options = EnvoyOptions::new(1, 1).bare();
        options = options.store(StoreAddress::Unix("/run/quotagate/store.sock".into()));
        let mut config = options.config().unwrap();
        let clusters = yaml::at(&mut config, "/static_resources/clusters").unwrap();
        // The tests run the snippet that users copy.
        let mut snippet = yaml::read(&paths::root().join("envoy/quota_store_unix.yaml")).unwrap();
        assert_eq!(
            yaml::named(clusters, "quota_store").unwrap(),
            yaml::named(&mut snippet, "quota_store").unwrap()
        );
        assert_eq!(Envoy::validate(&config), Ok(()));
    }
}
