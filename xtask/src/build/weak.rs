//! Envoy's callbacks in a built module, as weak symbols.
//!
//! Rust refers to functions of other libraries in a way that the loader resolves at once, so an
//! Envoy that lacks one of them would refuse the module by the name of a symbol. A weak symbol may
//! be missing: the module loads, looks for all callbacks itself, and says which Envoy it needs.

use anyhow::{Context, Result};
use object::{
    LittleEndian, elf,
    read::elf::{ElfFile64, SectionHeader, Sym},
};

/// The prefix of Envoy's callbacks.
const CALLBACK: &[u8] = b"envoy_dynamic_module_callback_";
/// Where the binding of a symbol stands in its entry.
const INFO: usize = std::mem::offset_of!(elf::Sym64<LittleEndian>, st_info);

/// The module with weak callbacks.
///
/// # Errors
/// When it is no library.
pub fn weaken(module: &[u8]) -> Result<Vec<u8>> {
    let file = ElfFile64::<LittleEndian>::parse(module)?;
    let (endian, symbols) = (file.endian(), file.elf_dynamic_symbol_table());
    let table = file.elf_section_table().section(symbols.section())?;
    let start = usize::try_from(table.sh_offset(endian))?;
    let mut weak = module.to_vec();
    for (index, symbol) in symbols.iter().enumerate() {
        let name = symbols.symbol_name(endian, symbol)?;
        if symbol.is_undefined(endian) && name.starts_with(CALLBACK) {
            let info = start + index * size_of::<elf::Sym64<LittleEndian>>() + INFO;
            let info = weak.get_mut(info).context("a symbol outside the file")?;
            *info = (elf::STB_WEAK.0 << 4) | symbol.st_type().0;
        }
    }
    Ok(weak)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::{Object, ObjectSymbol};
    use std::process::Command;

    #[test]
    fn callbacks_become_weak_and_nothing_else_does() {
        let directory = tempfile::tempdir().unwrap();
        let (source, file) = (directory.path().join("a.rs"), directory.path().join("a.so"));
        let code = "unsafe extern \"C\" { fn envoy_dynamic_module_callback_a() -> u32; fn getpid() -> u32; }
            #[unsafe(no_mangle)] pub extern \"C\" fn f() -> u32
            { unsafe { envoy_dynamic_module_callback_a() + getpid() } }";
        std::fs::write(&source, code).unwrap();
        let mut rustc = Command::new("rustc");
        rustc.args(["--crate-type", "cdylib", "--edition", "2024", "-o"]).arg(&file).arg(&source);
        assert!(rustc.status().unwrap().success());
        let module = std::fs::read(&file).unwrap();
        let is_weak = |module: &[u8], name: &str| {
            let file = ElfFile64::<LittleEndian>::parse(module).unwrap();
            let mut symbols = file.dynamic_symbols();
            symbols.find(|symbol| symbol.name() == Ok(name)).unwrap().is_weak()
        };
        assert!(!is_weak(&module, "envoy_dynamic_module_callback_a"));
        let weak = weaken(&module).unwrap();
        assert!(is_weak(&weak, "envoy_dynamic_module_callback_a"));
        assert!(!is_weak(&weak, "getpid") && !is_weak(&weak, "f"));
        assert_eq!(weak.len(), module.len());
    }
}
