//! Real Envoy with the shipped configuration, in which only what a test must change is changed.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{http, paths, process::Process, prometheus::Samples, tools, yaml};

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(20);
/// Where the one listener's connection manager lies in the shipped configuration.
const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
/// The name of the filter among the HTTP filters.
pub(crate) const FILTER: &str = "envoy.filters.http.wasm";
/// How often files of access logs are written; Envoy's own 10 s is long for a test.
const FLUSH_MS: &str = "50";

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
    /// Where the store is.
    pub store: StoreAddress,
    /// The filter.
    pub wasm: PathBuf,
    /// The filter's configuration, where it is not the shipped one.
    pub document: Option<Value>,
    /// Workers.
    pub concurrency: u32,
    /// Without the Wasm filter, to compare with.
    pub bare: bool,
    /// Log levels of components, as Envoy's `--component-log-level` takes them.
    pub log_levels: String,
    edits: Vec<Edit>,
}

impl EnvoyOptions {
    /// The shipped configuration on free ports, one worker, for this upstream and this store on 127.0.0.1.
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

    /// With a change to the whole configuration. All are made last, in the order they are given.
    #[must_use]
    pub fn edit(mut self, edit: impl Fn(&mut Value) -> Result<()> + 'static) -> Self {
        self.edits.push(Edit(Arc::new(edit)));
        self
    }

    /// The configuration that Envoy gets.
    ///
    /// # Errors
    /// When the shipped configuration has not the parts that are replaced.
    pub fn config(&self) -> Result<Value> {
        let mut config = yaml::read(&paths::envoy_config())?;
        *yaml::at(&mut config, "/admin/address")? = address("127.0.0.1", self.admin_port);
        *yaml::at(&mut config, "/static_resources/listeners/0/address")? = address("127.0.0.1", self.port);
        let clusters = yaml::at(&mut config, "/static_resources/clusters")?;
        set_endpoints(yaml::named(clusters, "upstream")?, &[address("127.0.0.1", self.upstream)])?;
        let store: Vec<Value> = match &self.store {
            StoreAddress::Port(port) => vec![address("127.0.0.1", *port)],
            StoreAddress::Ports(ports) => ports.iter().map(|&port| address("127.0.0.1", port)).collect(),
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

/// The plugin configuration of the Wasm filter within an Envoy configuration shaped like the shipped one.
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
    let endpoints: Vec<Value> = addresses.iter().map(|a| json!({ "endpoint": { "address": a } })).collect();
    *yaml::at(cluster, "/load_assignment/endpoints")? = json!([{ "lb_endpoints": endpoints }]);
    Ok(())
}

fn address(host: &str, port: u16) -> Value {
    json!({ "socket_address": { "address": host, "port_value": port } })
}

/// A running Envoy, killed when dropped.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    port: u16,
    admin_port: u16,
    _directory: TempDir,
}

impl Envoy {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// When there is no Envoy or no filter, or it refuses the configuration; the message ends with its log.
    pub fn start(options: &EnvoyOptions) -> Result<Self> {
        if !options.bare && !options.wasm.is_file() {
            bail!("{} is not there: run `cargo xtask build`", options.wasm.display());
        }
        Self::start_config(&options.config()?, options.concurrency, &options.log_levels)
    }

    /// Starts one with a configuration of any shape that has one listener.
    ///
    /// # Errors
    /// When there is no Envoy, or it refuses the configuration; the message ends with its log.
    pub fn start_config(config: &Value, concurrency: u32, log_levels: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let config = write(config, directory.path())?;
        let admin_file = directory.path().join("admin");
        let mut command = Command::new(tools::envoy()?);
        command.arg("--config-path").arg(config).arg("--admin-address-path").arg(&admin_file);
        command.args(["--concurrency", &concurrency.to_string(), "--use-dynamic-base-id"]);
        command.args(["--log-level", "warn", "--component-log-level", log_levels]);
        // Do not wait for a predecessor or for open connections when the end comes.
        command.args(["--drain-time-s", "1", "--parent-shutdown-time-s", "2"]);
        command.args(["--file-flush-interval-msec", FLUSH_MS]);
        let mut process = Process::spawn("Envoy", &mut command, &directory.path().join("envoy.log"))?;
        let (admin_port, port) = process.wait_until("Envoy to be ready", START, |_| {
            let admin = fs::read_to_string(&admin_file)?;
            let admin_port: u16 = admin.rsplit(':').next().unwrap_or_default().trim().parse()?;
            if http::get(admin_port, "/ready")?.status != 200 {
                return Ok(None);
            }
            Ok(Some((admin_port, listener_port(admin_port)?)))
        })?;
        Ok(Self { process, port, admin_port, _directory: directory })
    }

