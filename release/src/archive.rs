//! The archive of an architecture: everything that runs without a package manager or an image.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use quotagate_workspace::paths;

use crate::{
    documents::Documents,
    examples::{self, ExampleLayout},
    parts::{Parts, Programs},
    tarball::{Tarball, gzip},
};

/// Where things are, for a reader whose current folder is the root of the archive.
const LAYOUT: ExampleLayout = ExampleLayout {
    command: "bin/quotagate",
    wasm: "wasm",
    module: "lib",
    examples: "examples/",
    here: "from the root of the archive",
};

/// What every archive contains, whatever its architecture.
#[derive(Debug, Default, Clone)]
pub struct Common {
    /// Man pages and completions.
    pub documents: Documents,
    /// The licences of what is linked in.
    pub licences: String,
}

/// Writes the archive of an architecture.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write(parts: &Parts, programs: &Programs, common: &Common, folder: &Path) -> Result<()> {
    let root = format!("quotagate-{}", parts.version);
    let mut archive = Packed { root: root.clone(), tar: Tarball::default() };
    archive.program("bin/quotagate", 0o755, &programs.command)?;
    archive.program("lib/libquotagate.so", 0o644, &programs.module)?;
    archive.program("wasm/quotagate.wasm", 0o644, &parts.filter)?;
    archive.program("wasm/quotagate-bodies.wasm", 0o644, &parts.bodies_filter)?;
    for (name, page) in &common.documents.man {
        archive.add(&format!("share/man/man1/{name}"), page.clone());
    }
    for one in &common.documents.completions {
        archive.add(&format!("share/completions/{}", one.file), one.script.clone());
    }
    let source = paths::root();
    for unit in examples::files(&source.join("systemd"))? {
        let name = unit.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.program(&format!("systemd/{name}"), 0o644, &unit)?;
    }
    for example in examples::of(LAYOUT)? {
        archive.add(&format!("examples/{}", example.path), example.text);
    }
    archive.program("LICENSE", 0o644, &source.join("LICENSE"))?;
    archive.add("THIRD-PARTY-LICENSES", common.licences.clone());
    archive.program("README.md", 0o644, &source.join("release/files/README.md"))?;
    let name = format!("{root}-linux-{}.tar.gz", programs.architecture.name());
    let packed = gzip(&archive.tar.bytes(parts.epoch)?)?;
    fs::write(folder.join(&name), packed).with_context(|| format!("cannot write {name}"))
}

/// A tar file whose entries stand in one folder.
struct Packed {
    root: String,
    tar: Tarball,
}

impl Packed {
    fn add(&mut self, path: &str, content: impl Into<Vec<u8>>) {
        self.tar.file(&format!("{}/{path}", self.root), 0o644, content);
    }

    fn program(&mut self, path: &str, mode: u32, file: &Path) -> Result<()> {
        let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        self.tar.file(&format!("{}/{path}", self.root), mode, content);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, testing};
    use std::{collections::BTreeMap, io::Read};

    fn packed(epoch: u64) -> Vec<u8> {
        let (built, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let parts = testing::parts(built.path(), &[Architecture::Aarch64]);
        let parts = Parts { epoch, ..parts };
        let documents = Documents::of(&parts.host).unwrap();
        let common = Common { documents, licences: "licences".to_owned() };
        write(&parts, &parts.programs[0], &common, folder.path()).unwrap();
        fs::read(folder.path().join(format!("quotagate-{}-linux-aarch64.tar.gz", parts.version)))
            .unwrap()
    }

    #[test]
    fn same_parts_make_the_same_archive() {
        let one = packed(1_700_000_000);
        assert_eq!(one, packed(1_700_000_000));
        assert_ne!(one, packed(1_700_000_001));
    }

    #[test]
    fn archive_has_programs_documents_and_examples() {
        let bytes = packed(1_700_000_000);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let mut found = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_str().unwrap().to_owned();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let root = concat!("quotagate-", env!("CARGO_PKG_VERSION"), "/");
            let path = path.strip_prefix(root).unwrap_or_else(|| panic!("{path}")).to_owned();
            found.insert(path, (entry.header().mode().unwrap(), text));
        }
        assert_eq!(found["bin/quotagate"].0, 0o755);
        for path in [
            "lib/libquotagate.so",
            "wasm/quotagate.wasm",
            "wasm/quotagate-bodies.wasm",
            "share/man/man1/quotagate-serve.1",
            "share/completions/_quotagate",
            "systemd/quotagate.service",
            "LICENSE",
            "THIRD-PARTY-LICENSES",
            "README.md",
            "examples/envoy.yaml",
            "examples/quotagate.schema.json",
            "examples/observability/alerts.yaml",
        ] {
            assert!(found.contains_key(path), "{path}");
        }
    }
}
