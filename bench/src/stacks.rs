//! The stacks that are compared: Envoys that differ only in one filter and in what is behind it.
//!
//! All use the shipped configuration without its `jwt_authn`: a header names the user.

use std::fmt;

use anyhow::{Context, Result};
use clap::ValueEnum;
use quotagate_support::{
    envoy::{EnvoyOptions, Form, manager},
    yaml,
};
use serde_json::{Value, json};

use crate::service::parts::{self, Subject};

/// The header that names the user.
pub const USER_HEADER: &str = "x-user";
/// The cluster of the store, or of the rate limit service.
const STORE: &str = "quota_store";
/// No measurement reaches this quota.
const PLENTY: u64 = 1_000_000_000;
const FILTERS: &str =
    "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
/// Filters of the shipped configurations that verify tokens, or pass their claims on.
const TOKENS: [&str; 2] = ["envoy.filters.http.jwt_authn", "envoy.filters.http.set_filter_state"];

/// One of the stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Stack {
    /// No filter: the base of all comparisons.
    A,
    /// Envoy's own local rate limit.
    B,
    /// The filter, with no policy that applies.
    C,
    /// Exact quotas, counted in the store's memory.
    D,
    /// Exact quotas, counted in Redis.
    E,
    /// Exact quotas, counted in a Redis Cluster.
    F,
    /// Quotas with leases, counted in Redis.
    G,
    /// As E, with one call for each request.
    H,
    /// Requests beyond a quota, counted in Redis.
    I,
    /// As G, for users who each send few requests: a lease holds what each uses in ten seconds.
    J,
    /// A Wasm filter that exists and does nothing.
    K,
    /// A Wasm filter that makes the host calls of G and decides nothing.
    L,
    /// As G, in the native module.
    M,
    /// As E, in the native module.
    N,
    /// As F, in the native module.
    O,
    /// As I, in the native module.
    P,
    /// As C, in the native module.
    Q,
    /// As M, without quota headers.
    R,
    /// As M, with access log fields.
    S,
    /// Envoy's own rate limit filter, with the rate limit service.
    T,
    /// As T, with leases.
    U,
    /// As T, with envoyproxy/ratelimit.
    V,
    /// As N, with access log fields.
    W,
}

/// Where a store counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// In its memory.
    Memory,
    /// In one Redis.
    Redis,
    /// In a Redis Cluster.
    Cluster,
}

/// The right answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// 200 without quota headers.
    Uncounted,
    /// 200 with quota headers.
    Counted,
    /// 429, except for the first request of each user.
    Refused,
}