    /// What `envoy --mode validate` says of a configuration.
    ///
    /// # Errors
    /// Its output, where it refuses; or that there is no Envoy.
    pub fn validate(config: &Value) -> Result<(), String> {
        let run = || -> Result<Output> {
            let directory = tempfile::tempdir()?;
            let path = write(config, directory.path())?;
            Self::validate_file(&path)
        };
        match run() {
            Err(error) => Err(format!("{error:#}")),
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Runs `envoy --mode validate` on a file.
    ///
    /// # Errors
    /// When there is no Envoy.
    pub fn validate_file(path: &Path) -> Result<Output> {
        let mut command = Command::new(tools::envoy()?);
        command.args(["--mode", "validate", "--log-level", "warn", "--use-dynamic-base-id", "--config-path"]);
        Ok(command.arg(path).output()?)
    }

    /// The port of its listener on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of its admin interface on 127.0.0.1.
    #[must_use]
    pub fn admin_port(&self) -> u16 {
        self.admin_port
    }

    /// All it wrote so far, the filter's lines among it.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// The statistics whose names match this regular expression, as `name: value` lines.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub fn stats(&self, filter: &str) -> Result<String> {
        Ok(http::get(self.admin_port, &format!("/stats?filter={filter}"))?.text())
    }

    /// All that Prometheus would read of it.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub fn prometheus(&self) -> Result<Samples> {
        Ok(Samples::new(http::get(self.admin_port, "/stats/prometheus")?.text()))
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end within 20 s.
    pub fn stop(&mut self) -> Result<()> {
        self.process.terminate(STOP).map(drop)
    }

    /// Fails where Envoy has ended.
    ///
    /// # Errors
    /// When it has ended; the message ends with its last lines.
    pub fn check(&mut self) -> Result<()> {
        let running = self.process.is_running()?;
        running.then_some(()).with_context(|| format!("Envoy has ended:\n{}", self.process.tail()))
    }
}

fn write(config: &Value, directory: &Path) -> Result<PathBuf> {
    let path = directory.join("envoy.json");
    fs::write(&path, serde_json::to_vec_pretty(config)?)?;
    Ok(path)
}

/// The port that the first listener was given.
fn listener_port(admin_port: u16) -> Result<u16> {
    let listeners = http::get(admin_port, "/listeners?format=json")?.json()?;
    let port = listeners.pointer("/listener_statuses/0/local_address/socket_address/port_value");
    let port = port.and_then(Value::as_u64).ok_or_else(|| anyhow!("no listener yet"))?;
    Ok(u16::try_from(port)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::{Client, Request},
        jwt,
        upstream::Upstream,
    };

    fn bare(upstream: u16) -> EnvoyOptions {
        EnvoyOptions { bare: true, ..EnvoyOptions::new(upstream, 1) }
    }

    #[test]
    fn two_envoys_run_beside_each_other_and_refuse_forged_tokens() {
        let upstream = Upstream::start().unwrap();
        let envoys = [(); 2].map(|()| Envoy::start(&bare(upstream.port()).concurrency(2)).unwrap());
        assert_ne!(envoys[0].port(), envoys[1].port());
        for envoy in &envoys {
            let mut client = Client::connect(envoy.port()).unwrap();
            let mut status = |request: Request| client.send(&request).unwrap().status;
            assert_eq!(status(Request::get("/")), 200);
            assert_eq!(status(Request::get("/").bearer(&jwt::token("alice").unwrap())), 200);
            assert_eq!(status(Request::get("/").bearer(&jwt::forged("alice").unwrap())), 401);
        }
        assert_eq!(upstream.requests(), 4);
    }

    #[test]
    fn a_refused_configuration_is_explained() {
        let mut config = bare(1).config().unwrap();
        assert_eq!(Envoy::validate(&config), Ok(()));
        *yaml::at(&mut config, &format!("{MANAGER}/stat_prefix")).unwrap() = json!(["no", "text"]);
        let error = Envoy::validate(&config).unwrap_err();
        assert!(error.contains("stat_prefix"), "{error}");
    }

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
    fn a_unix_socket_replaces_the_store() {
        let mut options = bare(1);
        options = options.store(StoreAddress::Unix("/run/quotagate/store.sock".into()));
        let mut config = options.config().unwrap();
        let clusters = yaml::at(&mut config, "/static_resources/clusters").unwrap();
        // The snippet that users copy is what the tests run.
        let mut snippet = yaml::read(&paths::root().join("envoy/quota_store_unix.yaml")).unwrap();
        assert_eq!(
            yaml::named(clusters, "quota_store").unwrap(),
            yaml::named(&mut snippet, "quota_store").unwrap()
        );
        assert_eq!(Envoy::validate(&config), Ok(()));
    }
}
