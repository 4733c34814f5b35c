//! A store that was installed, tried.

use std::{process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use quotagate_support::{
    http::{self, Client, Request},
    ports,
    process::Process,
};
use serde_json::{Value, json};

const START: Duration = Duration::from_secs(30);
const STOP: Duration = Duration::from_secs(15);
const QUOTA: u64 = 5;

/// A running store, killed when dropped.
pub struct Store {
    process: Process,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Store {
    /// Starts one with this URL. `command` ends with `serve`.
    pub fn start(mut command: Command, url: &str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let [port, admin] = [ports::free()?, ports::free()?];
        command.args(["--store", url, "--drain", "0s"]);
        command.args(["--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--admin", &format!("127.0.0.1:{admin}")]);
        let log = directory.path().join("store.log");
        let mut process = Process::spawn("the store", &mut command, &log)?;
        process.wait_until("its readiness", START, |_| {
            Ok((http::get(admin, "/readyz")?.status == 200).then_some(()))
        })?;
        Ok(Self { process, port, _directory: directory })
    }

    /// The port that filters call.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Spends a quota and is refused, sends SIGTERM, and returns what the store printed.
    pub fn counts_and_stops(mut self) -> Result<String> {
        let mut client = Client::connect(self.port)?;
        for nth in 1..=QUOTA + 1 {
            let reservation = json!({
                "key": "installed:per-caller:{jwt.sub=alice}", "window_s": 3600, "offset_s": 0,
                "quota": QUOTA, "want": 1, "min": 1, "spare": 0, "count_denied": false,
            });
            let call = json!({"budget_ms": 5000, "refunds": [], "reservations": [reservation]});
            let call = call.to_string();
            let request = Request::post("/v1/reserve", call.as_bytes())
                .header("content-type", "application/json");
            let reply = client.send(&request)?.json()?;
            let granted = reply.pointer("/grants/0/granted").and_then(Value::as_u64);
            let granted = granted.with_context(|| format!("no grant: {reply}"))?;
            ensure!(granted == u64::from(nth <= QUOTA), "call {nth} is granted {granted} units");
        }
        drop(client);
        let status = self.process.terminate(STOP)?;
        ensure!(status.success(), "{status} after SIGTERM:\n{}", self.process.tail());
        Ok(self.process.log())
    }
}
