//! Finds the programs that the tests and the demo start.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use crate::paths;

/// The Envoy that the project is tested with, and that `cargo xtask setup` fetches.
pub const ENVOY_VERSION: &str = "1.40.0";

/// A Python package that `cargo xtask setup` installs as a whole.
pub struct Package {
    /// Its name on the index.
    pub name: &'static str,
    /// The name of its module.
    pub module: &'static str,
    /// Its version.
    pub version: &'static str,
}

impl Package {
    /// Where its files are.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        paths::tools().join(format!("{}-{}", self.name, self.version))
    }

    /// The folder of its module.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn installed(&self) -> Result<PathBuf> {
        let folder = self.folder().join(self.module);
        if !folder.is_dir() {
            bail!("{} {} is not installed: run `cargo xtask setup`", self.name, self.version);
        }
        Ok(folder)
    }
}

/// Helm's own code, as a library.
pub const HELM: Package =
    Package { name: "helm-python-sdk", module: "helm_python", version: "0.2.2" };
/// The JSON schemas of every version of Kubernetes. Only its data is used.
pub const KUBERNETES_SCHEMAS: Package =
    Package { name: "kubernetes-validate", module: "kubernetes_validate", version: "1.37.0" };

/// The checks of axe-core for accessible pages. Only its script is used.
pub const AXE: Package =
    Package { name: "axe-playwright-python", module: "axe_playwright_python", version: "0.1.8" };

/// The release of Debian whose Docker Compose `cargo xtask setup` fetches where there is none.
pub const COMPOSE_RELEASE: &str = "trixie";

/// Where `cargo xtask setup` puts a program that it fetches in a pinned version.
#[must_use]
pub fn fetched(program: &str, version: &str) -> PathBuf {
    paths::tools().join(format!("{program}-{version}")).join(program)
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
    let fetched = fetched("envoy", ENVOY_VERSION);
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

/// Chromium, by one of its names, and its driver `chromedriver`, on PATH.
///
/// # Errors
/// When one of them is missing.
pub fn chromium() -> Result<(PathBuf, PathBuf)> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let browser = names.into_iter().find_map(on_path);
    match (browser, on_path("chromedriver")) {
        (Some(browser), Some(driver)) => Ok((browser, driver)),
        (None, _) => bail!("chromium is not on PATH: run `cargo xtask setup`"),
        (_, None) => bail!("chromedriver is not on PATH: run `cargo xtask setup`"),
    }
}

/// `wrk` on PATH, which sends the load of `cargo xtask bench`.
///
/// # Errors
/// When there is none.
pub fn wrk() -> Result<PathBuf> {
    match on_path("wrk") {
        Some(path) => Ok(path),
        None => bail!("wrk is not on PATH: run `cargo xtask setup --bench`"),
    }
}

/// `valgrind` and `h2load` on PATH.
///
/// # Errors
/// When one of them is missing.
pub fn instructions() -> Result<(PathBuf, PathBuf)> {
    match (on_path("valgrind"), on_path("h2load")) {
        (Some(valgrind), Some(h2load)) => Ok((valgrind, h2load)),
        _ => bail!("valgrind or h2load is not on PATH: run `cargo xtask setup --bench`"),
    }
}

/// The words that begin a command of Docker Compose 2: the plugin, else the program on PATH, else
/// the one that `cargo xtask setup` fetched.
///
/// # Errors
/// When there is none. Compose 1 does not read our files.
pub fn compose() -> Result<Vec<OsString>> {
    let fetched = fetched("docker-compose", COMPOSE_RELEASE).into_os_string();
    let candidates = [
        vec![OsString::from("docker"), OsString::from("compose")],
        vec![OsString::from("docker-compose")],
        vec![fetched],
    ];
    for words in candidates {
        let [program, arguments @ ..] = words.as_slice() else { continue };
        let output = Command::new(program).args(arguments).args(["version", "--short"]).output();
        if output.is_ok_and(|output| output.status.success() && is_compose_2(&output.stdout)) {
            return Ok(words);
        }
    }
    bail!("there is no Docker Compose 2 on this machine: run `cargo xtask setup --compose`")
}

/// Whether this is the version of Compose 2 or later: `2.26.1-4`, `v2.30.0`.
fn is_compose_2(version: &[u8]) -> bool {
    let text = String::from_utf8_lossy(version);
    let major = text.trim().trim_start_matches('v').split('.').next();
    major.and_then(|major| major.parse::<u32>().ok()).is_some_and(|major| major >= 2)
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
    fn compose_1_is_not_used() {
        for version in ["2.26.1-4\n", "v2.30.0", "3.0.0"] {
            assert!(is_compose_2(version.as_bytes()), "{version}");
        }
        for version in ["1.29.2\n", "", "docker-compose version 2", "unknown"] {
            assert!(!is_compose_2(version.as_bytes()), "{version}");
        }
    }

    #[test]
    fn programs_are_found_on_path() {
        assert!(on_path("sh").is_some());
        assert!(on_path("no-such-program-here").is_none());
    }
}
