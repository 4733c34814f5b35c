//! The programs that come from the user's system.

use std::{path::PathBuf, process::Command};

use quotagate_workspace::{task, tools};

use super::{Part, pip};

/// A program and the packages that contain it.
pub struct Program {
    /// Its name in messages.
    pub name: &'static str,
    /// The part that it belongs to.
    pub part: Part,
    /// Its path, if it is installed.
    pub find: fn() -> Option<PathBuf>,
    /// Debian's and Ubuntu's packages.
    pub packages: &'static [&'static str],
    /// The service that the package starts, which setup stops again.
    pub service: Option<&'static str>,
    /// How to get it on other systems.
    pub elsewhere: &'static str,
}

/// All of them.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "pip for Python 3",
        part: Part::Envoy,
        // Only a machine without Envoy needs it.
        find: || tools::envoy().ok().or_else(pip::find),
        packages: &["python3-pip"],
        service: None,
        elsewhere: "or install Envoy yourself and set ENVOY to its path",
    },
    Program {
        name: "pip for Python 3",
        part: Part::Chart,
        // Only a machine without the packages needs it.
        find: || {
            let installed = pip::CHART.iter().all(|wheel| wheel.package.folder().is_dir());
            installed.then(|| pip::CHART[0].package.folder()).or_else(pip::find)
        },
        packages: &["python3-pip"],
        service: None,
        elsewhere: "the tests of the chart need it",
    },
    Program {
        name: "pip for Python 3",
        part: Part::Chromium,
        // Only a machine without the package needs it.
        find: || {
            let folder = pip::AXE.package.folder();
            Some(folder).filter(|folder| folder.is_dir()).or_else(pip::find)
        },
        packages: &["python3-pip"],
        service: None,
        elsewhere: "the test of the page with axe-core needs it",
    },
    Program {
        name: "redis-server (7.0 or newer)",
        part: Part::Redis,
        find: || tools::redis_server().ok(),
        packages: &["redis-server"],
        service: Some("redis-server"),
        elsewhere: "macOS: `brew install redis`",
    },
    Program {
        name: "chromium with chromedriver",
        part: Part::Chromium,
        find: || tools::chromium().ok().map(|(browser, _)| browser),
        packages: &["chromium", "chromium-driver"],
        service: None,
        elsewhere: "Fedora: `sudo dnf install chromium chromedriver`",
    },
    Program {
        name: "promtool (2.40 or newer)",
        part: Part::Promtool,
        find: || tools::on_path("promtool"),
        packages: &["prometheus"],
        service: Some("prometheus"),
        elsewhere: "macOS: `brew install prometheus`",
    },
    Program {
        name: "minisign",
        part: Part::Minisign,
        find: || tools::on_path("minisign"),
        packages: &["minisign"],
        service: None,
        elsewhere: "macOS: `brew install minisign`",
    },
    Program {
        name: "curl (7.84 or newer)",
        part: Part::Examples,
        find: || tools::on_path("curl"),
        packages: &["curl"],
        service: None,
        elsewhere: "macOS: `brew install curl`",
    },
    Program {
        name: "openssl",
        part: Part::Examples,
        find: || tools::on_path("openssl"),
        packages: &["openssl"],
        service: None,
        elsewhere: "macOS: `brew install openssl`",
    },
    Program {
        name: "ip",
        part: Part::Network,
        find: || tools::on_path("ip"),
        packages: &["iproute2"],
        service: None,
        elsewhere: "faults of a network need it, and Linux",
    },
    Program {
        name: "docker, with an engine that runs or that can be started",
        part: Part::Docker,
        find: docker,
        packages: &["docker.io"],
        service: Some("docker"),
        elsewhere: "or install Docker Engine and its command",
    },
    Program {
        name: "wrk (4.1 or newer)",
        part: Part::Bench,
        find: || tools::wrk().ok(),
        packages: &["wrk"],
        service: None,
        elsewhere: "macOS: `brew install wrk`",
    },
    Program {
        name: "valgrind (3.19 or newer)",
        part: Part::Bench,
        find: || tools::on_path("valgrind"),
        packages: &["valgrind"],
        service: None,
        elsewhere: "Fedora: `sudo dnf install valgrind`",
    },
    Program {
        name: "h2load",
        part: Part::Bench,
        find: || tools::on_path("h2load"),
        packages: &["nghttp2-client"],
        service: None,
        elsewhere: "Fedora: `sudo dnf install nghttp2`",
    },
    Program {
        name: "docker-registry",
        part: Part::Release,
        find: || tools::on_path("docker-registry"),
        packages: &["docker-registry"],
        service: Some("docker-registry"),
        elsewhere: "or build `registry` of the project distribution",
    },
    Program {
        name: "skopeo",
        part: Part::Images,
        find: || tools::on_path("skopeo"),
        packages: &["skopeo"],
        service: None,
        elsewhere: "Fedora: `sudo dnf install skopeo`",
    },
    Program {
        name: "umoci",
        part: Part::Release,
        find: || tools::on_path("umoci"),
        packages: &["umoci"],
        service: None,
        elsewhere: "Fedora: `sudo dnf install umoci`",
    },
    Program {
        name: "debootstrap",
        part: Part::Images,
        find: || tools::on_path("debootstrap"),
        packages: &["debootstrap"],
        service: None,
        elsewhere: "Fedora: `sudo dnf install debootstrap`",
    },
    Program {
        name: "qemu-aarch64-static",
        part: Part::Emulator,
        find: || tools::on_path("qemu-aarch64-static"),
        packages: &["qemu-user-static"],
        service: None,
        elsewhere: "Fedora: `sudo dnf install qemu-user-static`",
    },
    Program {
        name: "etcd",
        part: Part::Mesh,
        find: || tools::on_path("etcd"),
        packages: &["etcd-server"],
        service: Some("etcd"),
        elsewhere: "macOS: `brew install etcd`",
    },
    Program {
        name: "kubectl (1.24 or newer)",
        part: Part::Mesh,
        find: kubectl,
        packages: &["kubernetes-client"],
        service: None,
        elsewhere: "Debian 12 packages 1.20, which is too old: see https://kubernetes.io/docs/tasks/tools/. Ubuntu: `sudo snap install kubectl --classic`",
    },
];

/// The command, if an engine answers it or `dockerd` is installed.
fn docker() -> Option<PathBuf> {
    let answers = || task::succeeds(Command::new("docker").arg("version"));
    tools::on_path("docker").filter(|_| tools::on_path("dockerd").is_some() || answers())
}

/// The command, if it knows `patch --subresource`, as from version 1.24 on.
fn kubectl() -> Option<PathBuf> {
    let found = tools::on_path("kubectl")?;
    let help = task::printed(Command::new(&found).args(["patch", "--help"])).ok()?;
    help.contains("--subresource").then_some(found)
}
