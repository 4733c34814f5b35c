//! Where the source tree keeps what is built and fetched.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The variable that names the folder of the filter and the command to run: `dist` tests what
/// `cargo xtask build` made. By default tests run what `cargo xtask build --dev` made.
pub const PARTS: &str = "QUOTAGATE_PARTS";
/// The name of the filter in such a folder.
pub const FILTER: &str = "quotagate.wasm";
/// The name of the filter that reads bodies, too.
pub const BODIES_FILTER: &str = "quotagate-bodies.wasm";
/// The name of the native module in such a folder.
pub const MODULE: &str = "libquotagate.so";
/// The name of the command in such a folder.
pub const COMMAND: &str = "quotagate";
/// The name of the demo's program.
pub const DEMO: &str = "quotagate-demo";

/// The root of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// What people deploy, made by `cargo xtask build`.
#[must_use]
pub fn dist() -> PathBuf {
    root().join("dist")
}

/// What tests run, made by `cargo xtask build --dev`.
#[must_use]
pub fn tests() -> PathBuf {
    root().join("target").join("parts")
}

/// What the demo runs, made by `cargo xtask demo`.
#[must_use]
pub fn demo() -> PathBuf {
    tests().join("demo")
}

/// The Wasm filter that this process is to run.
#[must_use]
pub fn filter() -> PathBuf {
    parts().join(FILTER)
}

/// The Wasm filter that reads bodies, too.
#[must_use]
pub fn bodies_filter() -> PathBuf {
    parts().join(BODIES_FILTER)
}

/// The store and the commands that this process is to run.
#[must_use]
pub fn command() -> PathBuf {
    parts().join(COMMAND)
}

/// The native module that this process is to run.
#[must_use]
pub fn module() -> PathBuf {
    parts().join(MODULE)
}

/// The folder of the parts that this process is to run.
#[must_use]
pub fn parts() -> PathBuf {
    env::var_os(PARTS)
        .filter(|folder| !folder.is_empty())
        .map_or_else(tests, |folder| root().join(folder))
}

/// The filter with a request header that kills its VM. Never in `dist`.
#[must_use]
pub fn panicking_filter() -> PathBuf {
    tests().join("panicking.wasm")
}

/// The filter without batching, which `cargo xtask bench` compares with. Never in `dist`.
#[must_use]
pub fn unbatched_filter() -> PathBuf {
    root().join("target").join("bench").join("unbatched.wasm")
}

/// The filter without logic, which `cargo xtask bench` compares with. Never in `dist`.
#[must_use]
pub fn filter_without_logic() -> PathBuf {
    root().join("target").join("bench").join("without-logic.wasm")
}

/// What `cargo xtask setup` fetched. Always below the source tree, wherever Cargo builds.
#[must_use]
pub fn tools() -> PathBuf {
    root().join("target").join("tools")
}

/// What a release publishes, made by `cargo xtask package`.
#[must_use]
pub fn release() -> PathBuf {
    dist().join("release")
}

/// What `cargo xtask compose` keeps for its next run.
#[must_use]
pub fn compose() -> PathBuf {
    root().join("target").join("compose")
}

/// The Envoy configuration that the project ships for the Wasm filter.
#[must_use]
pub fn envoy_config() -> PathBuf {
    root().join("envoy").join("envoy.yaml")
}

/// The Envoy configuration that the project ships for the native module.
#[must_use]
pub fn native_config() -> PathBuf {
    root().join("envoy").join("native.yaml")
}