impl Stack {
    /// A short description.
    pub const fn title(self) -> &'static str {
        match self {
            Self::A => "no filter",
            Self::B => "Envoy local_ratelimit (not shared)",
            Self::C => "quotagate, no policy applies",
            Self::D => "quotagate exact, store in memory",
            Self::E => "quotagate exact, Redis",
            Self::F => "quotagate exact, Redis Cluster",
            Self::G => "quotagate lease, Redis",
            Self::H => "quotagate exact, a call a request",
            Self::I => "quotagate, quota used up, Redis",
            Self::J => "quotagate lease of 10 s, Redis",
            Self::K => "a Wasm filter that does nothing",
            Self::L => "a Wasm filter with G's host calls, no logic",
            Self::M => "native lease, Redis",
            Self::N => "native exact, Redis",
            Self::O => "native exact, Redis Cluster",
            Self::P => "native, quota used up, Redis",
            Self::Q => "native, no policy applies",
            Self::R => "native lease, no headers",
            Self::S => "native lease, with log fields",
            Self::T => "rate limit service, exact",
            Self::U => "rate limit service, lease",
            Self::V => "envoyproxy/ratelimit",
            Self::W => "native exact, with log fields",
        }
    }

    /// Whether the filter is the native module, which counts without a store beside Envoy.
    pub fn is_native(self) -> bool {
        (Self::M..=Self::S).contains(&self) || self == Self::W
    }

    /// The rate limit service that Envoy's own filter calls, if there is one.
    pub const fn service(self) -> Option<Subject> {
        match self {
            Self::T => Some(Subject::Exact),
            Self::U => Some(Subject::Lease),
            Self::V => Some(Subject::Original),
            _ => None,
        }
    }

    /// Where its store, or its native module, counts; `None` if nothing is counted.
    pub const fn backend(self) -> Option<Backend> {
        match self {
            Self::A | Self::B | Self::C | Self::K | Self::L | Self::Q => None,
            Self::D => Some(Backend::Memory),
            Self::E | Self::G | Self::H | Self::I | Self::J => Some(Backend::Redis),
            Self::M | Self::N | Self::P | Self::R | Self::S | Self::W => Some(Backend::Redis),
            Self::T | Self::U | Self::V => Some(Backend::Redis),
            Self::F | Self::O => Some(Backend::Cluster),
        }
    }

    /// The right answer to its requests.
    pub const fn due(self) -> Due {
        match self {
            Self::A | Self::B | Self::C | Self::K | Self::Q | Self::R => Due::Uncounted,
            Self::D | Self::E | Self::F | Self::G | Self::H | Self::J | Self::L => Due::Counted,
            Self::M | Self::N | Self::O | Self::S | Self::W => Due::Counted,
            Self::T | Self::U | Self::V => Due::Counted,
            Self::I | Self::P => Due::Refused,
        }
    }

    /// The filter's configuration; `None` without the filter.
    fn document(self) -> Option<Value> {
        // No quota that is used up begins anew during a measurement.
        let (quota, window) = if self.due() == Due::Refused { (1, "365d") } else { (PLENTY, "1h") };
        let path = if self.backend().is_none() { "/of-no-request/" } else { "/" };
        let mut policy = json!({
            "name": "per-user", "match": { "path": { "prefix": path } }, "partition_by": ["user"],
            "quota": quota, "window": window,
        });
        match self {
            Self::A | Self::B | Self::T | Self::U | Self::V => return None,
            Self::K => return Some(json!({})),
            Self::L => return Some(json!({ "host_calls": true })),
            Self::G | Self::M | Self::R | Self::S => {
                policy.as_object_mut()?.insert("precision".to_owned(), json!("lease"));
            }
            Self::J => {
                let fields = policy.as_object_mut()?;
                fields.insert("precision".to_owned(), json!("lease"));
                fields.insert("lease".to_owned(), json!({ "ahead": "10s" }));
            }
            Self::C | Self::D | Self::E | Self::F | Self::H | Self::I => {}
            Self::N | Self::O | Self::P | Self::Q | Self::W => {}
        }
        let headers = if self == Self::R { json!([]) } else { json!(["ietf", "x_ratelimit"]) };
        let mut document = json!({
            "domain": format!("bench-{self}").to_lowercase(),
            // A request that cannot be counted would be cheap, so it must fail the measurement.
            "store": { "cluster": STORE, "timeout": "5s", "on_failure": "deny" },
            "identities": { "user": [{ "header": { "name": USER_HEADER } }] },
            "policies": [policy],
            "response": { "headers": headers },
        });
        if matches!(self, Self::S | Self::W) {
            let fields = json!(["decision", "policy", "partition", "used"]);
            document.as_object_mut()?.insert("access_log".to_owned(), fields);
        }
        Some(document)
    }

    /// The stacks whose requests are also timed. The others show only what parts of a stack cost,
    /// which is less than the noise of times.
    pub fn timed() -> Vec<Self> {
        let is_timed = |stack: &Self| !matches!(stack, Self::Q | Self::R | Self::S | Self::W);
        Self::value_variants().iter().copied().filter(is_timed).collect()
    }

    /// The configuration of its Envoy. `options` give the addresses of upstream and store, and the
    /// Wasm filter.
    pub fn config(self, mut options: EnvoyOptions) -> Result<Value> {
        options.form = Some(if self.is_native() { Form::Native } else { Form::Wasm });
        options.document = self.document();
        options.bare = options.document.is_none();
        let mut config = options.config()?;
        let filters =
            yaml::at(&mut config, FILTERS)?.as_array_mut().context("http_filters is no list")?;
        filters.retain(|filter| {
            let name = filter.get("name").and_then(Value::as_str);
            name.is_none_or(|name| !TOKENS.contains(&name))
        });
        if self == Self::B {
            filters.insert(0, local_rate_limit());
        }
        if self.service().is_some() {
            filters.insert(0, rate_limit());
            call_the_service(&mut config)?;
        }
        Ok(config)
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

fn local_rate_limit() -> Value {
    let always = json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" } });
    json!({
        "name": "envoy.filters.http.local_ratelimit",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "local",
            "token_bucket": { "max_tokens": PLENTY, "tokens_per_fill": PLENTY, "fill_interval": "1s" },
            "filter_enabled": always, "filter_enforced": always,
        },
    })
}

