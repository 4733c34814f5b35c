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
    // The module looks these up by name at run time, so the test binary must export them. It
    // exports no others, because one test needs some to be missing.
    for name in [
        "set_filter_state_object",
        "get_filter_state_object",
        "set_buffer_limit",
        "get_buffer_limit",
        "filter_config_increment_counter",
    ] {
        let name = format!("envoy_dynamic_module_callback_http_{name}");
        println!("cargo::rustc-link-arg-tests=-Wl,--export-dynamic-symbol={name}");
    }
}
