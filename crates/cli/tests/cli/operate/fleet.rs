//! A store with policies that a filter has reported, and the command.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use quotagate_protocol::dials::{
    DocumentOverrides, PartitionEntry, PolicyReport, Report, TELEMETRY_PATH,
};
use quotagate_protocol::{Kind, Mode, OnFailure};
use quotagate_support::http::{self, Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::wait;
use serde_json::{Value, json};

pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Fleet {
    pub store: StoreProcess,
    pub redis: Option<Redis>,
}

/// The result of a command.
#[derive(Debug)]
pub struct Done {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Fleet {
    /// With a store in memory.
    pub fn memory() -> Self {
        Self::with(&StoreOptions::new("memory:"), None)
    }

    /// With a store on a real Redis.
    pub fn redis() -> Self {
        let redis = Redis::start().unwrap();
        Self::with(&StoreOptions::new(&redis.url()), Some(redis))
    }

    /// With a store of these options that knows three policies of the domain `shop`.
    pub fn with(options: &StoreOptions, redis: Option<Redis>) -> Self {
        let fleet = Self::silent(options, redis);
        fleet.tell("shop", &["per-caller", "log-ins", "per-key"]);
        fleet
    }

    /// With a store that no filter has called yet.
    pub fn silent(options: &StoreOptions, redis: Option<Redis>) -> Self {
        let store =
            StoreProcess::start_with(&options.clone().program(env!("CARGO_BIN_EXE_quotagate")))
                .unwrap();
        let ready = || Ok(http::get(store.admin_port(), "/readyz")?.status == 200);
        wait::until_true("the store is ready", PATIENCE, ready).unwrap();
        Self { store, redis }
    }

    /// Reports policies without their partitions, as a filter does.
    pub fn tell(&self, domain: &str, policies: &[&str]) {
        self.tell_of(domain, policies, None);
    }

    /// Reports policies with these partitions, as a filter does.
    pub fn tell_of(
        &self,
        domain: &str,
        policies: &[&str],
        partition_by: Option<&[PartitionEntry]>,
    ) {
        let policies = policies.iter().map(|name| PolicyReport {
            partition_by: partition_by.map(<[_]>::to_vec),
            ..policy(name)
        });
        self.report(domain, policies.collect());
    }

    /// Reports policies, as a filter does.
    pub fn report(&self, domain: &str, policies: Vec<PolicyReport>) {
        self.send(domain, &Report { policies, ..Report::default() });
    }

    /// Sends a report, as a filter does.
    pub fn send(&self, domain: &str, report: &Report) {
        let report = serde_json::to_vec(report).unwrap();
        let request = Request::post(&format!("{TELEMETRY_PATH}?domain={domain}"), &report);
        let response = Client::connect(self.store.port()).unwrap().send(&request).unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
    }

    /// Reserves units, as a filter does, and returns the grant.
    pub fn reserve(&self, policy: &str, partition: &str, quota: u64, want: u64) -> Value {
        let reservation = json!({
            "key": format!("shop:{policy}:{{{partition}}}"), "window_s": 366 * 86_400, "quota": quota,
            "want": want, "min": 1,
        });
        self.ask(&reservation)
    }

    /// Takes slots for a worker of this proxy, as a filter does, and returns the grant. The worker
    /// holds no others then.
    pub fn hold(&self, policy: &str, partition: &str, limit: u64, proxy: &str, want: u64) -> Value {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let holding = json!({
            "worker": format!("{proxy}.0.1"), "serial": SERIAL.fetch_add(1, Relaxed), "held": 0,
            "waiting": want, "longest_ms": 8_000,
        });
        self.ask(&json!({
            "key": format!("shop:{policy}:{{{partition}}}"), "kind": "in_flight", "quota": limit,
            "want": want, "min": 1, "holding": holding,
        }))
    }

    fn ask(&self, reservation: &Value) -> Value {
        let body = json!({"budget_ms": 20000, "reservations": [reservation]}).to_string();
        let request = Request::post("/v1/reserve", body.as_bytes())
            .header("content-type", "application/json");
        let response = Client::connect(self.store.port()).unwrap().send(&request).unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        response.json().unwrap()["grants"][0].clone()
    }

    /// Charges units to the counter of such a grant.
    pub fn charge(&self, policy: &str, partition: &str, grant: &Value, units: u64) {
        let charge = json!({
            "key": format!("shop:{policy}:{{{partition}}}"), "window_s": 366 * 86_400,
            "window": grant["window"], "units": units,
        });
        let body = json!({"budget_ms": 20000, "charges": [charge], "reservations": []}).to_string();
        let request = Request::post("/v1/reserve", body.as_bytes())
            .header("content-type", "application/json");
        let response = Client::connect(self.store.port()).unwrap().send(&request).unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
    }

    pub fn admin(&self) -> String {
        format!("127.0.0.1:{}", self.store.admin_port())
    }

    /// Runs `quotagate ARGUMENTS` on this store.
    pub fn run(&self, arguments: &[&str]) -> Done {
        run(command(arguments).env("QUOTAGATE_ADMIN", self.admin()), b"")
    }

    /// Runs it and asserts that it succeeds.
    pub fn done(&self, arguments: &[&str]) -> Done {
        let done = self.run(arguments);
        assert_eq!(done.status, 0, "{arguments:?}: {done:?}");
        done
    }

    /// Runs it with `--json` and parses its output.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let done = self.done(&[arguments, &["--json"]].concat());
        assert!(done.out.ends_with('\n') && done.out.lines().count() == 1, "{done:?}");
        assert_eq!(done.err, "");
        serde_json::from_str(&done.out).unwrap()
    }
}

/// A policy as a filter reports it, without its partitions.
pub fn policy(name: &str) -> PolicyReport {
    PolicyReport {
        name: name.to_owned(),
        quota: 1000,
        kind: Kind::Fixed,
        window_s: 366 * 86_400,
        stagger: false,
        mode: Mode::Enforce,
        on_failure: OnFailure::Allow,
        partition_by: None,
        tiers: false,
        overrides: DocumentOverrides::None,
        settles: false,
        admitted: 0,
        refused: 0,
        shadow_refused: 0,
        marked: 0,
        missing_identity: 0,
        store_error: 0,
        settled_if_missing: 0,
    }
}

/// The command with an environment of its own.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quotagate"));
    command.args(arguments).env_clear().env("USER", "ann").env("TERM", "xterm");
    command
}

/// Runs a command with this input.
pub fn run(command: &mut Command, input: &[u8]) -> Done {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command may have closed its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    Done {
        status: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs the commands after `Undo it` in a shell, unchanged.
pub fn undo(fleet: &Fleet, done: &Done) {
    let line = done.err.lines().find(|line| line.starts_with("Undo it")).unwrap();
    let (_, commands) = line.split_once(": ").unwrap();
    paste(fleet, commands);
}

/// Runs commands in a shell, as an operator pastes them, and asserts that they succeed.
pub fn paste(fleet: &Fleet, commands: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_quotagate"));
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", commands])
        .env("QUOTAGATE_ADMIN", fleet.admin())
        .env("PATH", program.parent().unwrap());
    let done = run(&mut shell, b"");
    assert_eq!(done.status, 0, "{commands}: {done:?}");
}

/// The cells of the row that begins with `first`. Columns are two spaces apart.
pub fn row(table: &str, first: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.trim().split("  ").next() == Some(first));
    let line = line.unwrap_or_else(|| panic!("no row {first}:\n{table}"));
    line.split("  ").map(|cell| cell.trim().to_owned()).filter(|cell| !cell.is_empty()).collect()
}
