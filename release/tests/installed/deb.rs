//! The Debian package, installed in Debian 12 and removed again.

use std::{collections::BTreeSet, fs};

use anyhow::Result;

use crate::{
    artifacts::{self, VERSION},
    debian::{Debian, Suite},
    programs::show,
    store::Store,
};

/// Where apt, dpkg, systemd and the account tools write for any package.
const SHARED: [&str; 7] = [
    "/etc/",
    "/run/systemd/",
    "/var/cache/",
    "/var/lib/apt/",
    "/var/lib/dpkg/",
    "/var/lib/systemd/",
    "/var/log/",
];

/// All files, except those of other programs.
fn files(debian: &Debian) -> Result<BTreeSet<String>> {
    let listed = debian.run("find / -xdev -not -path '/opt/*'")?;
    let ours = |path: &&str| {
        !SHARED.iter().any(|shared| path.starts_with(shared)) || path.contains("quotagate")
    };
    Ok(listed.lines().skip(1).filter(ours).map(str::to_owned).collect())
}

/// Runs apt-get without a terminal.
fn apt_get(debian: &Debian, words: &str) -> Result<String> {
    debian.run(&format!("apt-get -o Dpkg::Use-Pty=0 --yes --quiet --quiet {words}"))
}

#[test]
fn package_is_installed_works_and_leaves_no_file() {
    let debian = Debian::start(Suite::Bookworm).unwrap();
    let architecture = debian.run("dpkg --print-architecture").unwrap();
    let architecture = architecture.lines().last().unwrap();
    let package = artifacts::file(&format!("quotagate_{VERSION}-1_{architecture}.deb")).unwrap();
    fs::copy(package, debian.path("opt/quotagate.deb")).unwrap();
    let before = files(&debian).unwrap();
    apt_get(&debian, "install /opt/quotagate.deb").unwrap();

    let mut printed = String::new();
    let mut said = |line: &str, expected: &str| {
        let answer = debian.run(line).unwrap();
        assert!(answer.lines().skip(1).any(|line| line.contains(expected)), "{answer}");
        printed.push_str(&answer);
    };
    said("dpkg-query --show quotagate", &format!("quotagate\t{VERSION}-1"));
    said("quotagate --version", &format!("quotagate {VERSION}"));
    said("getent passwd quotagate", ":/usr/sbin/nologin");
    said("getent group quotagate-callers", "quotagate-callers:");
    said("ls -l /etc/quotagate/store.env", "-rw-r-----");
    // An upgrade keeps what the operator wrote into it.
    said("cat /var/lib/dpkg/info/quotagate.conffiles", "/etc/quotagate/store.env");
    said("systemctl is-enabled quotagate.service", "enabled");
    said("quotagate check /usr/share/doc/quotagate/examples/envoy.yaml", "valid");
    // They print what is wrong.
    for line in ["dpkg --verify quotagate", "systemd-analyze verify quotagate.service"] {
        let answer = debian.run(line).unwrap();
        assert_eq!(answer.lines().count(), 1, "{answer}");
        printed.push_str(&answer);
    }
    let mut command = debian.command("setpriv").unwrap();
    command.args(["--reuid=quotagate", "--regid=quotagate", "--groups=quotagate-callers"]);
    command.args(["/usr/bin/quotagate", "serve"]);
    printed.push_str(&Store::start(command, "memory:").unwrap().counts_and_stops().unwrap());

    printed.push_str(&apt_get(&debian, "purge quotagate").unwrap());
    let after = files(&debian).unwrap();
    let left: Vec<&String> = after.difference(&before).collect();
    assert!(left.is_empty(), "purge leaves {left:?}");
    show("the package in Debian 12", &printed).unwrap();
}
