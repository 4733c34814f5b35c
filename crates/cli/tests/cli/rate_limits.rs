//! `quotagate ratelimit` as a process: the borders of windows, failures of Redis, published rules,
//! and hostile callers.

mod borders;
mod hostile;
mod outages;
mod published;
mod starting;

use std::time::Duration;

use quotagate_support::grpc;
use quotagate_support::http::http2::Http2Client;
use quotagate_support::http::{Client, Request, Response};
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::wait;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A slow machine may take this long.
const PATIENCE: Duration = Duration::from_secs(30);

/// A service asks again about a counter that it knows to be full once per second.
const RECHECK: Duration = Duration::from_millis(1100);

/// A service, and its rules.
struct Service {
    process: StoreProcess,
    _rules: TempDir,
}

impl Service {
    /// With these descriptors of the domain `d`, as YAML.
    fn start(store: &str, descriptors: &str, arguments: &[&str]) -> Self {
        let rules = tempfile::tempdir().unwrap();
        let text = format!("domain: d\ndescriptors:\n{descriptors}");
        std::fs::write(rules.path().join("rules.yaml"), text).unwrap();
        let options = StoreOptions::rate_limits(store, rules.path()).arguments(arguments);
        let process =
            StoreProcess::start_with(&options.program(env!("CARGO_BIN_EXE_quotagate"))).unwrap();
        let service = Self { process, _rules: rules };
        service.wait_until_healthy(true);
        service
    }

    fn wait_until_healthy(&self, expected: bool) {
        let what = format!("/healthcheck to be {expected}");
        wait::until_true(&what, PATIENCE, || {
            let client = &mut Client::connect(self.process.http_port()?)?;
            Ok((client.send(&Request::get("/healthcheck"))?.status == 200) == expected)
        })
        .unwrap();
    }

    /// `/json` with a request of one descriptor, such as `[("key", "value")]`.
    fn json(&self, entries: &[(&str, &str)]) -> Response {
        let entries = entries.iter().map(|(key, value)| json!({"key": key, "value": value}));
        let entries: Vec<Value> = entries.collect();
        self.post(json!({"domain": "d", "descriptors": [{"entries": entries}]}).to_string())
    }

    fn post(&self, text: impl AsRef<[u8]>) -> Response {
        let mut client = Client::connect(self.process.http_port().unwrap()).unwrap();
        let request = Request::post("/json", text.as_ref());
        client.send(&request.header("content-type", "application/json")).unwrap()
    }

    /// Whether a gRPC call with this entry passes.
    fn passes(&self, key: &str, value: &str) -> bool {
        let mut client = Http2Client::connect(self.process.port()).unwrap();
        let entry = grpc::entry(key.as_bytes(), value.as_bytes());
        let message = grpc::rate_limit_request(b"d", &[entry]);
        grpc::passes(&client.send(&grpc::call(&grpc::prefixed(&message))).unwrap()).unwrap()
    }
}
