//! The configurations that a package contains as examples.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use quotagate_workspace::paths;

/// The folders below `envoy/`, without those below them, and their names among the examples.
const FOLDERS: [(&str, &str); 7] = [
    ("", ""),
    ("examples", "policies"),
    ("observability", "observability"),
    ("istio", "istio"),
    ("gateway", "gateway"),
    ("ratelimit", "ratelimit"),
    ("ratelimit/config", "ratelimit/config"),
];

/// Where a reader of the examples finds the parts.
#[derive(Debug, Clone, Copy)]
pub struct ExampleLayout {
    /// The command, with its folder.
    pub command: &'static str,
    /// The folder of the Wasm filters.
    pub wasm: &'static str,
    /// The folder of the native module.
    pub module: &'static str,
    /// The folder of the examples, relative to the place that [`ExampleLayout::here`] names.
    pub examples: &'static str,
    /// Where to run the commands in comments.
    pub here: &'static str,
}

/// One example.
#[derive(Debug, Clone)]
pub struct Example {
    /// The path below the folder of the examples.
    pub path: String,
    /// The text, with the paths of the layout.
    pub text: String,
}

/// All of them.
///
/// # Errors
/// When a file cannot be read.
pub fn of(layout: ExampleLayout) -> Result<Vec<Example>> {
    let mut examples = Vec::new();
    for (below, name) in FOLDERS {
        for file in files(&paths::root().join("envoy").join(below))? {
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            let path = Path::new(name).join(file.file_name().unwrap_or_default());
            let path = path.to_string_lossy().into_owned();
            examples.push(Example { path, text: layout.applied_to(&text) });
        }
    }
    Ok(examples)
}

impl ExampleLayout {
    /// Replaces the paths of the source tree.
    fn applied_to(self, text: &str) -> String {
        let Self { command, wasm, module, examples, here } = self;
        let moved = [
            ("Run `cargo xtask build`, start", "Start".to_owned()),
            ("from the root of the source tree", here.to_owned()),
            (" In a clone,\n# `cargo xtask demo` does all of it.", "\n#".to_owned()),
            (" In a clone,\n# `cargo xtask demo --native` does all of it.", "\n#".to_owned()),
            ("-c envoy/", format!("-c {examples}")),
            ("--config envoy/", format!("--config {examples}")),
            ("dist/quotagate-bodies.wasm", format!("{wasm}/quotagate-bodies.wasm")),
            ("dist/quotagate.wasm", format!("{wasm}/quotagate.wasm")),
            ("dist/quotagate", command.to_owned()),
            ("SEARCH_PATH=dist", format!("SEARCH_PATH={module}")),
        ];
        moved.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }
}

/// The files in a folder, without those below its folders, sorted by name.
///
/// # Errors
/// When it cannot be read.
pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_of_examples_is_packed() {
        for entry in fs::read_dir(paths::root().join("envoy")).unwrap() {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            let packed = FOLDERS.iter().any(|(below, _)| name == *below);
            assert!(path.is_file() || packed, "{}", path.display());
        }
    }

    #[test]
    fn examples_do_not_speak_of_the_source_tree() {
        let layout = ExampleLayout {
            command: "bin/quotagate",
            wasm: "wasm",
            module: "lib",
            examples: "examples/",
            here: "here",
        };
        let examples = of(layout).unwrap();
        let envoy = examples.iter().find(|example| example.path == "envoy.yaml").unwrap();
        assert!(envoy.text.contains("filename: wasm/quotagate.wasm"));
        assert!(envoy.text.contains("here: `envoy -c examples/envoy.yaml`"));
        for Example { path, text } in examples {
            for word in ["dist/", "=dist", "xtask", "source tree", "-c envoy/", "--config envoy/"] {
                assert!(!text.contains(word), "{path} contains {word}");
            }
        }
    }
}
