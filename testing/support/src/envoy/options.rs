//! The shipped configuration, with only the changes that a test needs.

use std::{fmt, path::PathBuf, sync::Arc};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{paths, yaml};

/// The path of the one listener's connection manager in the shipped configuration.
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
/// The name of the filter among the HTTP filters.
pub(crate) const FILTER: &str = "envoy.filters.http.wasm";

/// Where the filter finds the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// A port of 127.0.0.1.
    Port(u16),
    /// Several ports of 127.0.0.1, in turn.
    Ports(Vec<u16>),
    /// A Unix socket.
    Unix(PathBuf),
}

/// A change to the whole configuration.
type Change = dyn Fn(&mut Value) -> Result<()>;

/// See [`edits`](crate::edits).
#[derive(Clone)]
struct Edit(Arc<Change>);

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
    /// The filter.
    pub wasm: PathBuf,
    /// The filter's configuration, if it is not the shipped one.
    pub document: Option<Value>,
    /// Workers.
    pub concurrency: u32,
    /// Without the Wasm filter.
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
            wasm: paths::filter(),
            document: None,
            concurrency: 1,
            bare: false,
            log_levels: "wasm:info".to_owned(),
            edits: Vec::new(),
        }
    }

    /// Without the Wasm filter, for comparison or if it was not built.
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

    /// With this many workers.
    #[must_use]
    pub fn concurrency(mut self, workers: u32) -> Self {
        self.concurrency = workers;
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
        let mut config = yaml::read(&paths::envoy_config())?;
        *yaml::at(&mut config, "/admin/address")? = address("127.0.0.1", self.admin_port);
        *yaml::at(&mut config, "/static_resources/listeners/0/address")? =
            address("127.0.0.1", self.port);
        let clusters = yaml::at(&mut config, "/static_resources/clusters")?;
        set_endpoints(yaml::named(clusters, "upstream")?, &[address("127.0.0.1", self.upstream)])?;
        let store: Vec<Value> = match &self.store {
            StoreAddress::Port(port) => vec![address("127.0.0.1", *port)],
            StoreAddress::Ports(ports) => {
                ports.iter().map(|&port| address("127.0.0.1", port)).collect()
            }
            StoreAddress::Unix(path) => vec![json!({ "pipe": { "path": path } })],
        };
        set_endpoints(yaml::named(clusters, "quota_store")?, &store)?;
        if self.bare {
            let filters = yaml::list(manager(&mut config)?, "http_filters")?;
            filters.retain(|f| f.get("name").and_then(Value::as_str) != Some(FILTER));
        } else {
            let filter = filter(&mut config)?;
            *yaml::at(filter, "/vm_config/code/local/filename")? = json!(self.wasm);
            if let Some(document) = &self.document {
                *yaml::at(filter, "/configuration/value")? = document.clone();
            }
        }
        for edit in &self.edits {
            (edit.0)(&mut config)?;
        }
        Ok(config)
    }
}

/// The plugin configuration of the Wasm filter within an Envoy configuration shaped like the
/// shipped one.
///
/// # Errors
/// When it is not there.
pub fn filter(config: &mut Value) -> Result<&mut Value> {
    let filters = yaml::at(manager(config)?, "/http_filters")?;
    yaml::at(yaml::named(filters, FILTER)?, "/typed_config/config")
}

/// The HTTP connection manager of an Envoy configuration shaped like the shipped one.
///
/// # Errors
/// When it is not there.
pub fn manager(config: &mut Value) -> Result<&mut Value> {
    yaml::at(config, MANAGER)
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

    #[test]
    fn only_what_is_asked_for_is_replaced() {
        let shipped = yaml::read(&paths::envoy_config()).unwrap();
        let mut changed = EnvoyOptions::new(8080, 9180).config().unwrap();
        *yaml::at(&mut changed, "/admin/address").unwrap() = address("127.0.0.1", 9901);
        *yaml::at(&mut changed, "/static_resources/listeners/0/address").unwrap() =
            address("127.0.0.1", 10_000);
        *yaml::at(filter(&mut changed).unwrap(), "/vm_config/code/local/filename").unwrap() =
            json!("dist/quotagate.wasm");
        assert_eq!(changed, shipped);
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
