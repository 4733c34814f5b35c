//! An image of the command, unpacked and started as a container engine does, without one.

use std::{
    ffi::OsString,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::Command,
};

use anyhow::{Context, Result};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    artifacts,
    programs::{needed, run},
};

/// Makes a folder read-only in a mount namespace of its own, and runs a command: `mount`, the
/// folder, the command and its arguments.
const READ_ONLY: &str = r#"set -e
"$1" --bind "$2" "$2"
"$1" -o remount,bind,ro "$2"
shift 2
exec "$@""#;

/// An unpacked image.
pub struct Unpacked {
    folder: TempDir,
    /// How an engine would run it: `process` of the runtime specification.
    process: Value,
}

impl Unpacked {
    /// The image of this name, for this machine's architecture.
    ///
    /// # Errors
    /// When it is missing, or cannot be unpacked.
    pub fn new(name: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (layout, bundle) = (folder.path().join("layout"), folder.path().join("bundle"));
        let image = format!("{}:{name}", layout.display());
        let mut skopeo = needed("skopeo", "skopeo")?;
        skopeo.args(["--insecure-policy", "copy", "--quiet"]);
        skopeo.arg(format!("oci-archive:{}", artifacts::image(name)?.display()));
        run(skopeo.arg(format!("oci:{image}")))?;
        run(needed("umoci", "umoci")?.args(["unpack", "--image", &image]).arg(&bundle))?;
        // The folder of a test is closed to others. The root of a container is not.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let config: Value = serde_json::from_slice(&fs::read(bundle.join("config.json"))?)?;
        Ok(Self { folder, process: config["process"].clone() })
    }

    /// Its root folder, which a test may fill as mounts do.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("bundle").join("rootfs")
    }

    /// The list in this field.
    pub fn words(&self, field: &str) -> Vec<String> {
        let words = self.process[field].as_array().into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// The `uid` or `gid`.
    pub fn id(&self, field: &str) -> Option<u64> {
        self.process["user"][field].as_u64()
    }

    /// Its command on a read-only root, with the user and the environment that the image names.
    ///
    /// # Errors
    /// When a program is missing.
    pub fn command(&self) -> Result<Command> {
        let path = |program: &str, package: &str| -> Result<OsString> {
            Ok(needed(program, package)?.get_program().to_owned())
        };
        let user = self.id("uid").zip(self.id("gid"));
        let (user, group) = user.context("no user")?;
        let mut command = needed("unshare", "util-linux")?;
        // The environment names no folder of this machine's programs.
        command.args(["--mount", "/bin/sh", "-c", READ_ONLY, "read-only"]);
        command.arg(path("mount", "mount")?).arg(self.root());
        command.arg(path("chroot", "coreutils")?).arg(format!("--userspec={user}:{group}"));
        command.arg(self.root()).args(self.words("args")).env_clear();
        let environment = self.words("env");
        command.envs(environment.iter().filter_map(|entry| entry.split_once('=')));
        Ok(command)
    }
}

/// The user of a process.
///
/// # Errors
/// When it has ended.
pub fn user(pid: u32) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let user = status.lines().find(|line| line.starts_with("Uid:")).context("no user")?;
    Ok(user.split_whitespace().nth(1).context("no user")?.to_owned())
}
