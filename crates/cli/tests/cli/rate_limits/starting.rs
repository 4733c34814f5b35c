//! Services that are started as the original is: from variables alone, several on a machine, and
//! where there is IPv6 alone.

use std::path::Path;
use std::process::Command;

use quotagate_support::process::Process;
use quotagate_support::{http, ports, wait};

use super::PATIENCE;

const RULES: &str =
    "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1000}}]\n";

/// The service with the variables of the original, on ports that it shares with others.
fn command(mut of: Command, root: &Path, [grpc, http, debug]: [u16; 3]) -> Command {
    of.arg("ratelimit").env("RUNTIME_ROOT", root).env("RUNTIME_SUBDIRECTORY", "/rules");
    of.env("QUOTAGATE_STORE", "memory:").env("QUOTAGATE_DRAIN", "0s");
    for (name, port) in [("GRPC_PORT", grpc), ("PORT", http), ("DEBUG_PORT", debug)] {
        of.env(name, port.to_string());
    }
    of
}

fn start(command: &mut Command, log: &Path) -> Process {
    let mut process = Process::spawn("the service", command, log).unwrap();
    let ready = |process: &Process| Ok(process.log().contains("listening on").then_some(()));
    process.wait_until("its ready line", PATIENCE, ready).unwrap();
    process
}

/// The folder of the rules, beside which the logs are. The original reads this name, too.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("rules")).unwrap();
    std::fs::write(root.path().join("rules/config.yaml"), RULES).unwrap();
    root
}

#[test]
fn second_service_with_the_same_variables_starts() {
    let root = root();
    let ports = [(); 3].map(|()| ports::free().unwrap());
    let service = |log: &str| {
        let of = Command::new(env!("CARGO_BIN_EXE_quotagate"));
        start(&mut command(of, root.path(), ports), &root.path().join(log))
    };
    let (first, second) = (service("first.log"), service("second.log"));
    let log = second.log();
    assert!(
        log.contains("port 9181 is taken, so operators are served on http://127.0.0.1:"),
        "{log}"
    );
    assert!(
        log.contains("--debug: cannot listen on") && log.contains("goes on without it"),
        "{log}"
    );
    drop(first);
    wait::until_true("the second one answers", PATIENCE, || {
        Ok(http::get(ports[1], "/healthcheck").is_ok_and(|answer| answer.status == 200))
    })
    .unwrap();
}

/// A network without IPv4, not even on its loopback interface. Needs root.
struct Ipv6Network(String);

impl Ipv6Network {
    fn new() -> Self {
        let network = Self(format!("qgcli{}", std::process::id()));
        let Self(name) = &network;
        for arguments in [
            &["netns", "add", name][..],
            &["-n", name, "link", "set", "lo", "up"],
            &["-n", name, "addr", "del", "127.0.0.1/8", "dev", "lo"],
        ] {
            let status = Command::new("ip").args(arguments).status().unwrap();
            assert!(status.success(), "`ip {}` failed: it needs root", arguments.join(" "));
        }
        network
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0, program]);
        command
    }
}

impl Drop for Ipv6Network {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

#[test]
fn service_listens_where_there_is_ipv6_alone() {
    let (network, root) = (Ipv6Network::new(), root());
    let of = network.command(env!("CARGO_BIN_EXE_quotagate"));
    let mut command = command(of, root.path(), [8081, 8080, 6070]);
    command.env("USE_PROMETHEUS", "true").env("USE_STATSD", "false");
    let service = start(&mut command, &root.path().join("log"));
    for url in [
        "http://[::1]:8080/healthcheck",
        "http://[::1]:6070/rlconfig",
        "http://[::1]:9090/metrics",
        "http://[::1]:9181/readyz",
    ] {
        let answer = network.command("curl").args(["-sSf", url]).output().unwrap();
        assert!(answer.status.success(), "{url}: {answer:?}\n{}", service.log());
    }
}
