//! The Debian packages. cargo-deb packs a folder that is staged here, and writes the scripts that
//! debhelper would write.

mod unit;

use std::{
    ffi::OsStr,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use quotagate_workspace::paths;

use crate::{
    archive::Common,
    examples::{self, ExampleLayout},
    parts::{Parts, Programs},
    tarball::gzip,
};

/// The revision of the packaging, after the version.
const REVISION: u32 = 1;
/// Where the examples say that things are.
const LAYOUT: ExampleLayout = ExampleLayout {
    command: "quotagate",
    wasm: "/usr/share/quotagate",
    module: "/usr/lib/quotagate",
    examples: "/usr/share/doc/quotagate/examples/",
    here: "in any folder",
};

/// Writes the package of an architecture.
///
/// # Errors
/// When a file cannot be read or written, or cargo-deb fails.
pub fn write(
    cargo_deb: &Path,
    parts: &Parts,
    programs: &Programs,
    common: &Common,
    folder: &Path,
) -> Result<()> {
    let staged = tempfile::tempdir().context("cannot make a temporary folder")?;
    stage(staged.path(), parts, programs, common)?;
    let architecture = programs.architecture;
    let version = format!("{}-{REVISION}", parts.version);
    let name = format!("quotagate_{version}_{}.deb", architecture.short_name());
    let mut command = Command::new(cargo_deb);
    command.env("SOURCE_DATE_EPOCH", parts.epoch.to_string());
    command.arg("--manifest-path").arg(staged.path().join("Cargo.toml"));
    command.args(["--no-build", "--no-strip", "--quiet", "--deb-version", &version]);
    command.args(["--target", &format!("{}-unknown-linux-musl", architecture.name())]);
    command.args([OsStr::new("--output"), folder.join(&name).as_os_str()]);
    let output = command.output().with_context(|| format!("cannot run {}", cargo_deb.display()))?;
    if !output.status.success() {
        bail!("cargo-deb did not make {name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Writes everything that the package contains, with a manifest that lists it.
fn stage(folder: &Path, parts: &Parts, programs: &Programs, common: &Common) -> Result<()> {
    let source = paths::root();
    let kept = source.join("release").join("deb");
    let mut stage = Stage { folder: folder.to_path_buf(), assets: String::new() };
    stage.copy("usr/bin/quotagate", 0o755, &programs.command)?;
    stage.copy("usr/lib/quotagate/libquotagate.so", 0o644, &programs.module)?;
    stage.copy("usr/share/quotagate/quotagate.wasm", 0o644, &parts.filter)?;
    stage.copy("usr/share/quotagate/quotagate-bodies.wasm", 0o644, &parts.bodies_filter)?;
    stage.copy("etc/quotagate/store.env", 0o640, &kept.join("store.env"))?;
    let overrides = kept.join("lintian-overrides");
    stage.copy("usr/share/lintian/overrides/quotagate", 0o644, &overrides)?;
    for (name, page) in &common.documents.man {
        stage.add(&format!("usr/share/man/man1/{name}.gz"), &gzip(page)?)?;
    }
    for one in &common.documents.completions {
        let folder = match one.shell {
            "zsh" => "usr/share/zsh/vendor-completions",
            "fish" => "usr/share/fish/vendor_completions.d",
            _ => "usr/share/bash-completion/completions",
        };
        stage.add(&format!("{folder}/{}", one.file), &one.script)?;
    }
    let documents = "usr/share/doc/quotagate";
    let licences = gzip(common.licences.as_bytes())?;
    stage.add(&format!("{documents}/THIRD-PARTY-LICENSES.gz"), &licences)?;
    for example in examples::of(LAYOUT)? {
        let path = format!("{documents}/examples/{}", example.path);
        stage.add(&path, example.text.as_bytes())?;
    }
    let debian = folder.join("debian");
    fs::create_dir_all(&debian)?;
    let systemd = source.join("systemd").join("quotagate.service");
    fs::write(debian.join("quotagate.service"), unit::packaged(&read(&systemd)?)?)?;
    fs::copy(kept.join("quotagate.sysusers"), debian.join("quotagate.sysusers"))?;
    fs::copy(kept.join("copyright"), folder.join("copyright"))?;
    fs::write(folder.join("changelog"), changelog(parts)?)?;
    fs::write(folder.join("lib.rs"), "")?;
    let manifest = read(&kept.join("manifest.toml"))?;
    fs::write(folder.join("Cargo.toml"), format!("{manifest}{}]\n", stage.assets))?;
    Ok(())
}

/// A folder for cargo-deb.
struct Stage {
    folder: PathBuf,
    /// The lines of the manifest.
    assets: String,
}

impl Stage {
    fn add(&mut self, path: &str, content: &[u8]) -> Result<()> {
        self.write(path, 0o644, |file| fs::write(file, content))
    }

    fn copy(&mut self, path: &str, mode: u32, from: &Path) -> Result<()> {
        self.write(path, mode, |file| fs::copy(from, file).map(drop))
            .with_context(|| format!("cannot copy {}", from.display()))
    }

    fn write(
        &mut self,
        path: &str,
        mode: u32,
        content: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<()> {
        let file = self.folder.join("root").join(path);
        fs::create_dir_all(file.parent().context("a file has a folder")?)?;
        content(&file).with_context(|| format!("cannot write {}", file.display()))?;
        writeln!(self.assets, "    [\"root/{path}\", \"{path}\", \"{mode:o}\"],")?;
        Ok(())
    }
}

/// Debian's changelog, which dates the package.
fn changelog(parts: &Parts) -> Result<String> {
    let time = jiff::Timestamp::from_second(i64::try_from(parts.epoch)?)?;
    let date = time.strftime("%a, %d %b %Y %H:%M:%S +0000");
    Ok(format!(
        "quotagate ({}-{REVISION}) unstable; urgency=medium\n\n  * Release {}.\n\n \
         -- The quotagate authors <maintainers@quotagate.invalid>  {date}\n",
        parts.version, parts.version
    ))
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Architecture, documents::Documents, testing};

    #[test]
    fn staged_folder_has_every_asset_of_its_manifest() {
        let (built, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let parts = testing::parts(built.path(), &[Architecture::Aarch64]);
        let documents = Documents::of(&parts.host).unwrap();
        let common = Common { documents, licences: "licences".to_owned() };
        stage(folder.path(), &parts, &parts.programs[0], &common).unwrap();
        let manifest = read(&folder.path().join("Cargo.toml")).unwrap();
        let assets: Vec<_> =
            manifest.lines().filter_map(|line| line.trim().strip_prefix("[\"root/")).collect();
        for asset in &assets {
            let path = asset.split('"').next().unwrap();
            assert!(folder.path().join("root").join(path).is_file(), "{path}");
        }
        for path in [
            "usr/bin/quotagate",
            "usr/lib/quotagate/libquotagate.so",
            "etc/quotagate/store.env",
            "usr/share/man/man1/quotagate-serve.1.gz",
            "usr/share/bash-completion/completions/quotagate",
            "usr/share/zsh/vendor-completions/_quotagate",
            "usr/share/doc/quotagate/examples/envoy.yaml",
        ] {
            assert!(assets.iter().any(|asset| asset.starts_with(path)), "{path}");
        }
    }

    #[test]
    fn changelog_has_the_time_of_the_commit() {
        let built = tempfile::tempdir().unwrap();
        let text = changelog(&testing::parts(built.path(), &[Architecture::X86_64])).unwrap();
        assert!(text.ends_with(">  Tue, 14 Nov 2023 22:13:20 +0000\n"), "{text}");
    }
}
