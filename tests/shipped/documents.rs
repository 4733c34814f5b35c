//! Documents point to what exists: paths of this repository in prose, comments and configurations.
//! `cargo xtask check` checks their links.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that are not part of the source.
const SKIPPED: [&str; 6] = [".git", "target", "dist", "node_modules", "corpus", "fixtures"];
/// Files that may name a document.
const READ: [&str; 7] = ["md", "rs", "yaml", "yml", "toml", "sh", "service"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below `folder` whose name ends with one of `endings`.
fn files(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
            files(&path, endings, found);
        } else if path.is_file()
            && endings.iter().any(|ending| name.ends_with(&format!(".{ending}")))
        {
            found.push(path);
        }
    }
}

fn all(endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(root(), endings, &mut found);
    found
}

/// A path as messages show it.
fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// The lines of a Markdown text outside of its code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(i, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((i + 1, line))
    })
}

/// The texts between backticks in a line.
fn quoted(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// Whether `text` reads as the path of a file or folder of this repository: it begins with one of
/// its top-level names.
fn is_path(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
    let Some((first, _)) = text.split_once('/') else { return false };
    // `NAME` is a placeholder of a recipe.
    text.chars().all(plain)
        && !text.contains("NAME")
        && !matches!(first, "" | "." | ".." | "dist" | "target")
        && root().join(first).is_dir()
}

#[test]
fn every_path_of_the_repository_in_a_document_exists() {
    let mut missing = Vec::new();
    for file in all(&["md"]) {
        let text = fs::read_to_string(&file).unwrap();
        for (number, line) in prose(&text) {
            for path in quoted(line).into_iter().filter(|text| is_path(text)) {
                let target = root().join(path);
                // A module may be named without its file extension.
                if !target.exists() && !target.with_extension("rs").exists() {
                    missing.push(format!("{}:{number}: {path}", shown(&file)));
                }
            }
        }
    }
    assert!(missing.is_empty(), "paths that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn documents_named_in_code_and_configurations_exist() {
    let mut missing = Vec::new();
    for file in all(&READ) {
        let text = fs::read_to_string(&file).unwrap();
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
        for (i, line) in text.lines().enumerate() {
            for word in line.split(|c| !plain(c)) {
                let name = word.trim_end_matches('.');
                let document = name.starts_with("docs/")
                    && name.rsplit_once('.').is_some_and(|(_, end)| end.len() < 5);
                if document && !root().join(name).exists() {
                    missing.push(format!("{}:{}: {name}", shown(&file), i + 1));
                }
            }
        }
    }
    assert!(missing.is_empty(), "documents that do not exist:\n{}", missing.join("\n"));
}

#[test]
fn paths_of_the_repository_are_told_from_other_text() {
    assert!(is_path("docs/design") && is_path("envoy/no-such.yaml"));
    assert!(
        !is_path("a/b")
            && !is_path("dist/quotagate")
            && !is_path("docs/*.md")
            && !is_path("/v1/reserve")
    );
}
