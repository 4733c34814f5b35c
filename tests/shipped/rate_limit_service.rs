//! `envoy/ratelimit/`: Envoy's own rate limit filter with `quotagate ratelimit` behind it, as users
//! deploy it. No filter of ours is in these Envoys.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use quotagate_support::envoy::{self, Envoy, LOG_LEVELS};
use quotagate_support::http::{self, Client, Request};
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::upstream::Upstream;
use quotagate_support::{paths, wait, yaml};
use serde_json::{Value, json};

use crate::kubernetes::schemas;

const SERVICE: &str = "ratelimit";
const LIMIT: Duration = Duration::from_secs(60);
/// The seconds that a test has, at least, before the window of its limits ends.
const ROOM_S: u64 = 30;

/// The example in front of a sample upstream, with counters in memory.
struct Rig {
    envoy: Envoy,
    upstream: Upstream,
    _service: StoreProcess,
}

impl Rig {
    /// With a change of Envoy's configuration.
    fn start(edit: impl Fn(&mut Value) -> Result<()>) -> Result<Self> {
        let rules = paths::root().join("envoy/ratelimit/config");
        let service = StoreProcess::start_with(&StoreOptions::rate_limits("memory:", &rules))?;
        let upstream = Upstream::start()?;
        let mut config = yaml::read(&paths::root().join("envoy/ratelimit/envoy.yaml"))?;
        let socket = "/static_resources/listeners/0/address/socket_address/port_value";
        for address in ["/admin/address/socket_address/port_value", socket] {
            *yaml::at(&mut config, address)? = json!(0);
        }
        for (nth, port) in [upstream.port(), service.port()].into_iter().enumerate() {
            let endpoint = "load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
            let endpoint = format!("/static_resources/clusters/{nth}/{endpoint}");
            *yaml::at(&mut config, &format!("{endpoint}/socket_address/port_value"))? = json!(port);
        }
        edit(&mut config)?;
        // For a slow machine: no request passes uncounted.
        let filter = rate_limit_filter(&mut config)?;
        filter["timeout"] = json!("60s");
        filter["failure_mode_deny"] = json!(true);
        let envoy = Envoy::start_config(&config, 1, LOG_LEVELS)?;
        let http = service.http_port()?;
        wait::until_true(
            "the rules",
            LIMIT,
            || Ok(http::get(http, "/healthcheck")?.status == 200),
        )?;
        wait::until_true("a minute with room", LIMIT, || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
            Ok(now.as_secs() % 60 < 60 - ROOM_S)
        })?;
        Ok(Self { envoy, upstream, _service: service })
    }

    fn statuses(&self, path: &str, count: usize) -> Result<Vec<u16>> {
        let mut client = Client::connect(self.envoy.port())?;
        (0..count).map(|_| Ok(client.send(&Request::get(path))?.status)).collect()
    }
}

fn rate_limit_filter(config: &mut Value) -> Result<&mut Value> {
    let filters = yaml::list(envoy::manager(config)?, "http_filters")?;
    let found = filters.iter_mut().find(|filter| filter["name"] == "envoy.filters.http.ratelimit");
    found.and_then(|filter| filter.get_mut("typed_config")).context("no filter")
}

#[test]
fn sixth_request_of_an_address_is_refused_and_headers_say_why() -> Result<()> {
    let rig = Rig::start(|_| Ok(()))?;
    let mut client = Client::connect(rig.envoy.port())?;
    let first = client.send(&Request::get("/"))?;
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-limit"), Some("5, 5;w=60;name=\"per-address\""));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("4"));
    assert_eq!(rig.statuses("/", 5)?, [200, 200, 200, 200, 429]);
    assert_eq!(rig.upstream.requests(), 5);
    Ok(())
}

#[test]
fn refused_report_costs_nothing_of_the_larger_limit() -> Result<()> {
    let rig = Rig::start(|_| Ok(()))?;
    assert_eq!(rig.statuses("/reports", 4)?, [200, 200, 429, 429]);
    assert_eq!(rig.statuses("/", 4)?, [200, 200, 200, 429]);
    Ok(())
}

#[test]
fn patches_for_istio_work_in_envoy() -> Result<()> {
    let file = paths::root().join("envoy/ratelimit/istio.yaml");
    let [document] = &yaml::read_all(&file)?[..] else { panic!("one object") };
    assert_eq!(schemas::faults(document), Vec::<String>::new());
    let [filter, host] = [0, 1].map(|nth| &document["spec"]["configPatches"][nth]["patch"]);
    let rig = Rig::start(|config| {
        let own = rate_limit_filter(config)?;
        let cluster = "/rate_limit_service/grpc_service/envoy_grpc/cluster_name";
        *own = filter["value"]["typed_config"].clone();
        let named = own.pointer(cluster).context("no cluster")?.clone();
        let clusters = yaml::list(yaml::at(config, "/static_resources")?, "clusters")?;
        let service = clusters.iter_mut().find(|cluster| cluster["name"] == SERVICE);
        let service = service.context("no service")?;
        service["name"] = named.clone();
        service["load_assignment"]["cluster_name"] = named;
        let hosts = yaml::at(envoy::manager(config)?, "/route_config/virtual_hosts/0")?;
        hosts["rate_limits"] = host["value"]["rate_limits"].clone();
        hosts["routes"] = json!([{"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}]);
        Ok(())
    })?;
    assert_eq!(rig.statuses("/", 6)?, [200, 200, 200, 200, 200, 429]);
    Ok(())
}
