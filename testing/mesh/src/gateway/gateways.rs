//! Two Gateways with the shipped files, two stores, Redis, an issuer, a registry and an upstream.

use std::cell::{Ref, RefCell, RefMut};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quotagate_support::envoy::Form;
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::tls::Authority;
use quotagate_support::upstream::Upstream;
use quotagate_support::wait;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binaries::Binaries;
use crate::istio::mesh::{Verdict, of_kind, shipped};
use crate::istio::network::{NetworkNamespace, PodNetwork};
use crate::istio::outside::{HOSTS, ISSUER, Outside};

use super::plane::{CONTROLLER, Plane, Proxy, START};

/// The Gateway of the shipped files.
pub const GATEWAY: &str = "eg";
/// A second one with the same policy, in which authorization comes before the filter.
pub const SECOND: &str = "second";
/// The ports of their listeners.
pub const PORTS: [u16; 2] = [10_080, 10_081];
/// The quota of the documents of single routes.
pub const QUOTA: u32 = 2;
const REDIS: u16 = 6379;
const SINGLE_REDIS: u16 = 6380;
/// The Redis of the rate limit service.
pub const RATE_LIMITS_REDIS: &str = "redis-1:6380";
const UPSTREAM: u16 = 8000;
/// The addresses of the stores.
pub const STORES: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
const STORE: &str = "quotagate-store.quotagate.svc.cluster.local";
/// Where Envoys fetch the Wasm filter, and where the rate limit service fetches its rules.
const ENVOY_GATEWAY: [&str; 2] =
    ["envoy-gateway.envoy-gateway-system.svc.cluster.local", "envoy-gateway"];
/// Where Envoys look for the rate limit service.
const RATE_LIMITS: &str = "envoy-ratelimit.envoy-gateway-system.svc.cluster.local";

/// All parts of a run.
pub struct Gateways {
    proxies: [RefCell<Proxy>; 2],
    /// Envoy Gateway.
    pub plane: Plane,
    /// The form of the filter.
    pub form: Form,
    /// The stores of the Wasm filter.
    pub stores: RefCell<Vec<StoreProcess>>,
    /// The folder of the run.
    pub folder: TempDir,
    extension: Value,
    _redis: [Redis; 2],
    _upstream: Upstream,
    _outside: Outside,
}

