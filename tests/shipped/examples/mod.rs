//! The examples: each file of `envoy/examples/` in the real Envoy, and each page about one does
//! what it says.

mod cases;
mod page;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use quotagate_support::envoy::{self, Envoy, Form, LOG_LEVELS, form};
use quotagate_support::http::Client;
use quotagate_support::store::StoreProcess;
use quotagate_support::upstream::Upstream;
use quotagate_support::{paths, yaml};
use serde_json::{Value, json};

const STORE: &str = "quota_store";
const JWT: &str = "envoy.filters.http.jwt_authn";

/// An example in front of sample upstreams and a store in memory.
pub struct Example {
    pub envoy: Envoy,
    /// By the names of their clusters.
    pub upstreams: BTreeMap<String, Upstream>,
    _store: StoreProcess,
}

impl Example {
    pub fn start(name: &str) -> Result<Self> {
        Self::start_with(name, |_| Ok(()))
    }

    /// With a change of its policy document.
    pub fn start_with(name: &str, change: impl Fn(&mut Value) -> Result<()>) -> Result<Self> {
        let store = StoreProcess::start("memory:", &[])?;
        let mut config = read(name)?;
        let socket = "/static_resources/listeners/0/address/socket_address/port_value";
        for address in ["/admin/address/socket_address/port_value", socket] {
            *yaml::at(&mut config, address)? = json!(0);
        }
        let mut upstreams = BTreeMap::new();
        for cluster in clusters(&mut config)? {
            let name = cluster["name"].as_str().context("no name")?.to_owned();
            let port = if name == STORE { store.port() } else { new(&mut upstreams, &name)? };
            let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
            *yaml::at(cluster, &format!("{endpoint}/socket_address/port_value"))? = json!(port);
        }
        let document = envoy::document(&mut config)?;
        // For a slow machine. No request passes uncounted.
        *yaml::at(document, "/store")? =
            json!({"cluster": STORE, "timeout": "60s", "on_failure": "deny"});
        change(document)?;
        match Form::of_run()? {
            Form::Wasm => with_built_filter(&mut config)?,
            Form::Native => make_native(&mut config)?,
        }
        let envoy = Envoy::start_config(&config, 1, LOG_LEVELS)?;
        Ok(Self { envoy, upstreams, _store: store })
    }

    pub fn client(&self) -> Result<Client> {
        Client::connect(self.envoy.port())
    }

    /// How many requests have reached the upstream of this cluster.
    pub fn requests(&self, cluster: &str) -> u64 {
        self.upstreams[cluster].requests()
    }
}

fn new(upstreams: &mut BTreeMap<String, Upstream>, name: &str) -> Result<u16> {
    let upstream = Upstream::start()?;
    let port = upstream.port();
    upstreams.insert(name.to_owned(), upstream);
    Ok(port)
}

fn read(name: &str) -> Result<Value> {
    yaml::read(&paths::root().join(format!("envoy/examples/{name}.yaml")))
}

fn clusters(config: &mut Value) -> Result<&mut Vec<Value>> {
    yaml::list(yaml::at(config, "/static_resources")?, "clusters")
}

/// Takes the filter from the folder of the parts under test.
fn with_built_filter(config: &mut Value) -> Result<()> {
    let file = yaml::at(envoy::plugin(config)?, "/vm_config/code/local/filename")?;
    let name = file.as_str().and_then(|path| path.strip_prefix("dist/")).context("not in dist")?;
    *file = json!(paths::parts().join(name));
    Ok(())
}

/// Replaces the Wasm filter and its store by the native module, as `docs/examples/README.md` says.
fn make_native(config: &mut Value) -> Result<()> {
    clusters(config)?.retain(|cluster| cluster["name"] != STORE);
    let mut document = envoy::document(config)?.clone();
    let store = yaml::at(&mut document, "/store")?.as_object_mut().context("no store")?;
    store.remove("cluster");
    store.insert("redis".to_owned(), json!("memory:"));
    let mut shipped = yaml::read(&Form::Native.shipped())?;
    let mut module = envoy::filter(&mut shipped)?.clone();
    *yaml::at(&mut module, "/typed_config/filter_config/value")? = document;
    let filters = yaml::list(envoy::manager(config)?, "http_filters")?;
    let index = envoy::position(filters)?;
    filters.splice(index..=index, [form::metadata_as_text(JWT), module]);
    Ok(())
}

/// The names of files in this folder with this ending.
fn names(folder: &str, ending: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(paths::root().join(folder))? {
        let file = entry?.file_name().into_string().unwrap();
        names.extend(file.strip_suffix(ending).map(str::to_owned));
    }
    Ok(names)
}

#[test]
fn every_example_has_a_page_and_a_test() -> Result<()> {
    let examples = names("envoy/examples", ".yaml")?;
    assert_eq!(examples, cases::EXAMPLES.map(str::to_owned).into());
    let mut pages = names("docs/examples", ".md")?;
    assert!(pages.remove("README"));
    assert_eq!(pages, examples);
    Ok(())
}

/// An example differs from `envoy/envoy.yaml` only where its subject is.
#[test]
fn shared_parts_are_those_of_the_complete_configuration() -> Result<()> {
    let shared = |mut config: Value| -> Result<Value> {
        envoy::document(&mut config)?.take();
        let plugin = envoy::plugin(&mut config)?;
        plugin.as_object_mut().context("no object")?.remove("allow_on_headers_stop_iteration");
        yaml::at(plugin, "/vm_config/code/local/filename")?.take();
        let manager = envoy::manager(&mut config)?;
        // Examples whose policies read headers refuse names with underscores.
        manager.as_object_mut().context("no object")?.remove("common_http_protocol_options");
        yaml::at(manager, "/route_config/virtual_hosts/0")?.take();
        yaml::list(manager, "http_filters")?.retain(|filter| filter["name"] != JWT);
        clusters(&mut config)?.retain(|cluster| cluster["name"] == STORE);
        Ok(config)
    };
    let filters = |config: &mut Value| -> Result<Vec<Value>> {
        let filters = yaml::list(envoy::manager(config)?, "http_filters")?;
        Ok(filters.iter().filter(|filter| filter["name"] == JWT).cloned().collect())
    };
    let mut complete = yaml::read(&paths::envoy_config())?;
    let jwt = filters(&mut complete)?;
    let complete = shared(complete)?;
    for name in cases::EXAMPLES {
        let mut example = read(name)?;
        let own = filters(&mut example)?;
        assert!(own.is_empty() || own == jwt, "{name}");
        assert_eq!(shared(example)?, complete, "{name}");
    }
    Ok(())
}
