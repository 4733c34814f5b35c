//! The callbacks that the filter offers to the host.
//!
//! The SDK exports every callback of the ABI, and the host enters the module for each exported one:
//! for every piece of a body, for trailers, for the access log. Without the export it does not.
//!
//! One callback of the SDK cannot express every answer that the host understands. The filter
//! exports its own instead.

use anyhow::{Result, bail};
use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};
use wasmparser::{ExternalKind, Parser, Payload};

/// Callbacks that the host calls for every request or response although the filter does nothing in
/// them.
const UNUSED: [&str; 4] = [
    "proxy_on_log",
    "proxy_on_request_body",
    "proxy_on_request_trailers",
    "proxy_on_response_body",
];

/// The callback of the SDK that the filter replaces.
const REPLACED: &str = "proxy_on_request_headers";
/// The filter's replacement (`src/host.rs`).
const REPLACEMENT: &str = "quotagate_on_request_headers";

/// The same module without useless exports, and with the filter's own callback in place of the
/// SDK's.
///
/// # Errors
/// When it is no Wasm module, or the filter's own callback is missing.
pub fn prune(module: &[u8]) -> Result<Vec<u8>> {
    let mut pruned = Module::new();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload?;
        if let Payload::ExportSection(exports) = payload {
            let mut kept = ExportSection::new();
            let exports = exports.into_iter().collect::<Result<Vec<_>, _>>()?;
            let Some(replacement) = exports.iter().find(|export| export.name == REPLACEMENT) else {
                bail!("it exports no {REPLACEMENT}");
            };
            for export in &exports {
                match export.name {
                    REPLACEMENT => {}
                    REPLACED => {
                        kept.export(REPLACED, ExportKind::Func, replacement.index);
                    }
                    name if UNUSED.contains(&name) => {}
                    name => {
                        kept.export(name, kind(export.kind), export.index);
                    }
                }
            }
            pruned.section(&kept);
        } else if let Some((id, range)) = payload.as_section() {
            let range = usize::try_from(range.start)?..usize::try_from(range.end)?;
            pruned.section(&RawSection { id, data: module.get(range).unwrap_or_default() });
        }
    }
    Ok(pruned.finish())
}

const fn kind(kind: ExternalKind) -> ExportKind {
    match kind {
        ExternalKind::Func | ExternalKind::FuncExact => ExportKind::Func,
        ExternalKind::Table => ExportKind::Table,
        ExternalKind::Memory => ExportKind::Memory,
        ExternalKind::Global => ExportKind::Global,
        ExternalKind::Tag => ExportKind::Tag,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasm_encoder::{
        CodeSection, Function, FunctionSection, MemorySection, MemoryType, TypeSection,
    };

    /// A module that exports its memory, and one function under each of these names.
    fn module(names: &[&str]) -> Vec<u8> {
        let mut types = TypeSection::new();
        types.ty().function([], []);
        let (mut functions, mut code, mut exports) =
            (FunctionSection::new(), CodeSection::new(), ExportSection::new());
        let mut memories = MemorySection::new();
        memories.memory(MemoryType {
            minimum: 1,
            maximum: None,
            memory64: false,
            shared: false,
            page_size_log2: None,
        });
        exports.export("memory", ExportKind::Memory, 0);
        for (index, name) in (0..).zip(names) {
            functions.function(0);
            exports.export(name, ExportKind::Func, index);
            let mut body = Function::new([]);
            body.instructions().end();
            code.function(&body);
        }
        let mut module = Module::new();
        module
            .section(&types)
            .section(&functions)
            .section(&memories)
            .section(&exports)
            .section(&code);
        module.finish()
    }

    #[test]
    fn unused_exports_are_dropped_and_the_filters_callback_replaces_the_sdks() {
        let names =
            ["proxy_on_log", "proxy_on_done", REPLACED, "proxy_on_response_body", REPLACEMENT];
        let pruned = prune(&module(&names)).unwrap();
        let bodies = Parser::new(0)
            .parse_all(&pruned)
            .filter(|payload| matches!(payload, Ok(Payload::CodeSectionEntry(_))));
        assert_eq!(bodies.count(), 5, "all else stays");
        let exports =
            Parser::new(0).parse_all(&pruned).find_map(|payload| match payload.unwrap() {
                Payload::ExportSection(exports) => {
                    Some(exports.into_iter().map(|e| e.unwrap()).collect::<Vec<_>>())
                }
                _ => None,
            });
        let exports: Vec<_> =
            exports.unwrap().iter().map(|export| (export.name, export.index)).collect();
        assert_eq!(exports, [("memory", 0), ("proxy_on_done", 1), (REPLACED, 4)]);
    }

    #[test]
    fn module_without_the_filters_callback_is_an_error() {
        assert!(prune(b"not Wasm").is_err());
        assert!(prune(&module(&[REPLACED])).unwrap_err().to_string().contains(REPLACEMENT));
        let whole = module(&[REPLACEMENT]);
        assert!(prune(whole.get(..whole.len() - 1).unwrap()).is_err());
    }
}