impl Gateways {
    /// Starts them.
    ///
    /// # Errors
    /// When a part does not come up.
    pub fn start(binaries: &Binaries, network: &PodNetwork, form: Form) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let authority = Authority::new(folder.path(), "ca")?;
        let hub: &Arc<NetworkNamespace> = &network.hub;
        let outside = Outside::start(hub, &authority, folder.path())?;
        // A cluster of one node, as the shipped file for the native module names one.
        let open = ["--bind", "0.0.0.0", "--protected-mode", "no"];
        let cluster = ["--cluster-enabled", "yes"];
        let redis = Redis::start_on(REDIS, &[open.as_slice(), &cluster].concat())?;
        redis.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
        let single = Redis::start_on(SINGLE_REDIS, &open)?;
        let upstream = Upstream::start_at(SocketAddr::from((hub.address, UPSTREAM)))?;
        let stores = match form {
            Form::Wasm => STORES.iter().map(|address| store(address)).collect::<Result<_>>()?,
            Form::Native => Vec::new(),
        };
        let file = match form {
            Form::Wasm => "quotas.yaml",
            Form::Native => "native.yaml",
        };
        let local = Ipv4Addr::LOCALHOST;
        let mut hosts =
            vec![("redis-1", hub.address), ("redis-2", hub.address), (RATE_LIMITS, RATE_LIMITS_AT)];
        hosts.extend(ENVOY_GATEWAY.map(|name| (name, hub.address)));
        hosts.extend(HOSTS.iter().map(|name| (*name, local)));
        for address in STORES {
            hosts.push((STORE, address.parse()?));
        }
        let stores = RefCell::new(stores);
        let objects = shipped(&format!("gateway/{file}"))?;
        let own = own(hub.address, &objects)?;
        let plane = Plane::start(binaries, folder.path(), &hosts, RATE_LIMITS_REDIS, file, &own)?;
        let proxy = |name: &str, port: u16| -> Result<RefCell<Proxy>> {
            let mut proxy = plane.proxy(name, port)?;
            proxy.until_listening()?;
            Ok(RefCell::new(proxy))
        };
        let proxies = [proxy(GATEWAY, PORTS[0])?, proxy(SECOND, PORTS[1])?];
        let extension = of_kind(&objects, "EnvoyExtensionPolicy")?.clone();
        let made = Self {
            proxies,
            plane,
            form,
            stores,
            folder,
            extension,
            _redis: [redis, single],
            _upstream: upstream,
            _outside: outside,
        };
        for port in PORTS {
            made.until_counted(port, "any.example", 20)?;
        }
        Ok(made)
    }

    /// The Envoy of the shipped Gateway.
    pub fn proxy(&self) -> Ref<'_, Proxy> {
        self.proxies[0].borrow()
    }

    /// Replaces that Envoy by one that starts now. It may not listen yet.
    ///
    /// # Errors
    /// When it does not start.
    pub fn replace_proxy(&self) -> Result<RefMut<'_, Proxy>> {
        let mut proxy = self.proxies[0].borrow_mut();
        proxy.kill()?;
        *proxy = self.plane.proxy(GATEWAY, PORTS[0])?;
        Ok(proxy)
    }

    /// The shipped EnvoyExtensionPolicy for this target, with another document.
    pub fn extension(&self, name: &str, target: &Value, document: &Value) -> Value {
        let mut policy = self.extension.clone();
        policy["metadata"]["name"] = json!(name);
        policy["spec"]["targetRefs"] = json!([target]);
        let list = match self.form {
            Form::Wasm => "wasm",
            Form::Native => "dynamicModule",
        };
        policy["spec"][list][0]["config"] = document.clone();
        policy
    }

    /// A document with a quota that no window ends, for callers that this source tells apart.
    pub fn document(&self, domain: &str, quota: u32, caller: &Value) -> Value {
        let mut store = json!({"on_failure": "deny", "timeout": "2s"});
        match self.form {
            Form::Wasm => store["cluster"] = json!("quota_store"),
            Form::Native => store["redis"] = json!("redis-cluster://redis-1:6379"),
        }
        let policy = json!({"name": "calls", "partition_by": ["caller"], "quota": quota,
            "window": "366d"});
        json!({"domain": domain, "store": store, "identities": {"caller": [caller]},
            "policies": [policy], "response": {"headers": ["x_ratelimit"]}})
    }

    /// A route of the host `NAME.example` with this document.
    pub fn routed(&self, name: &str, document: &Value) -> [Value; 2] {
        [route(name, GATEWAY), self.extension(name, &target("HTTPRoute", name), document)]
    }

    /// Waits until this many requests in a row are counted, whichever thread or store takes them.
    ///
    /// # Errors
    /// When they are not.
    pub fn until_counted(&self, port: u16, host: &str, in_a_row: usize) -> Result<()> {
        self.until("counted requests", || {
            let all = verdicts(port, &vec![get(host); in_a_row])?;
            Ok(all.iter().all(|verdict| *verdict != Verdict::Uncounted))
        })
    }

    /// Waits until one of the proxies has each of these routes, and updates have ended: those of
    /// one change do not come at once.
    ///
    /// # Errors
    /// When they do not.
    pub fn until_settled(&self, routes: &[&str]) -> Result<()> {
        const QUIET: Duration = Duration::from_secs(2);
        let mut last = (String::new(), Instant::now());
        self.until("the end of updates", || {
            let mut all = String::new();
            for proxy in &self.proxies {
                all += &proxy
                    .borrow()
                    .admin("/stats?filter=(update_success|total_listeners_warming)")?;
                all += &proxy
                    .borrow()
                    .admin("/config_dump?resource=dynamic_active_clusters&mask=cluster.name")?;
            }
            let has = |route: &&str| all.contains(&format!("httproute/default/{route}/rule/0"));
            if !routes.iter().all(has) || last.0 != all {
                last = (all, Instant::now());
            }
            Ok(last.1.elapsed() > QUIET)
        })
    }

    /// Waits until a host's answers say this limit.
    ///
    /// # Errors
    /// When they do not.
    pub fn until_limit(&self, host: &str, limit: u32) -> Result<()> {
        self.until(&format!("the limit {limit} of {host}"), || {
            let answer = ask(PORTS[0], &get(host))?;
            Ok(answer.header("x-ratelimit-limit") == Some(limit.to_string().as_str()))
        })
    }

    /// Waits until this is so.
    ///
    /// # Errors
    /// When it does not become so.
    pub fn until(&self, what: &str, is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        wait::until_true(what, START, is_so).with_context(|| {
            let log = self.plane.log();
            let mut faults = log.lines().filter(|line| line.contains("\terror\t"));
            format!("Envoy Gateway says: {:?}", faults.next_back())
        })
    }
}

