//! A filter that reads everything a client can write, and the conditions that must hold after any
//! request.

use anyhow::Result;
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::{edits, http2};
use serde_json::{Value, json};

use crate::inspect;
use crate::rig::{Rig, document};

const PLENTY: u64 = 1_000_000;
/// The statuses that the filter, the upstream, or Envoy for a request that it rejects may answer
/// with.
const ANSWERS: [u16; 9] = [200, 400, 401, 403, 404, 405, 413, 414, 431];
/// Every secret in a request contains this.
pub(super) const SECRET: &str = "s3cret";

/// All commands that the store sends, that its script calls, and that the tests use.
const COMMANDS: [&str; 18] = [
    "role",
    "eval", // checks whether scripts are permitted
    "script|load",
    "time",
    "info",
    "evalsha",
    "get",
    "set",
    "hdel", // removes what a proxy published and no longer sees
    "incrby",
    "decrby",
    "pttl",
    "pexpire",
    "hgetall", // dials
    "hset",    // reports of filters; the commands below are the tests'
    "ping",
    "keys",
    "mget",
];

/// Policies that read everything a client writes and never refuse it, and one for `/probe` that
/// does.
fn all_sources() -> Value {
    let policy = |name: &str, partition_by: Value| {
        json!({
            "name": name, "partition_by": partition_by, "quota": PLENTY, "window": "366d", "on_missing": "shared"
        })
    };
    let mut by_cost = policy("by-cost", json!(["tenant"]));
    by_cost["cost"] = json!({"header": {"name": "x-cost", "max": 5}});
    by_cost["quota_from"] = json!({"jwt": {"claim": "quota"}, "max": PLENTY});
    by_cost["tiers"] = json!({"source": {"jwt": {"claim": "plan"}}, "quotas": {"gold": PLENTY}});
    let mut matched = policy("matched", json!(["path"]));
    matched["match"] = json!({
        "methods": ["GET", "POST"], "path": {"regex": "/(a|b|[^/]*)+/?.*"}, "hosts": ["localhost", "*.example.org"],
        "headers": [{"name": "x-tenant", "present": true}, {"name": "x-cost", "regex": ".*"}]
    });
    let mut logins = policy("logins", json!(["address"]));
    logins["count"] = json!({"status": [401, 404]});
    let mut document = document(json!([
        policy("total", json!([])),
        policy("by-secrets", json!(["key", "session", "ticket"])),
        policy("by-plain", json!(["tenant", "crumb", "page"])),
        policy("by-address", json!(["address"])),
        policy("by-request", json!(["method", "host", "path", "route"])),
        by_cost,
        matched,
        logins,
        {
            "name": "probe", "match": {"path": {"exact": "/probe"}}, "partition_by": ["probe"],
            "quota": 2, "window": "366d"
        }
    ]));
    document["identities"] = json!({
        "key": [{"header": {"name": "x-api-key", "secret": true}}],
        "session": [{"cookie": {"name": "session", "secret": true}}],
        "ticket": [{"query": {"name": "ticket", "secret": true}}],
        "tenant": [{"jwt": {"claim": "tenant.name"}}, {"header": {"name": "x-tenant"}}],
        "crumb": [{"cookie": {"name": "crumb"}}],
        "page": [{"query": {"name": "page"}}],
        "address": [{"client_ip": {}}],
        "probe": [{"header": {"name": "x-probe"}}]
    });
    document
}

/// The proxy that the tests attack.
pub(super) struct Target {
    pub(super) rig: Rig,
    /// All answers that clients received.
    pub(super) seen: String,
    /// Kept for the next request.
    client: Option<Client>,
}

impl Target {
    /// Starts Envoy with one worker that trusts one hop, gets paths as clients write them, and
    /// takes headers up to Envoy's own limit.
    pub(super) fn start() -> Result<Self> {
        let change = |options: quotagate_support::envoy::EnvoyOptions| {
            options
                .edit(edits::trusted_hops(1))
                .edit(edits::raw_paths)
                .edit(edits::header_limit(60))
        };
        Ok(Self { rig: Rig::start_with(all_sources(), change)?, seen: String::new(), client: None })
    }

    /// Sends over HTTP/1.1. `None` if Envoy closes the connection without an answer.
    pub(super) fn send(&mut self, request: &Request) -> Result<Option<u16>> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.rig.client()?,
        };
        // Envoy may close the connection before it has read the whole request.
        match client.send(request) {
            Ok(response) => {
                let status = self.saw(request, &response);
                // Envoy closes a connection after it rejected a request on it.
                self.client = (status == 200).then_some(client);
                Ok(Some(status))
            }
            Err(error) => {
                let text = format!("{error:#}");
                assert!(!text.contains("in time"), "it hangs: {request:?}");
                Ok(None)
            }
        }
    }

    /// Sends over HTTP/2. `None` for requests that HTTP/2 or its client cannot carry.
    pub(super) fn send2(
        &mut self,
        client: &mut http2::Http2Client,
        request: &Request,
    ) -> Option<u16> {
        let answer = client.send(request).ok()?;
        Some(self.saw(request, &answer.response))
    }

    fn saw(&mut self, request: &Request, response: &Response) -> u16 {
        assert!(ANSWERS.contains(&response.status), "{} to {request:?}", response.status);
        self.seen += &format!("{:?}{}", response.headers, response.text());
        response.status
    }

    /// Sends a request that must reach the upstream.
    pub(super) fn pass(&mut self, request: &Request) -> Result<()> {
        let before = self.rig.upstream.requests();
        assert_eq!(self.send(request)?, Some(200), "{request:?}");
        assert_eq!(self.rig.upstream.requests(), before + 1, "{request:?}");
        Ok(())
    }

    /// Asserts the conditions that hold after every test.
    pub(super) fn assert_sound(mut self) -> Result<()> {
        for (probe, expected) in [("a", 200), ("a", 200), ("a", 429), ("b", 200)] {
            let request = Request::get("/probe").header("x-probe", probe);
            let mut client = self.rig.client()?;
            assert_eq!(client.send(&request)?.status, expected, "the filter no longer counts");
        }
        // Requests that Envoy forwarded. The upstream's own count omits those that its HTTP parser
        // rejects and those without a route.
        let sent = inspect::stat(
            &self.rig.envoy,
            "^(cluster.upstream.upstream_rq_total|http.ingress.no_route)$",
        )?;
        inspect::settled(&self.rig.redis, "total", sent)?;
        assert_eq!(
            inspect::restarts(&self.rig.envoy)?,
            0,
            "the filter was restarted:\n{}",
            self.rig.envoy.log()
        );
        self.rig.envoy.check()?;
        self.rig.store.check()?;
        let keys = self.rig.redis.cli(&["KEYS", "*"])?.lines();
        for key in keys.lines() {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b"._~@:/-%{},=*".contains(&b);
            assert!(key.bytes().all(plain), "{key}");
            assert!(key.matches(['{', '}']).count() == 2, "{key}");
        }
        let commands = self.rig.redis.cli(&["INFO", "commandstats"])?.lines();
        let names =
            commands.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next());
        let smuggled: Vec<&str> = names.filter(|name| !COMMANDS.contains(name)).collect();
        assert!(smuggled.is_empty(), "{smuggled:?}");
        let all = [self.seen, keys, self.rig.envoy.log(), self.rig.store.log()].concat();
        assert!(!all.contains(SECRET), "a secret has left the filter");
        assert!(!all.contains("panicked"), "{all}");
        Ok(())
    }
}
