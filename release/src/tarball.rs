//! Tar files whose bytes depend on their content only.

use std::{collections::BTreeMap, io::Write};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// The content of a tar file. Entries are sorted by name, belong to user and group 0, and carry the
/// same time. Folders above a file are added.
///
/// ```
/// use quotagate_release::tarball::{Tarball, gzip};
/// let mut layer = Tarball::default();
/// layer.file("etc/greeting", 0o644, b"hello");
/// let layer = gzip(&layer.bytes(1_700_000_000)?)?;
/// # anyhow::Ok(())
/// ```
#[derive(Debug, Default, Clone)]
pub struct Tarball(BTreeMap<String, Entry>);

#[derive(Debug, Clone)]
enum Entry {
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
    Folder,
}

impl Tarball {
    /// Adds a file. The path has no leading slash.
    pub fn file(&mut self, path: &str, mode: u32, content: impl Into<Vec<u8>>) {
        self.add(path, Entry::File { mode, content: content.into() });
    }

    /// Adds a symbolic link. The target is relative to the folder of the link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.add(path, Entry::Link { target: target.to_owned() });
    }

    fn add(&mut self, path: &str, entry: Entry) {
        for (end, _) in path.match_indices('/') {
            let folder = path.get(..end).unwrap_or_default().to_owned();
            self.0.entry(folder).or_insert(Entry::Folder);
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// The tar file. `epoch` is the time of every entry, in seconds since 1970.
    ///
    /// # Errors
    /// When a name cannot be written.
    pub fn bytes(&self, epoch: u64) -> Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_mtime(epoch);
            header.set_uid(0);
            header.set_gid(0);
            let written = match entry {
                Entry::File { mode, content } => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_mode(*mode);
                    header.set_size(content.len() as u64);
                    tar.append_data(&mut header, path, content.as_slice())
                }
                Entry::Link { target } => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target)
                }
                Entry::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(0o755);
                    header.set_size(0);
                    tar.append_data(&mut header, format!("{path}/"), std::io::empty())
                }
            };
            written.with_context(|| format!("cannot pack {path}"))?;
        }
        Ok(tar.into_inner()?)
    }
}

/// Compresses bytes with gzip, without a name and a time.
///
/// # Errors
/// When the compressor fails.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    // 255: the header names no operating system.
    let mut gzip = GzBuilder::new().operating_system(255).write(Vec::new(), Compression::new(9));
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn sample(names: [&str; 3]) -> Tarball {
        let mut tar = Tarball::default();
        for name in names {
            tar.file(name, 0o644, name);
        }
        tar
    }

    #[test]
    fn order_of_adding_changes_no_byte() {
        let one = sample(["a/b/c", "a/b-c", "d"]).bytes(7).unwrap();
        assert_eq!(one, sample(["d", "a/b-c", "a/b/c"]).bytes(7).unwrap());
        assert_ne!(one, sample(["d", "a/b-c", "a/b/c"]).bytes(8).unwrap());
        assert_eq!(gzip(&one).unwrap(), gzip(&one).unwrap());
    }

    #[test]
    fn folders_above_files_are_added_and_belong_to_root() {
        let bytes = sample(["a/b/c", "a/b-c", "d"]).bytes(7).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let found: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 7));
                (entry.path().unwrap().to_str().unwrap().to_owned(), header.mode().unwrap())
            })
            .collect();
        let expected =
            [("a/", 0o755), ("a/b/", 0o755), ("a/b-c", 0o644), ("a/b/c", 0o644), ("d", 0o644)];
        assert!(found.iter().map(|(name, mode)| (name.as_str(), *mode)).eq(expected), "{found:?}");
    }

    #[test]
    fn links_name_their_targets() {
        let mut tar = Tarball::default();
        tar.link("bin/b", "../a");
        let bytes = tar.bytes(7).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let link = archive.entries().unwrap().nth(1).unwrap().unwrap();
        assert_eq!(link.header().entry_type(), EntryType::Symlink);
        assert_eq!(link.path().unwrap().to_str(), Some("bin/b"));
        assert_eq!(link.link_name().unwrap().unwrap().to_str(), Some("../a"));
    }

    #[test]
    fn gzip_header_names_no_time_and_no_system() {
        let packed = gzip(b"hello").unwrap();
        assert_eq!(packed.get(..10).unwrap(), [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255]);
        let mut text = String::new();
        flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }
}