fn rate_limit() -> Value {
    json!({
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": parts::DOMAIN, "timeout": "1s", "failure_mode_deny": true,
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": { "envoy_grpc": { "cluster_name": STORE } },
            },
        },
    })
}

/// Makes the store's cluster speak gRPC, and the route describe its requests.
fn call_the_service(config: &mut Value) -> Result<()> {
    let cluster = yaml::named(yaml::at(config, "/static_resources/clusters")?, STORE)?;
    let options = json!({ "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": { "http2_protocol_options": {} },
    } });
    let set = |object: &mut Value, name: &str, value| {
        let object = object.as_object_mut().context("no object")?;
        object.insert(name.to_owned(), value);
        anyhow::Ok(())
    };
    set(cluster, "typed_extension_protocol_options", options)?;
    let actions = json!([{ "actions": [{
        "request_headers": { "header_name": USER_HEADER, "descriptor_key": parts::KEY },
    }] }]);
    let route = "/route_config/virtual_hosts/0/routes/0/route";
    set(yaml::at(manager(config)?, route)?, "rate_limits", actions)
}

/// The upstream: an Envoy that answers by itself, on any port.
pub fn upstream() -> Value {
    let any = json!({ "socket_address": { "address": "127.0.0.1", "port_value": 0 } });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "upstream",
        "route_config": { "virtual_hosts": [{
            "name": "all", "domains": ["*"],
            "routes": [{
                "match": { "prefix": "/" },
                "direct_response": { "status": 200, "body": { "inline_string": "an item of the upstream\n" } },
            }],
        }] },
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
        }],
    });
    json!({
        "admin": { "address": any },
        "static_resources": { "listeners": [{
            "name": "upstream", "address": any,
            "filter_chains": [{ "filters": [{
                "name": "envoy.filters.network.http_connection_manager", "typed_config": manager,
            }] }],
        }] },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(stack: Stack) -> Vec<String> {
        let mut config = stack.config(EnvoyOptions::new(1, 2)).unwrap();
        let filters = yaml::at(&mut config, FILTERS).unwrap().as_array().unwrap();
        filters
            .iter()
            .map(|f| f["name"].as_str().unwrap().rsplit('.').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn stacks_differ_in_one_filter() {
        for stack in Stack::value_variants() {
            let own = match stack {
                Stack::A => vec!["router"],
                Stack::B => vec!["local_ratelimit", "router"],
                Stack::T | Stack::U | Stack::V => vec!["ratelimit", "router"],
                native if native.is_native() => vec!["dynamic_modules", "router"],
                _ => vec!["wasm", "router"],
            };
            assert_eq!(names(*stack), own, "{stack}");
        }
    }

    #[test]
    fn only_the_stack_without_quota_refuses() {
        for stack in Stack::value_variants() {
            let quota =
                stack.document().and_then(|document| document["policies"][0]["quota"].as_u64());
            match (stack.due(), stack.backend()) {
                (Due::Refused, Some(_)) => assert_eq!(quota, Some(1)),
                (Due::Counted, Some(_)) if stack.service().is_some() => assert_eq!(quota, None),
                (Due::Counted, Some(_)) => assert_eq!(quota, Some(PLENTY)),
                (Due::Uncounted, None) => {}
                (Due::Uncounted, Some(_)) => assert_eq!((*stack, quota), (Stack::R, Some(PLENTY))),
                (due, backend) => {
                    assert_eq!((*stack, due, backend), (Stack::L, Due::Counted, None));
                }
            }
        }
    }
}
