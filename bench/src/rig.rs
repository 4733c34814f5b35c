//! Everything that runs while stacks are measured. Each part starts once, idles until its turn, and
//! is ended by its process id when the value is dropped.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use quotagate_support::{
    cluster::Cluster,
    envoy::{Envoy, EnvoyOptions},
    http::{Client, Request},
    redis::Redis,
    resp,
    store::StoreProcess,
    wait,
};
use quotagate_workspace::task;

use crate::{
    measure::cpu,
    service::parts::ServiceParts,
    stacks::{self, Backend, Due, Stack, USER_HEADER},
};

/// Both forms of the filter log little.
const LOG_LEVELS: &str = "wasm:warn,dynamic_modules:warn";
/// The time until the first answer: connections open, and Redis may still load the script.
const READY: Duration = Duration::from_secs(20);
/// The time until Envoy is ready under callgrind: four times what the slowest stack takes on two
/// slow cores.
const STARTS_UNDER: Duration = Duration::from_secs(40);

/// The parts of all stacks.
#[derive(Debug)]
pub struct Rig {
    stacks: Vec<Running>,
    upstream: Envoy,
    // Dropped last, after the parts that use them.
    redis: Option<Redis>,
    cluster: Option<Cluster>,
}

/// The parts of one stack.
#[derive(Debug)]
pub struct Running {
    /// Which one it is.
    pub stack: Stack,
    /// Its Envoy.
    pub envoy: Envoy,
    /// Its store, if one runs beside it.
    pub store: Option<StoreProcess>,
    /// Where its store or its native module counts.
    pub redis: Vec<Server>,
}

/// A Redis server.
#[derive(Debug, Clone, Copy)]
pub struct Server {
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// Its process.
    pub pid: u32,
}

/// The filters under comparison.
#[derive(Debug)]
pub struct Filters {
    /// As it is shipped.
    pub shipped: PathBuf,
    /// With one call for each request.
    pub unbatched: Option<PathBuf>,
    /// Without logic.
    pub without_logic: Option<PathBuf>,
    /// The services that Envoy's own filter calls.
    pub services: ServiceParts,
}

impl Filters {
    /// The filter of a stack.
    fn of(&self, stack: Stack) -> Result<&Path> {
        match stack {
            Stack::H => self.unbatched.as_deref(),
            Stack::K | Stack::L => self.without_logic.as_deref(),
            _ => Some(&*self.shipped),
        }
        .context("its filter was not built")
    }
}

impl Rig {
    /// Starts what these stacks need, and checks that each answers correctly.
    pub fn start(stacks: &[Stack], filters: &Filters) -> Result<Self> {
        let mut rig = Self::behind(stacks)?;
        for &stack in stacks {
            let running = rig.running(stack, filters, &[])?;
            task::note(&format!(
                "{stack}: {}, http://127.0.0.1:{}",
                stack.title(),
                running.envoy.port()
            ));
            rig.stacks.push(running);
        }
        Ok(rig)
    }

    /// Starts what is behind the Envoys of these stacks.
    pub fn behind(stacks: &[Stack]) -> Result<Self> {
        let upstream =
            Envoy::start_config(&stacks::upstream(), 1, LOG_LEVELS).context("the upstream")?;
        let needs = |backend| stacks.iter().any(|stack| stack.backend() == Some(backend));
        let redis = needs(Backend::Redis).then(Redis::start).transpose()?;
        let cluster = needs(Backend::Cluster).then(Cluster::start).transpose()?;
        Ok(Self { stacks: Vec::new(), upstream, redis, cluster })
    }

    /// The stacks, in the requested order.
    pub fn stacks(&self) -> &[Running] {
        &self.stacks
    }

    /// The port of a Redis, if one runs.
    pub fn redis(&self) -> Option<u16> {
        let clustered = || self.cluster.as_ref()?.ports().first().copied();
        self.redis.as_ref().map(Redis::port).or_else(clustered)
    }

    /// The process of the upstream.
    pub fn upstream(&self) -> u32 {
        self.upstream.pid()
    }

    /// Every process that runs.
    pub fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.upstream()];
        for running in &self.stacks {
            all.push(running.envoy.pid());
            all.extend(running.store.as_ref().map(StoreProcess::pid));
            all.extend(running.redis.iter().map(|server| server.pid));
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Starts a stack, and checks that it answers correctly. The command `under` runs its Envoy.
    pub fn running(&self, stack: Stack, filters: &Filters, under: &[OsString]) -> Result<Running> {
        self.start_stack(stack, filters, under).with_context(|| format!("stack {stack}"))
    }

    fn start_stack(&self, stack: Stack, filters: &Filters, under: &[OsString]) -> Result<Running> {
        let (url, ports) = self.backend(stack)?;
        let (store, redis) = if let Some(subject) = stack.service() {
            let redis = self.redis.as_ref().context("no Redis was started")?;
            (Some(filters.services.start(subject, redis, &[])?), None)
        } else if stack.is_native() {
            (None, url)
        } else {
            (url.map(|url| StoreProcess::start(&url, &[])).transpose()?, None)
        };
        let mut options =
            EnvoyOptions::new(self.upstream.port(), store.as_ref().map_or(1, StoreProcess::port));
        options.redis = redis;
        options.wasm = filters.of(stack)?.to_owned();
        let config = stack.config(options)?;
        let envoy = if under.is_empty() {
            Envoy::start_config(&config, 1, LOG_LEVELS)
        } else {
            Envoy::start_under(under, &config, LOG_LEVELS, STARTS_UNDER)
        }?;
        let redis = ports.into_iter().map(Server::on).collect::<Result<_>>()?;
        let running = Running { stack, envoy, store, redis };
        wait::until_true("the first answer as it should be", READY, || running.answers())?;
        Ok(running)
    }

    /// The URL for the store or the native module, and the ports of the servers behind it.
    fn backend(&self, stack: Stack) -> Result<(Option<String>, Vec<u16>)> {
        Ok(match stack.backend() {
            None => (None, Vec::new()),
            Some(Backend::Memory) => (Some("memory:".to_owned()), Vec::new()),
            Some(Backend::Redis) => {
                let redis = self.redis.as_ref().context("no Redis was started")?;
                (Some(redis.url()), vec![redis.port()])
            }
            Some(Backend::Cluster) => {
                let cluster = self.cluster.as_ref().context("no Redis Cluster was started")?;
                (Some(cluster.url()), cluster.ports())
            }
        })
    }
}

impl Running {
    /// Whether a request of the first user gets the right answer.
    fn answers(&self) -> Result<bool> {
        let request = Request::get("/api/items").header(USER_HEADER, "user-1");
        let response = Client::connect(self.envoy.port())?.send(&request)?;
        let names = ["ratelimit", "ratelimit-limit"];
        let counted = names.iter().any(|name| response.header(name).is_some());
        let right = match self.stack.due() {
            Due::Uncounted => response.status == 200 && !counted,
            Due::Counted => response.status == 200 && counted,
            Due::Refused => response.status == 429 && counted,
        };
        if !right {
            bail!("status {}, quota headers: {counted}", response.status);
        }
        Ok(true)
    }
}

impl Server {
    fn on(port: u16) -> Result<Self> {
        let info = resp::command(port, &["INFO", "server"])?.lines();
        let pid = cpu::of_redis(&info)
            .with_context(|| format!("Redis on port {port} names no process"))?;
        Ok(Self { port, pid })
    }
}