/// The pod of the rate limit service.
pub const RATE_LIMITS_AT: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 2);

/// Starts a store on its usual port of this address.
///
/// # Errors
/// When it does not come up.
pub fn store(address: &str) -> Result<StoreProcess> {
    let options = StoreOptions::new(&format!("redis-cluster://127.0.0.1:{REDIS}"));
    StoreProcess::start_with(&options.listen(&format!("{address}:9180")))
}

/// The answer over a new connection.
///
/// # Errors
/// When none comes.
pub fn ask(port: u16, request: &Request) -> Result<Response> {
    let mut client = Client::connect(port)?;
    client.set_timeout(Duration::from_secs(20))?;
    client.send(request)
}

/// What a Gateway does with each of these requests.
///
/// # Errors
/// When an answer does not come.
pub fn verdicts(port: u16, requests: &[Request]) -> Result<Vec<Verdict>> {
    requests.iter().map(|request| Ok(Verdict::of(&ask(port, request)?))).collect()
}

/// A request to this host.
pub fn get(host: &str) -> Request {
    Request::get("/").header("host", host)
}

/// A request of this client, by its token.
///
/// # Errors
/// When the clock stands before 1970.
pub fn by(host: &str, subject: &str) -> Result<Request> {
    Ok(get(host).bearer(&ISSUER.token(&json!({"sub": subject}))?))
}

/// A route of the host `NAME.example` at a Gateway.
pub fn route(name: &str, gateway: &str) -> Value {
    let upstream = json!({"group": GROUP, "kind": "Backend", "name": "upstream"});
    let hostname = format!("{name}.example");
    object(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        name,
        &json!({
            "parentRefs": [{"name": gateway}], "hostnames": [hostname],
            "rules": [{"backendRefs": [upstream]}],
        }),
    )
}

/// What a policy targets: a route, or another object.
pub fn target(kind: &str, name: &str) -> Value {
    json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name})
}

/// An object of Envoy Gateway's API.
pub fn policy(kind: &str, name: &str, spec: &Value) -> Value {
    object("gateway.envoyproxy.io/v1alpha1", kind, name, spec)
}

const GROUP: &str = "gateway.envoyproxy.io";

fn object(version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"},
        "spec": spec})
}

/// The user's own part: two Gateways, and a route of both for every host that has no other one.
fn own(upstream: Ipv4Addr, shipped: &[Value]) -> Result<Vec<Value>> {
    let gateway = |name: &str, proxy: &str, port: u16| {
        let proxy = json!({"group": GROUP, "kind": "EnvoyProxy", "name": proxy});
        object(
            "gateway.networking.k8s.io/v1",
            "Gateway",
            name,
            &json!({
                "gatewayClassName": "eg", "infrastructure": {"parametersRef": proxy},
                "listeners": [{"name": "http", "protocol": "HTTP", "port": port}],
            }),
        )
    };
    let mut class = object(
        "gateway.networking.k8s.io/v1",
        "GatewayClass",
        "eg",
        &json!({"controllerName": CONTROLLER}),
    );
    class["metadata"] = json!({"name": "eg"});
    let mut any = route("any", GATEWAY);
    any["spec"]["parentRefs"] = json!([{"name": GATEWAY}, {"name": SECOND}]);
    any["spec"]["hostnames"] = json!(["any.example"]);
    let endpoint = json!({"ip": {"address": upstream, "port": UPSTREAM}});
    let mut all = vec![
        class,
        gateway(GATEWAY, "quotagate", PORTS[0]),
        gateway(SECOND, SECOND, PORTS[1]),
        any,
        policy("Backend", "upstream", &json!({"endpoints": [endpoint]})),
    ];
    for kind in ["EnvoyProxy", "EnvoyExtensionPolicy", "SecurityPolicy"] {
        let mut copy = of_kind(shipped, kind)?.clone();
        copy["metadata"]["name"] = json!(SECOND);
        if kind == "EnvoyProxy" {
            let filters = ["envoy.filters.http.wasm", "envoy.filters.http.dynamic_modules"];
            copy["spec"]["filterOrder"] = filters
                .iter()
                .map(|name| json!({"name": name, "after": "envoy.filters.http.rbac"}))
                .collect();
        } else {
            copy["spec"]["targetRefs"] = json!([target("Gateway", SECOND)]);
        }
        all.push(copy);
    }
    Ok(all)
}
