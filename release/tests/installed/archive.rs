//! The archive, unpacked in an old Debian: the command, the store, and both forms of the filter in
//! the real Envoy.

use std::{fs, time::Duration};

use anyhow::{Context, Result};
use quotagate_support::{
    envoy::{EnvoyOptions, Form},
    http::{self, Client, Request},
    process::Process,
    tools,
    upstream::Upstream,
};
use serde_json::Value;

use crate::{
    artifacts::{self, ARCHITECTURE, VERSION},
    debian::{Debian, Suite},
    programs::{needed, run, show},
    store::Store,
};

const START: Duration = Duration::from_secs(60);

/// An old Debian with the archive in `/opt`.
fn installed() -> Result<Debian> {
    let debian = Debian::start(Suite::Bullseye)?;
    let archive = artifacts::file(&format!("quotagate-{VERSION}-linux-{ARCHITECTURE}.tar.gz"))?;
    fs::copy(archive, debian.path("opt/quotagate.tar.gz"))?;
    debian.run("tar -xzf /opt/quotagate.tar.gz -C /opt")?;
    Ok(debian)
}

/// A path inside of the archive.
fn unpacked(path: &str) -> String {
    format!("/opt/quotagate-{VERSION}/{path}")
}

/// Starts Envoy inside, and sends six requests. The quota of the shipped configuration is five.
fn statuses(debian: &Debian, options: &EnvoyOptions) -> Result<Vec<u16>> {
    let config = serde_json::to_vec(&options.config()?)?;
    fs::write(debian.path("opt/envoy.json"), config)?;
    fs::copy(tools::envoy()?, debian.path("opt/envoy"))?;
    let mut command = debian.command("/opt/envoy")?;
    command.env("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", unpacked("lib"));
    // A hot restart would need /dev/shm.
    command.args(["--config-path", "/opt/envoy.json", "--disable-hot-restart"]);
    command.args(["--admin-address-path", "/opt/admin", "--concurrency", "1"]);
    command.args(["--log-level", "warn"]);
    let directory = tempfile::tempdir()?;
    let mut envoy = Process::spawn("Envoy", &mut command, &directory.path().join("log"))?;
    let port = envoy.wait_until("Envoy to be ready", START, |_| {
        let admin = fs::read_to_string(debian.path("opt/admin"))?;
        let admin: u16 = admin.rsplit(':').next().unwrap_or_default().trim().parse()?;
        if http::get(admin, "/ready")?.status != 200 {
            return Ok(None);
        }
        let listeners = http::get(admin, "/listeners?format=json")?.json()?;
        let port = "/listener_statuses/0/local_address/socket_address/port_value";
        let port = listeners.pointer(port).and_then(Value::as_u64).context("no listener yet")?;
        Ok(Some(u16::try_from(port)?))
    })?;
    let mut client = Client::connect(port)?;
    (0..6).map(|_| Ok(client.send(&Request::get("/"))?.status)).collect()
}

#[test]
fn command_and_store_run_under_an_old_glibc() {
    let debian = installed().unwrap();
    let quotagate = unpacked("bin/quotagate");
    let mut printed = debian.run("ldd --version | head -n 1").unwrap();
    let version = debian.run(&format!("{quotagate} --version")).unwrap();
    assert!(version.contains(&format!("quotagate {VERSION}")), "{version}");
    printed.push_str(&version);
    let native = quotagate_support::paths::native_config();
    fs::copy(native, debian.path("opt/native.yaml")).unwrap();
    printed.push_str(&debian.run(&format!("{quotagate} check /opt/native.yaml")).unwrap());
    let mut command = debian.command(&quotagate).unwrap();
    command.arg("serve");
    printed.push_str(&Store::start(command, "memory:").unwrap().counts_and_stops().unwrap());
    show("the archive in Debian 11", &printed).unwrap();
}

#[test]
fn both_forms_of_the_filter_work_in_envoy_under_an_old_glibc() {
    let debian = installed().unwrap();
    let upstream = Upstream::start().unwrap();
    let options = EnvoyOptions::new(upstream.port(), 1).form(Form::Native).redis("memory:");
    let native = statuses(&debian, &options).unwrap();
    assert_eq!(native, [200, 200, 200, 200, 200, 429]);

    fs::remove_file(debian.path("opt/admin")).unwrap();
    let mut command = debian.command(&unpacked("bin/quotagate")).unwrap();
    command.arg("serve");
    let store = Store::start(command, "memory:").unwrap();
    let mut options = EnvoyOptions::new(upstream.port(), store.port()).form(Form::Wasm);
    options.wasm = unpacked("wasm/quotagate.wasm").into();
    let wasm = statuses(&debian, &options).unwrap();
    assert_eq!(wasm, [200, 200, 200, 200, 200, 429]);
    let printed = format!("libquotagate.so: {native:?}\nquotagate.wasm with its store: {wasm:?}");
    show("the archive's filters, in Envoy in Debian 11", &printed).unwrap();
}

#[test]
fn command_of_the_other_architecture_runs_in_an_emulator() {
    if ARCHITECTURE == "aarch64" {
        return show("aarch64 is this machine: no emulator", "").unwrap();
    }
    let archive = artifacts::file(&format!("quotagate-{VERSION}-linux-aarch64.tar.gz"));
    let Ok(archive) = archive else {
        return show("nothing for aarch64: not in dist/release", "").unwrap();
    };
    let folder = tempfile::tempdir().unwrap();
    let mut tar = needed("tar", "tar").unwrap();
    run(tar.arg("-xzf").arg(archive).arg("-C").arg(folder.path())).unwrap();
    let quotagate = folder.path().join(format!("quotagate-{VERSION}/bin/quotagate"));
    let emulated = || {
        let mut command = needed("qemu-aarch64-static", "qemu-user-static").unwrap();
        command.arg(&quotagate);
        command
    };
    let mut printed = run(emulated().arg("--version")).unwrap();
    assert!(printed.contains(&format!("quotagate {VERSION}")), "{printed}");
    let mut command = emulated();
    command.arg("serve");
    printed.push_str(&Store::start(command, "memory:").unwrap().counts_and_stops().unwrap());
    show("the archive for aarch64, in qemu", &printed).unwrap();
}
