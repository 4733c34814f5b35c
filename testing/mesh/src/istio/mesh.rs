//! The mesh that all checks use: the shipped files, a gateway, two stores, Redis and an upstream.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use base64::{Engine, engine::general_purpose::STANDARD};
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::redis::Redis;
use quotagate_support::tls::Holder;
use quotagate_support::upstream::Upstream;
use quotagate_support::{wait, yaml};
use quotagate_workspace::paths;
use rustls::ClientConfig;
use serde_json::{Value, json};

use crate::binaries::Binaries;

use crate::istio::outside::ISSUER;
use crate::istio::plane::ControlPlane;
use crate::istio::plane::pods::{self, Pod, WAYPOINT};

/// How long a change may take until proxies obey it.
pub const PUSH: Duration = Duration::from_secs(30);
/// The host of `envoyfilter.yaml`.
pub const SHOP: &str = "shop.example.com";
/// The quota of the shipped document.
pub const QUOTA: usize = 100;
const GATEWAY: &str = "istio-ingress";
const REDIS: u16 = 6379;
/// The port of the upstream.
pub const UPSTREAM: u16 = 8000;
/// How much of a window a check may need.
const ROOM: u64 = 15;

/// What the gateway did with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The upstream answered, and the answer says what is left of the quota.
    Counted,
    /// The upstream answered, and nothing was counted.
    Uncounted,
    /// The gateway refused it, with this status.
    Refused(u16),
}

/// How many requests had which verdict.
pub type Verdicts = BTreeMap<Verdict, usize>;

impl Verdict {
    /// The verdict that an answer shows.
    #[must_use]
    pub fn of(answer: &Response) -> Self {
        match (answer.status, answer.header("x-ratelimit-limit")) {
            (200, Some(_)) => Self::Counted,
            (200, None) => Self::Uncounted,
            (status, _) => Self::Refused(status),
        }
    }
}

/// The running mesh.
pub struct Mesh {
    /// The gateway with the filter.
    pub gateway: Pod,
    /// The stores.
    pub stores: Vec<Pod>,
    /// Where the stores keep all counters.
    pub redis: Redis,
    _upstream: Upstream,
    /// What a client of the gateway trusts.
    pub tls: Arc<ClientConfig>,
    gateway_chart: Vec<Value>,
    /// The control plane.
    pub plane: ControlPlane,
}

