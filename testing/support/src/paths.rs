//! Where things lie in the source tree.

use std::path::{Path, PathBuf};

/// The root of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// What `cargo xtask build` makes: `quotagate.wasm` and `quotagate`.
#[must_use]
pub fn dist() -> PathBuf {
    root().join("dist")
}

/// The filter.
#[must_use]
pub fn filter() -> PathBuf {
    dist().join("quotagate.wasm")
}

/// The filter with a request header that kills its VM; `cargo xtask test` builds it. Always below the source tree.
#[must_use]
pub fn panicking_filter() -> PathBuf {
    root().join("target").join("panic-hook").join("quotagate.wasm")
}

/// The store and the commands.
#[must_use]
pub fn command() -> PathBuf {
    dist().join("quotagate")
}

/// What `cargo xtask setup` fetched. Always below the source tree, wherever Cargo builds.
#[must_use]
pub fn tools() -> PathBuf {
    root().join("target").join("tools")
}

/// The Envoy configuration that the project ships.
#[must_use]
pub fn envoy_config() -> PathBuf {
    root().join("envoy").join("envoy.yaml")
}
