//! The callbacks that the filter offers to the host.
//!
//! The SDK exports every callback of the ABI, and the host enters the module for each exported one:
//! for every piece of a body, for trailers, for the access log. Without the export it does not. So
//! two files are made of one module, and only one of them costs something for every body.
//!
//! Some callbacks of the SDK cannot express every answer that the host understands. The filter
//! exports its own instead (`src/host.rs`).

use anyhow::{Result, ensure};
use wasm_encoder::{ExportKind, ExportSection, Module, RawSection};
use wasmparser::{ExternalKind, Parser, Payload};

/// What a file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callbacks {
    /// Policies that read no bodies.
    Plain,
    /// Policies that read bodies, too.
    Bodies,
}

impl Callbacks {
    /// Callbacks that the host calls for every request or response although the filter does nothing
    /// in them.
    const fn unused(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[
                "proxy_on_log",
                "proxy_on_request_body",
                "proxy_on_request_trailers",
                "proxy_on_response_body",
            ],
            Self::Bodies => &["proxy_on_log"],
        }
    }

    /// The callbacks of the SDK that the filter replaces, and its replacements.
    const fn replaced(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Plain => &[("proxy_on_request_headers", "quotagate_on_request_headers")],
            Self::Bodies => &[
                ("proxy_on_request_headers", "quotagate_on_request_headers"),
                ("proxy_on_request_body", "quotagate_on_request_body"),
                ("proxy_on_configure", "quotagate_on_configure_with_bodies"),
            ],
        }
    }
}

/// The prefix of the filter's own callbacks.
const OWN: &str = "quotagate_";

/// The same module without useless exports, and with the filter's own callbacks in place of the
/// SDK's.
///
/// # Errors
/// When it is no Wasm module, or a callback of the filter's own is missing.
pub fn prune(module: &[u8], callbacks: Callbacks) -> Result<Vec<u8>> {
    let mut pruned = Module::new();
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload?;
        if let Payload::ExportSection(exports) = payload {
            let mut kept = ExportSection::new();
            let exports = exports.into_iter().collect::<Result<Vec<_>, _>>()?;
            let own = |name: &str| exports.iter().find(|export| export.name == name);
            for (_, name) in callbacks.replaced() {
                ensure!(own(name).is_some(), "it exports no {name}");
            }
            for export in &exports {
                let name = export.name;
                let replaced = callbacks.replaced().iter().find(|(replaced, _)| *replaced == name);
                if let Some(replacement) = replaced.and_then(|(_, replacement)| own(replacement)) {
                    kept.export(name, ExportKind::Func, replacement.index);
                } else if !name.starts_with(OWN) && !callbacks.unused().contains(&name) {
                    kept.export(name, kind(export.kind), export.index);
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

    const HEADERS: &str = "proxy_on_request_headers";
    const OWN_HEADERS: &str = "quotagate_on_request_headers";

    /// The exports of the pruned module, and the number of its functions.
    fn pruned(names: &[&str], callbacks: Callbacks) -> (Vec<(String, u32)>, usize) {
        let pruned = prune(&module(names), callbacks).unwrap();
        let (mut exports, mut bodies) = (Vec::new(), 0);
        for payload in Parser::new(0).parse_all(&pruned) {
            match payload.unwrap() {
                Payload::ExportSection(section) => {
                    exports.extend(section.into_iter().map(|export| {
                        let export = export.unwrap();
                        (export.name.to_owned(), export.index)
                    }));
                }
                Payload::CodeSectionEntry(_) => bodies += 1,
                _ => {}
            }
        }
        (exports, bodies)
    }

    fn names(exports: &[(&str, u32)]) -> Vec<(String, u32)> {
        exports.iter().map(|(name, index)| ((*name).to_owned(), *index)).collect()
    }

    #[test]
    fn unused_exports_are_dropped_and_the_filters_callbacks_replace_the_sdks() {
        let all = [
            "proxy_on_log",
            "proxy_on_done",
            HEADERS,
            "proxy_on_response_body",
            OWN_HEADERS,
            "proxy_on_request_body",
            "quotagate_on_request_body",
            "proxy_on_configure",
            "quotagate_on_configure_with_bodies",
        ];
        let (exports, bodies) = pruned(&all, Callbacks::Plain);
        assert_eq!(bodies, 9, "all else stays");
        let plain = [("memory", 0), ("proxy_on_done", 1), (HEADERS, 4), ("proxy_on_configure", 7)];
        assert_eq!(exports, names(&plain));
        let (exports, _) = pruned(&all, Callbacks::Bodies);
        let with_bodies = [
            ("memory", 0),
            ("proxy_on_done", 1),
            (HEADERS, 4),
            ("proxy_on_response_body", 3),
            ("proxy_on_request_body", 6),
            ("proxy_on_configure", 8),
        ];
        assert_eq!(exports, names(&with_bodies));
    }

    #[test]
    fn module_without_the_filters_callback_is_an_error() {
        let plain = |module: &[u8]| prune(module, Callbacks::Plain);
        assert!(plain(b"not Wasm").is_err());
        assert!(plain(&module(&[HEADERS])).unwrap_err().to_string().contains(OWN_HEADERS));
        let whole = module(&[OWN_HEADERS]);
        assert!(plain(whole.get(..whole.len() - 1).unwrap()).is_err());
        let error = prune(&whole, Callbacks::Bodies).unwrap_err().to_string();
        assert!(error.contains("quotagate_on_request_body"), "{error}");
    }
}