impl Mesh {
    /// Starts everything, and applies the shipped files.
    ///
    /// # Errors
    /// When a part does not come up, or the API server refuses a file.
    pub fn start(binaries: &Binaries) -> Result<Self> {
        let plane = ControlPlane::start(binaries)?;
        let hub = &plane.network.hub;
        let open = ["--bind", "0.0.0.0", "--protected-mode", "no"];
        let redis = hub.within(|| Redis::start_on(REDIS, &open))?;
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, UPSTREAM));
        let upstream = hub.within(|| Upstream::start_at(any))?;
        let secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "quotagate-store", "namespace": "quotagate"},
            "stringData": {"url": "redis://redis-1:6379", "admin-token": TOKEN}});
        plane.api.apply(&secret)?;
        let mut deployment = Value::Null;
        for object in shipped("istio/store.yaml")? {
            plane.api.apply(&object)?;
            if object["kind"] == "Deployment" {
                deployment = object;
            }
        }
        // A proxy of the gateway believes one load balancer.
        let settings = [
            "podAnnotations.proxy\\.istio\\.io/config=gatewayTopology: {numTrustedProxies: 1}",
            "env.ENVOY_DYNAMIC_MODULES_SEARCH_PATH=/usr/local/bin",
        ];
        let gateway_chart = plane.gateway_chart(GATEWAY, &settings)?;
        for object in &gateway_chart {
            plane.api.apply(object)?;
        }
        for object in routes(&plane)? {
            plane.api.apply(&object)?;
        }
        for file in ["requestauthentication", "envoyfilter", "wasmplugin"] {
            for object in shipped(&format!("istio/{file}.yaml"))? {
                plane.api.apply(&object)?;
            }
        }
        let store = |name: &str| Pod::store(&plane, name, &deployment);
        let stores = vec![store("store-0")?, store("store-1")?];
        plane.api.apply(&pods::endpoints("quotagate-store", ("http-store", 9180), &stores))?;
        let mut gateway = Pod::gateway(&plane, "gateway", of_kind(&gateway_chart, "Deployment")?)?;
        gateway.wait_until_ready()?;
        let tls = plane.authority.client(None)?;
        Ok(Self { gateway, stores, redis, _upstream: upstream, tls, gateway_chart, plane })
    }

    /// The store that faults happen to.
    ///
    /// # Errors
    /// Never.
    pub fn first(&self) -> Result<&Pod> {
        self.stores.first().context("no store")
    }

    /// One more gateway, like the first. It may not be ready yet.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn another_gateway(&self, name: &str) -> Result<Pod> {
        self.gateway_with(name, |_| {})
    }

    /// One more gateway, with a changed Deployment. It may not be ready yet.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn gateway_with(&self, name: &str, change: impl FnOnce(&mut Value)) -> Result<Pod> {
        let mut deployment = of_kind(&self.gateway_chart, "Deployment")?.clone();
        change(&mut deployment);
        Pod::gateway(&self.plane, name, &deployment)
    }

    /// A waypoint of the namespace `shop`. Upstream Envoy rejects its listeners.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn waypoint(&self, name: &str) -> Result<Pod> {
        self.plane.api.apply(&json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "waypoint", "namespace": "shop"}}))?;
        self.gateway_with(name, |deployment| {
            deployment["metadata"]["namespace"] = json!("shop");
            let template = &mut deployment["spec"]["template"];
            template["spec"]["serviceAccountName"] = json!("waypoint");
            template["metadata"]["labels"] = json!({
                "sidecar.istio.io/inject": "true",
                "gateway.networking.k8s.io/gateway-name": "waypoint",
                "gateway.networking.k8s.io/gateway-class-name": "istio-waypoint",
                WAYPOINT: "istio.io-mesh-controller",
            });
        })
    }

    /// What a user writes for the gateway: its certificate, a Gateway, and a route.
    ///
    /// # Errors
    /// When no certificate can be made.
    pub fn routes(&self) -> Result<Vec<Value>> {
        routes(&self.plane)
    }

    /// Connects to the gateway.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn connect(&self) -> Result<Client> {
        self.connect_to(&self.gateway)
    }

    /// Connects to a gateway.
    ///
    /// # Errors
    /// When it does not listen.
    pub fn connect_to(&self, gateway: &Pod) -> Result<Client> {
        gateway.network.within(|| Client::connect_tls_to(SHOP, 443, &self.tls))
    }

    /// The gateway's answer over a new connection.
    ///
    /// # Errors
    /// When none comes.
    pub fn ask(&self, request: &Request) -> Result<Response> {
        self.connect()?.send(request)
    }

    /// Sends a request so many times over ten connections at once.
    ///
    /// # Errors
    /// When an answer does not come.
    pub fn burst(&self, request: &Request, times: usize) -> Result<Verdicts> {
        self.burst_to(&self.gateway, request, times)
    }

    /// The same, to another gateway.
    ///
    /// # Errors
    /// When an answer does not come.
    pub fn burst_to(&self, gateway: &Pod, request: &Request, times: usize) -> Result<Verdicts> {
        self.burst_each(gateway, times, |_| Ok(request.clone()))
    }

    /// The same, with requests that differ.
    ///
    /// # Errors
    /// When an answer does not come.
    pub fn burst_of(
        &self,
        times: usize,
        request: impl Fn(usize) -> Result<Request> + Sync,
    ) -> Result<Verdicts> {
        self.burst_each(&self.gateway, times, request)
    }

    fn burst_each(
        &self,
        gateway: &Pod,
        times: usize,
        request: impl Fn(usize) -> Result<Request> + Sync,
    ) -> Result<Verdicts> {
        const CONNECTIONS: usize = 10;
        fresh_window();
        let (next, request) = (AtomicUsize::new(0), &request);
        let client = || -> Result<Verdicts> {
            let mut client = self.connect_to(gateway)?;
            let mut verdicts = Verdicts::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= times {
                    return Ok(verdicts);
                }
                *verdicts.entry(Verdict::of(&client.send(&request(number)?)?)).or_default() += 1;
            }
        };
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(client)).collect();
            let mut all = Verdicts::new();
            for client in clients {
                let verdicts = client.join().map_err(|_| anyhow!("a client has panicked"))??;
                for (verdict, count) in verdicts {
                    *all.entry(verdict).or_default() += count;
                }
            }
            Ok(all)
        })
    }

    /// Waits until the gateway answers a request in some way.
    ///
    /// # Errors
    /// When it does not within [`PUSH`].
    pub fn until(
        &self,
        what: &str,
        request: &Request,
        is_so: impl Fn(&Response) -> bool,
    ) -> Result<Response> {
        wait::until(what, PUSH, || {
            let response = self.ask(request)?;
            Ok(is_so(&response).then_some(response))
        })
    }
}

impl Mesh {
    /// Gives the filter the shipped document with another quota, and waits until the gateway obeys.
    ///
    /// # Errors
    /// When it does not within [`PUSH`].
    pub fn document(&self, quota: usize) -> Result<()> {
        self.plane.api.apply(&with_document(|document| {
            document["policies"][0]["quota"] = json!(quota);
        })?)?;
        self.until_quota(quota)
    }

    /// Gives the filter the shipped document, and waits until the gateway obeys.
    ///
    /// # Errors
    /// When it does not within [`PUSH`].
    pub fn restore(&self) -> Result<()> {
        self.document(QUOTA)
    }

