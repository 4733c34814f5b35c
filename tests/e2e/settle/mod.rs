//! Costs that are known after the response, or in the request's body, in front of a fake model.

mod budget;
mod ends;
mod formats;
mod requests;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form, manager, plugin};
use quotagate_support::http::Client;
use quotagate_support::model::Model;
use quotagate_support::redis::Redis;
use quotagate_support::store::StoreProcess;
use quotagate_support::{paths, yaml};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::document;

/// Envoy with the filter that reads bodies, in front of a fake model.
struct Rig {
    envoy: Envoy,
    model: Model,
    _store: StoreProcess,
    redis: Redis,
}

impl Rig {
    fn start(policies: Value) -> Result<Self> {
        Self::start_with(policies, |options| options)
    }

    fn start_with(
        policies: Value,
        change: impl FnOnce(EnvoyOptions) -> EnvoyOptions,
    ) -> Result<Self> {
        let redis = Redis::start()?;
        let store = StoreProcess::start(&redis.url(), &[])?;
        let model = Model::start()?;
        let mut options = EnvoyOptions::new(model.port(), store.port()).redis(&redis.url());
        options.wasm = paths::bodies_filter();
        let options = options.document(document(policies)).edit(body_first).edit(upstream_trailers);
        let envoy = Envoy::start(&change(options))?;
        Ok(Self { envoy, model, _store: store, redis })
    }

    fn client(&self) -> Result<Client> {
        Client::connect(self.envoy.port())
    }

    /// Waits until the counters of a policy hold this many units.
    fn settled(&self, policy: &str, units: u64) -> Result<()> {
        inspect::settled(&self.redis, policy, units)
    }

    /// Sends GET `path` with these headers, and waits until the first event of the answer is there.
    fn begin(&self, path: &str, headers: &[(&str, &str)]) -> Result<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.envoy.port()))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let headers: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")?;
        let mut stream = BufReader::new(stream);
        // An event ends with an empty line, and may come in several chunks.
        let mut line = Vec::new();
        while line != b"\n" {
            line.clear();
            anyhow::ensure!(stream.read_until(b'\n', &mut line)? > 0, "the connection was closed");
        }
        Ok(stream)
    }
}

/// A policy for everybody whose requests cost this.
fn tokens(quota: u64, cost: Value) -> Value {
    json!({"name": "tokens", "partition_by": [], "quota": quota, "window": "366d", "cost": cost})
}

/// The Wasm plugin lets a request's body come before its headers go on.
fn body_first(config: &mut Value) -> Result<()> {
    if Form::of_run()? == Form::Wasm {
        plugin(config)?["allow_on_headers_stop_iteration"] = json!(true);
    }
    Ok(())
}

/// Envoy takes trailers of HTTP/1.1 from the upstream.
fn upstream_trailers(config: &mut Value) -> Result<()> {
    let clusters = yaml::at(config, "/static_resources/clusters")?;
    yaml::named(clusters, "upstream")?["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http_protocol_options": {"enable_trailers": true}}
        }
    });
    Ok(())
}

/// Envoy ends a request after this time, even in the middle of its answer; `0s`: never.
fn route_timeout(duration: &'static str) -> impl Fn(&mut Value) -> Result<()> {
    move |config| {
        let hosts = manager(config)?["route_config"]["virtual_hosts"].as_array_mut();
        for host in hosts.into_iter().flatten() {
            for route in host["routes"].as_array_mut().into_iter().flatten() {
                if route.get("route").is_some() {
                    route["route"]["timeout"] = json!(duration);
                }
            }
        }
        Ok(())
    }
}
