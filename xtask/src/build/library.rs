//! What a built module shows to the program that loads it: its exports, and the glibc it needs.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use object::{LittleEndian, Object, ObjectSymbol, read::elf::ElfFile64};

/// Envoy calls these, and nothing else of the module.
const HOOK: &str = "envoy_dynamic_module_on_";
/// Without it, Envoy refuses the module.
const FIRST: &str = "envoy_dynamic_module_on_program_init";
/// The prefix of the versions of glibc's symbols.
const GLIBC: &str = "GLIBC_";
/// A linker that packs relative relocations demands this version, and the first glibc that has it.
const PACKED: (&str, Glibc) = ("ABI_DT_RELR", Glibc(2, 36));

/// A version of glibc, such as 2.28.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc(pub u16, pub u16);

impl std::fmt::Display for Glibc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Checks a module, and returns the oldest glibc that has all the symbols it needs.
///
/// # Errors
/// When it is no module of Envoy, or exports something that is no hook: a symbol of the same name
/// in Envoy, or in another module, would collide with it.
pub fn check(module: &[u8]) -> Result<Glibc> {
    let file = ElfFile64::<LittleEndian>::parse(module)?;
    let mut hooks = Vec::new();
    let mut others = Vec::new();
    for symbol in file.dynamic_symbols().filter(ObjectSymbol::is_definition) {
        let name = symbol.name()?;
        if name.starts_with(HOOK) { hooks.push(name) } else { others.push(name) }
    }
    ensure!(hooks.contains(&FIRST), "it exports no {FIRST}");
    others.sort_unstable();
    ensure!(others.is_empty(), "it exports more than Envoy's hooks: {}", others.join(", "));
    glibc(&file)
}

fn glibc(file: &ElfFile64<'_, LittleEndian>) -> Result<Glibc> {
    let (sections, data, endian) = (file.elf_section_table(), file.data(), file.endian());
    let mut needed = Glibc(2, 0);
    let Some((mut libraries, strings)) = sections.gnu_verneed(endian, data)? else {
        return Ok(needed);
    };
    let strings = sections.strings(endian, data, strings)?;
    while let Some((_, mut versions)) = libraries.next()? {
        while let Some(version) = versions.next()? {
            let name = str::from_utf8(version.name(endian, strings)?)?;
            let Some(number) = name.strip_prefix(GLIBC) else { continue };
            needed = needed.max(parse(number).with_context(|| name.to_owned())?);
        }
    }
    Ok(needed)
}

/// Reads `2.28`, or `2.2.5`, whose last part changes nothing.
fn parse(number: &str) -> Result<Glibc> {
    if number == PACKED.0 {
        return Ok(PACKED.1);
    }
    let mut parts = number.split('.').map(str::parse);
    match (parts.next(), parts.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok(Glibc(major, minor)),
        _ => bail!("no version of glibc"),
    }
}

/// Checks the module in this file.
///
/// # Errors
/// As [`check`], with the path.
pub fn check_file(file: &Path) -> Result<Glibc> {
    let module = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    check(&module).with_context(|| format!("{} is no module for Envoy", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// A library with these functions. Each calls `malloc`.
    fn library(functions: &[&str]) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let (source, file) = (directory.path().join("a.rs"), directory.path().join("a.so"));
        let code: String = functions
            .iter()
            .map(|name| {
                format!(
                    "#[unsafe(no_mangle)] pub extern \"C\" fn {name}() -> Vec<u8> {{ vec![1] }}"
                )
            })
            .collect();
        std::fs::write(&source, format!("#![allow(improper_ctypes_definitions)]{code}")).unwrap();
        let mut rustc = Command::new("rustc");
        rustc.args(["--crate-type", "cdylib", "--edition", "2024", "-o"]).arg(&file).arg(&source);
        assert!(rustc.status().unwrap().success());
        std::fs::read(file).unwrap()
    }

    #[test]
    fn module_exports_envoys_hooks_only() {
        assert!(check(b"no library").is_err());
        let hooks = [FIRST, "envoy_dynamic_module_on_http_filter_new"];
        assert!(check(&library(&hooks)).unwrap() > Glibc(2, 0), "it needs an allocator");
        let error = check(&library(&[FIRST, "malloc_of_ours"])).unwrap_err().to_string();
        assert!(error.contains("malloc_of_ours"), "{error}");
        let error = check(&library(&["envoy_dynamic_module_on_other"])).unwrap_err().to_string();
        assert!(error.contains(FIRST), "{error}");
    }

    #[test]
    fn versions_of_glibc_are_ordered_by_number() {
        assert!(parse("2.4").unwrap() < parse("2.28").unwrap());
        assert_eq!(parse("2.2.5").unwrap().to_string(), "2.2");
        assert_eq!(parse("ABI_DT_RELR").unwrap(), Glibc(2, 36));
        assert!(parse("PRIVATE").is_err());
    }
}
