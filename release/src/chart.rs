//! The Helm chart, as `helm package` would write it, and the recipe of the Envoy image.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use quotagate_workspace::paths;

use crate::{
    examples::files,
    parts::Parts,
    tarball::{Tarball, gzip},
};

/// The recipe of an Envoy image with both forms of the filter.
const RECIPE: &str = "envoy.Dockerfile";

/// The endings of files that do not belong to a chart, as in its `.helmignore`.
const IGNORED: [&str; 2] = [".orig", ".tgz"];

/// Writes both. They state the version themselves: users read them in the source tree, too.
///
/// # Errors
/// When a file cannot be read or written, or states another version.
pub fn write(parts: &Parts, folder: &Path) -> Result<()> {
    let Parts { version, epoch, .. } = parts;
    let chart = paths::root().join("charts").join("quotagate");
    states(&chart.join("Chart.yaml"), &format!("\nversion: {version}\n"))?;
    states(&chart.join("Chart.yaml"), &format!("\nappVersion: {version}\n"))?;
    let mut tar = Tarball::default();
    for (path, file) in below(&chart)? {
        let content = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        tar.file(&format!("quotagate/{path}"), 0o644, content);
    }
    let name = format!("quotagate-{version}.tgz");
    fs::write(folder.join(&name), gzip(&tar.bytes(*epoch)?)?)
        .with_context(|| format!("cannot write {name}"))?;
    let recipe = paths::root().join("docker").join(RECIPE);
    let text = states(&recipe, &format!("\nARG VERSION={version}\n"))?;
    fs::write(folder.join(RECIPE), text).with_context(|| format!("cannot write {RECIPE}"))
}

/// The text of a file, which must contain a line.
fn states(file: &Path, line: &str) -> Result<String> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    ensure!(text.contains(line), "{} does not state {:?}", file.display(), line.trim());
    Ok(text)
}

/// The files below a folder that belong to a chart, with their paths.
fn below(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path()))?;
        let name = name.to_string_lossy().into_owned();
        if path.is_dir() && !is_ignored(&name) {
            let inner = below(&path)?;
            found.extend(inner.into_iter().map(|(path, file)| (format!("{name}/{path}"), file)));
        }
    }
    for file in files(folder)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !is_ignored(&name) {
            found.push((name, file));
        }
    }
    Ok(found)
}

/// Whether a file or folder of this name does not belong to a chart. Hidden ones never do.
fn is_ignored(name: &str) -> bool {
    name.starts_with('.') || IGNORED.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, testing};

    #[test]
    fn chart_is_one_folder_of_its_name() {
        let (built, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let parts = testing::parts(built.path(), &[Architecture::X86_64]);
        write(&parts, folder.path()).unwrap();
        let packed = fs::read(folder.path().join(format!("quotagate-{}.tgz", parts.version)));
        let packed = packed.unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        let names: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert!(names.iter().all(|name| name.starts_with("quotagate/")), "{names:?}");
        for name in ["Chart.yaml", "values.yaml", "values.schema.json", "templates/_names.tpl"] {
            assert!(names.contains(&format!("quotagate/{name}")), "{name} of {names:?}");
        }
        assert!(!names.iter().any(|name| name.contains(".helmignore")), "{names:?}");
        assert!(folder.path().join(RECIPE).is_file());
    }

    #[test]
    fn files_that_helm_ignores_do_not_belong_to_the_chart() {
        let folder = tempfile::tempdir().unwrap();
        let ignored = paths::root().join("charts/quotagate/.helmignore");
        let ignored = fs::read_to_string(ignored).unwrap();
        assert!(IGNORED.iter().all(|ending| ignored.contains(&format!("*{ending}\n"))));
        fs::create_dir_all(folder.path().join("templates/.hidden")).unwrap();
        for name in ["a.yaml", "a.yaml.orig", "a.tgz", "templates/b.yaml", "templates/.hidden/c"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let found: Vec<_> =
            below(folder.path()).unwrap().into_iter().map(|(path, _)| path).collect();
        assert_eq!(found, ["templates/b.yaml", "a.yaml"]);
    }

    #[test]
    fn chart_of_another_version_is_a_fault() {
        let (built, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let parts = testing::parts(built.path(), &[Architecture::X86_64]);
        let parts = Parts { version: "0.0.9".to_owned(), ..parts };
        let error = write(&parts, folder.path()).unwrap_err().to_string();
        assert!(error.contains("Chart.yaml") && error.contains("0.0.9"), "{error}");
    }
}
