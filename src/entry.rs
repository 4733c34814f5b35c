//! The entry point of the module.

use proxy_wasm::types::LogLevel;

use crate::root::Root;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|id| Box::new(Root::new(id)));
}}
