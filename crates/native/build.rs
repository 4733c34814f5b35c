//! How the module is linked.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("linux") {
        return;
    }
    // The runtime thread runs the module's code until the process ends, so Envoy must not unload
    // it with its last configuration.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The module itself looks for Envoy's callbacks and names the one that is missing.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,lazy");
    // It finds those of the tests' Envoy in the same way.
    println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic");
}
