//! The licences of everything that is linked into what is released, as one text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
};

use anyhow::{Context, Result, ensure};
use quotagate_workspace::paths;

use crate::{
    crates::{self, Crate, Graph, Id},
    examples::files,
};

/// How names of files with a licence begin, in lower case.
const NAMES: [&str; 6] = ["licence", "license", "copying", "copyright", "notice", "unlicense"];
/// The endings of such files that are no text, or no licence.
const OTHER: [&str; 3] = ["rs", "html", "toml"];
/// What Cargo does not list as linked, with its text in `release/licences`.
const OTHERS: [(&str, &str, &str); 3] = [
    ("Rust's standard library", "MIT OR Apache-2.0", "rust.txt"),
    ("musl, in the command", "MIT", "musl.txt"),
    ("Mozilla's certificates, in the store's image", "CDLA-Permissive-2.0", "certificates.txt"),
];
const RULE: &str =
    "================================================================================";

/// The text. Texts that several crates share stand there once.
///
/// # Errors
/// When a crate that is linked has no licence text, unless its licence is Apache-2.0.
pub fn text(graphs: &[Graph], known: &BTreeMap<Id, Crate>) -> Result<String> {
    let linked: BTreeSet<&Id> = graphs.iter().flat_map(Graph::keys).collect();
    // Which parts have a text.
    let mut parts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for id in linked {
        let found = known.get(id).with_context(|| format!("Cargo does not know {}", id.0))?;
        if found.own {
            continue;
        }
        let mut texts = texts_of(found)?;
        if texts.is_empty() && found.licence == "Apache-2.0" {
            // This licence is the same text everywhere, and it is quotagate's own.
            texts.push(normal(&fs::read_to_string(paths::root().join("LICENSE"))?));
        }
        ensure!(
            !texts.is_empty(),
            "{} {} ({}) comes without the text of its licence: ask its authors for one, or do \
             without the crate",
            id.0,
            id.1,
            found.licence
        );
        for text in texts {
            let part = format!("{} {} ({})", id.0, id.1, found.licence);
            parts.entry(text).or_default().push(part);
        }
    }
    for (name, licence, file) in OTHERS {
        let file = paths::root().join("release").join("licences").join(file);
        let text =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        parts.entry(normal(&text)).or_default().push(format!("{name} ({licence})"));
    }
    let mut sorted: Vec<_> = parts.into_iter().map(|(text, parts)| (parts, text)).collect();
    sorted.sort();
    let mut all = "quotagate contains the following software. Where a licence is a choice \
                   (MIT OR Apache-2.0), both\ntexts are given.\n"
        .to_owned();
    for (parts, text) in sorted {
        write!(all, "\n{RULE}\n{}\n{RULE}\n\n{text}", parts.join("\n"))?;
    }
    Ok(all)
}

/// The texts in the folder of a crate.
fn texts_of(found: &Crate) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for file in files(&found.folder)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let ending = file.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        if NAMES.iter().any(|start| name.starts_with(start)) && !OTHER.contains(&ending.as_str()) {
            let text =
                fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
            texts.push(normal(&String::from_utf8_lossy(&text)));
        }
    }
    Ok(texts)
}

/// A text whose lines end alike, without space at their ends and around it.
fn normal(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    format!("{}\n", lines.join("\n").trim_matches('\n'))
}

/// The text for what is released.
///
/// # Errors
/// When Cargo fails, or a licence text is missing.
pub fn current(known: &BTreeMap<Id, Crate>) -> Result<String> {
    let graphs = crates::PRODUCTS.map(crates::of).into_iter().collect::<Result<Vec<_>>>()?;
    text(&graphs, known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn id(name: &str) -> Id {
        (name.to_owned(), "1.0.0".to_owned())
    }

    fn a_crate(folder: &Path, name: &str, licence: Option<&str>) -> (Id, Crate) {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("license.rs"), "pub struct License;").unwrap();
        if let Some(text) = licence {
            fs::write(folder.join("LICENSE-MIT"), text).unwrap();
        }
        let licence = "MIT".to_owned();
        (id(name), Crate { licence, folder, repository: None, own: false })
    }

    #[test]
    fn texts_that_crates_share_stand_there_once() {
        let folder = tempfile::tempdir().unwrap();
        let known = BTreeMap::from([
            a_crate(folder.path(), "a", Some("Do what you want.\r\n")),
            a_crate(folder.path(), "b", Some("\nDo what you want.  \n")),
            a_crate(folder.path(), "c", Some("Do nothing.")),
            a_crate(folder.path(), "unused", Some("Never.")),
        ]);
        let graph: Graph = ["a", "b", "c"].map(|name| (id(name), BTreeSet::new())).into();
        let text = text(&[graph], &known).unwrap();
        assert_eq!(text.matches("Do what you want.").count(), 1);
        assert!(text.contains("a 1.0.0 (MIT)\nb 1.0.0 (MIT)\n=="), "{text}");
        assert!(
            text.contains("Do nothing.") && !text.contains("Never.") && !text.contains("struct")
        );
        assert!(text.contains("musl") && text.contains("standard library"));
        assert!(text.contains("Community Data License Agreement"));
    }

    #[test]
    fn crate_without_a_text_is_a_fault() {
        let folder = tempfile::tempdir().unwrap();
        let known = BTreeMap::from([a_crate(folder.path(), "a", None)]);
        let graph = Graph::from([(id("a"), BTreeSet::new())]);
        let error = text(std::slice::from_ref(&graph), &known).unwrap_err().to_string();
        assert!(error.contains("a 1.0.0 (MIT)"), "{error}");
        let (_, of) = a_crate(folder.path(), "b", None);
        let known = BTreeMap::from([(id("a"), Crate { licence: "Apache-2.0".to_owned(), ..of })]);
        let text = text(&[graph], &known).unwrap();
        assert!(text.contains("a 1.0.0 (Apache-2.0)\n==") && text.contains("Apache License"));
    }

    #[test]
    fn every_linked_crate_has_its_text() {
        let text = current(&crates::all().unwrap()).unwrap();
        for name in ["ring 0.", "redis 1.", "proxy-wasm 0."] {
            assert!(text.contains(&format!("\n{name}")), "{name}");
        }
    }
}
