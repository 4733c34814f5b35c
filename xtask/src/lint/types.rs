//! Rust: a type name occurs once in a crate, so that a reader who meets it knows which one it is.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};

use super::identifiers;

/// The macros of this project whose bodies declare types.
const DECLARING_MACROS: [&str; 2] = ["object", "words"];
/// What declares a type.
const KEYWORDS: [&str; 5] = ["enum", "struct", "trait", "type", "union"];

/// The type names that a crate declares more than once outside of tests, with where.
///
/// # Errors
/// When a file of the crate cannot be read.
pub fn repeated(root: &Path) -> Result<Vec<(String, Vec<String>)>> {
    let mut declared = BTreeMap::new();
    let folder = root.parent().context("a file has a folder")?;
    read(root, folder, &mut declared)?;
    Ok(declared.into_iter().filter(|(_, files)| files.len() > 1).collect())
}

/// Where each name is declared, as `file:line`.
type Declared = BTreeMap<String, Vec<String>>;

/// Reads a module's file. `folder` has the files of its child modules.
fn read(file: &Path, folder: &Path, declared: &mut Declared) -> Result<()> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let tokens = identifiers::tokens(&text).with_context(|| file.display().to_string())?;
    items(tokens, file, folder, declared)
}

/// Reads the items of a module; the bodies of functions, traits and implementations are skipped.
fn items(tokens: TokenStream, file: &Path, folder: &Path, declared: &mut Declared) -> Result<()> {
    let mut tokens = tokens.into_iter().peekable();
    let (mut test, mut previous, mut before) = (false, String::new(), String::new());
    while let Some(token) = tokens.next() {
        match &token {
            TokenTree::Group(group)
                if !test
                    && previous == "!"
                    && DECLARING_MACROS.iter().any(|name| before == *name) =>
            {
                items(group.stream(), file, folder, declared)?;
            }
            TokenTree::Group(group) if previous == "#" => test |= is_test(group.stream()),
            // A body, or the end of a declaration without one.
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => test = false,
            TokenTree::Punct(punct) if punct.as_char() == ';' => test = false,
            TokenTree::Ident(keyword) if !test => {
                let Some(TokenTree::Ident(name)) = tokens.peek().cloned() else {
                    (before, previous) = (String::new(), keyword.to_string());
                    continue;
                };
                if keyword == "mod" {
                    tokens.next();
                    match tokens.next() {
                        Some(TokenTree::Group(body)) => {
                            items(body.stream(), file, &folder.join(name.to_string()), declared)?;
                        }
                        _ => module(&name, folder, declared)?,
                    }
                } else if KEYWORDS.iter().any(|one| keyword == one) {
                    let line = name.span().start().line;
                    let at = format!("{}:{line}", file.display());
                    declared.entry(name.to_string()).or_default().push(at);
                }
            }
            _ => {}
        }
        before = std::mem::replace(&mut previous, token.to_string());
    }
    Ok(())
}

/// Reads the file of a module that is declared as `mod name;`.
fn module(name: &Ident, folder: &Path, declared: &mut Declared) -> Result<()> {
    let folder = folder.join(name.to_string());
    let file = folder.with_extension("rs");
    let file = if file.is_file() { file } else { folder.join("mod.rs") };
    read(&file, &folder, declared)
}

/// Whether an attribute keeps its item for tests.
fn is_test(attribute: TokenStream) -> bool {
    attribute.to_string().replace(' ', "") == "cfg(test)"
}

#[cfg(test)]
mod tests {
    use super::*;
    use quotagate_workspace::{paths, task};

    /// What `root.rs` of a crate of these files declares more than once.
    fn names(files: &[(&str, &str)]) -> Vec<String> {
        let crate_ = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = crate_.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let repeated = repeated(&crate_.path().join("root.rs")).unwrap();
        repeated.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn names_that_two_modules_declare_are_found() {
        let inline = "struct Facts; mod a { mod b { pub(crate) enum Facts {} } }";
        assert_eq!(names(&[("root.rs", inline)]), ["Facts"]);
        let files = [
            ("root.rs", "mod a; mod b; pub trait One {} union Two { a: u8 } type Three = u8;"),
            ("a.rs", "mod c; #[derive(Debug)] pub struct One { a: u8 }"),
            ("a/c.rs", "struct Two<T>(T);"),
            ("b/mod.rs", "struct Three;"),
        ];
        assert_eq!(names(&files), ["One", "Three", "Two"]);
        let macros =
            "words! { pub enum Reset { A => \"a\" } } mod a { object! { struct Reset {} } }
            other! { struct Reset; }";
        assert_eq!(names(&[("root.rs", macros)]), ["Reset"]);
    }

    #[test]
    fn tests_bodies_and_associated_types_may_repeat_a_name() {
        let code = "struct Facts; impl Iterator for Facts { type Item = u8; }
            impl Iterator for Other { type Item = u8; } trait Other { type Item; }
            #[cfg(test)] mod tests; #[cfg(test)] mod more { struct Facts; }
            #[cfg(test)] struct Facts { a: u8 } fn f() { struct Facts; }";
        assert_eq!(names(&[("root.rs", code)]), [""; 0]);
        assert_eq!(names(&[("root.rs", &format!("{code} enum Facts {{}}"))]), ["Facts"]);
    }

    #[test]
    fn every_type_name_occurs_once_in_its_crate() {
        let mut git = std::process::Command::new("git");
        let listed = task::printed(git.args(["ls-files", "*.rs"]).current_dir(paths::root()));
        let is_root = |name: &&str| {
            name.ends_with("src/lib.rs")
                || name.ends_with("src/main.rs")
                || name.contains("src/bin/")
        };
        let mut found = Vec::new();
        for root in listed.unwrap().lines().filter(is_root) {
            for (name, declared) in repeated(&paths::root().join(root)).unwrap() {
                found.push(format!("{name}: {}", declared.join(", ")));
            }
        }
        assert!(found.is_empty(), "a type name occurs once in a crate:\n{}", found.join("\n"));
    }
}
