//! The built library, as Envoy looks at it.

use std::{env, fs};

use object::{LittleEndian, Object, ObjectSymbol, read::elf::ElfFile64};

/// The hooks of an HTTP filter that Envoy 1.38 to 1.40 resolves when it reads a configuration. It
/// refuses the listener if one is missing.
const HOOKS: [&str; 25] = [
    "program_init",
    "http_filter_config_new",
    "http_filter_config_destroy",
    "http_filter_config_scheduled",
    "http_filter_per_route_config_new",
    "http_filter_per_route_config_destroy",
    "http_filter_new",
    "http_filter_request_headers",
    "http_filter_request_body",
    "http_filter_request_trailers",
    "http_filter_response_headers",
    "http_filter_response_body",
    "http_filter_response_trailers",
    "http_filter_stream_complete",
    "http_filter_destroy",
    "http_filter_scheduled",
    "http_filter_http_callout_done",
    "http_filter_http_stream_headers",
    "http_filter_http_stream_data",
    "http_filter_http_stream_trailers",
    "http_filter_http_stream_complete",
    "http_filter_http_stream_reset",
    "http_filter_downstream_above_write_buffer_high_watermark",
    "http_filter_downstream_below_write_buffer_low_watermark",
    "http_filter_local_reply",
];

#[test]
fn every_hook_that_envoy_resolves_is_exported_and_nothing_else() {
    // Cargo builds the library for this test, beside it.
    let library = env::current_exe().unwrap().with_file_name("libquotagate_native.so");
    let bytes = fs::read(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let file = ElfFile64::<LittleEndian>::parse(&*bytes).unwrap();
    let exported: Vec<&str> = file
        .dynamic_symbols()
        .filter(ObjectSymbol::is_definition)
        .map(|symbol| symbol.name().unwrap())
        .collect();
    for hook in HOOKS {
        let name = format!("envoy_dynamic_module_on_{hook}");
        assert!(exported.contains(&name.as_str()), "{name} is missing");
    }
    let others: Vec<&&str> =
        exported.iter().filter(|name| !name.starts_with("envoy_dynamic_module_on_")).collect();
    assert!(others.is_empty(), "{others:?}");
}