    /// The names of the HTTP filters of the gateway's port 443, in their order.
    ///
    /// # Errors
    /// When Envoy does not say.
    pub fn filters(&self) -> Result<Vec<String>> {
        let dump: Value = serde_json::from_str(
            &self
                .gateway
                .admin("/config_dump?resource=dynamic_listeners&name_regex=0.0.0.0_443")?,
        )?;
        let path =
            "/configs/0/active_state/listener/filter_chains/0/filters/0/typed_config/http_filters";
        let filters = dump.pointer(path).and_then(Value::as_array);
        let filters = filters.with_context(|| format!("no filters in {dump}"))?;
        let names = filters.iter().filter_map(|filter| filter["name"].as_str());
        Ok(names.map(ToOwned::to_owned).collect())
    }

    /// Waits until the gateway obeys a document with this quota.
    ///
    /// # Errors
    /// When it does not within [`PUSH`].
    pub fn until_quota(&self, quota: usize) -> Result<()> {
        let says = |answer: &Response| {
            answer.header("x-ratelimit-limit") == Some(quota.to_string().as_str())
        };
        self.until("the document", &by("document")?, says).map(drop)
    }
}

/// The shipped plugin with a changed document.
///
/// # Errors
/// When the file cannot be read.
pub fn with_document(change: impl FnOnce(&mut Value)) -> Result<Value> {
    let mut plugin = of_kind(&shipped("istio/wasmplugin.yaml")?, "WasmPlugin")?.clone();
    change(&mut plugin["spec"]["pluginConfig"]);
    Ok(plugin)
}

/// The token of operators.
pub const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A request of this client to the shop.
///
/// # Errors
/// When the clock stands before 1970.
pub fn by(subject: &str) -> Result<Request> {
    Ok(get("/").bearer(&ISSUER.token(&json!({"sub": subject}))?))
}

/// A request to the shop.
pub fn get(path: &str) -> Request {
    Request::get(path).header("host", SHOP)
}

/// The objects of a shipped file below `envoy`.
///
/// # Errors
/// When it cannot be read.
pub fn shipped(file: &str) -> Result<Vec<Value>> {
    yaml::read_all(&paths::root().join("envoy").join(file))
}

/// The object of a kind among these.
///
/// # Errors
/// When there is none.
pub fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.with_context(|| format!("no {kind}"))
}

/// Waits for a minute that has room for a check: the shipped policy counts by the minute.
fn fresh_window() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    if now % 60 > 60 - ROOM {
        thread::sleep(Duration::from_secs(60 - now % 60));
    }
}

/// The user's own part: certificates, a Gateway, and a route to the upstream.
fn routes(plane: &ControlPlane) -> Result<Vec<Value>> {
    let folder = plane.folder();
    let [certificate, key] = ["shop.pem", "shop.key"].map(|name| folder.join(name));
    plane.authority.issue(&Holder::names(&[SHOP]))?.write(&certificate, &key)?;
    let file =
        |path: &std::path::Path| Ok::<_, anyhow::Error>(STANDARD.encode(std::fs::read(path)?));
    let data = json!({"tls.crt": file(&certificate)?, "tls.key": file(&key)?,
        "ca.crt": file(plane.authority.file())?});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": "shop", "namespace": GATEWAY}, "data": data});
    let server = |port: u16, mode: &str| {
        json!({"port": {"number": port, "name": format!("https-{port}"), "protocol": "HTTPS"},
            "hosts": [SHOP], "tls": {"mode": mode, "credentialName": "shop"}})
    };
    let object = |kind: &str, namespace: &str, name: &str, spec: Value| {
        json!({"apiVersion": "networking.istio.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": namespace}, "spec": spec})
    };
    let upstream = "upstream.shop.internal";
    let cors = json!({"allowOrigins": [{"exact": "https://app.example.com"}],
        "allowMethods": ["GET", "POST"]});
    let route = json!({"corsPolicy": cors,
        "route": [{"destination": {"host": upstream, "port": {"number": UPSTREAM}}}]});
    Ok(vec![
        secret,
        object(
            "Gateway",
            GATEWAY,
            "shop",
            json!({"selector": {"istio": "ingress"},
            "servers": [server(443, "SIMPLE"), server(8443, "MUTUAL")]}),
        ),
        object(
            "VirtualService",
            GATEWAY,
            "shop",
            json!({"hosts": [SHOP], "gateways": ["shop"],
            "http": [route]}),
        ),
        object(
            "ServiceEntry",
            GATEWAY,
            "upstream",
            json!({"hosts": [upstream],
            "ports": [{"number": UPSTREAM, "name": "http", "protocol": "HTTP"}],
            "location": "MESH_EXTERNAL", "resolution": "STATIC",
            "endpoints": [{"address": plane.network.hub.address}]}),
        ),
    ])
}
