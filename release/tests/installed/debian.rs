//! Debian in a folder: made by debootstrap once, and used through an overlay that ends with the
//! test.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use quotagate_support::{paths, process::Process};
use tempfile::TempDir;

use crate::programs::{needed, run};

/// A version of Debian.
#[derive(Debug, Clone, Copy)]
pub enum Suite {
    /// Debian 12, with systemd's programs.
    Bookworm,
    /// Debian 11, with glibc 2.31: the oldest that Debian's mirrors still have.
    Bullseye,
}

/// Mounts the overlay in a namespace of its own, and keeps it until it is killed. Nothing outside
/// sees these mounts, and nothing has to unmount them.
const MOUNT: &str = r#"set -e
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
echo mounted
exec sleep infinity"#;
const MOUNTED: Duration = Duration::from_secs(20);

/// A Debian whose changes are lost when it is dropped.
pub struct Debian {
    holder: Process,
    folder: TempDir,
}

impl Debian {
    /// A fresh one.
    pub fn start(suite: Suite) -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "Debian in a folder needs root: run as root");
        let base = suite.base()?;
        let folder = tempfile::tempdir_in(roots())?;
        for name in ["upper", "work", "root"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let mut unshare = needed("unshare", "util-linux")?;
        unshare.args(["--mount", "sh", "-c", MOUNT, "mount"]).arg(base).arg(folder.path());
        let log = folder.path().join("mount.log");
        let mut holder = Process::spawn("the overlay", &mut unshare, &log)?;
        holder.wait_until("its mounts", MOUNTED, |holder| {
            Ok(holder.log().contains("mounted").then_some(()))
        })?;
        Ok(Self { holder, folder })
    }

    /// A path inside, as this process reaches it.
    pub fn path(&self, inside: &str) -> PathBuf {
        let root = self.root();
        let root = root.strip_prefix("/").unwrap_or(&root);
        Path::new("/proc").join(self.holder.pid().to_string()).join("root").join(root).join(inside)
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    /// A program inside. Its process id is that of the command: signals reach it.
    pub fn command(&self, program: &str) -> Result<Command> {
        let mut command = needed("nsenter", "util-linux")?;
        command.arg("--target").arg(self.holder.pid().to_string()).arg("--mount").arg("--");
        command.arg("chroot").arg(self.root()).arg(program);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        Ok(command)
    }

    /// Runs a line of shell inside, and returns what it printed, after the line.
    pub fn run(&self, line: &str) -> Result<String> {
        let printed = run(self.command("sh")?.args(["-c", line]))?;
        Ok(format!("$ {line}\n{printed}"))
    }
}

impl Suite {
    fn name(self) -> &'static str {
        match self {
            Self::Bookworm => "bookworm",
            Self::Bullseye => "bullseye",
        }
    }

    /// Its folder, which nothing changes. The first test that needs it makes it.
    fn base(self) -> Result<PathBuf> {
        let roots = roots();
        fs::create_dir_all(&roots)?;
        let name = self.name();
        let (folder, half) = (roots.join(name), roots.join(format!("{name}.part")));
        let lock = File::create(roots.join(format!("{name}.lock")))?;
        lock.lock().context("cannot lock")?;
        if folder.is_dir() {
            return Ok(folder);
        }
        if half.exists() {
            fs::remove_dir_all(&half)?;
        }
        let mut debootstrap = needed("debootstrap", "debootstrap")?;
        debootstrap.arg("--variant=minbase");
        debootstrap.args(matches!(self, Self::Bookworm).then_some("--include=systemd"));
        // The machine's own mirror. A machine without one, such as Ubuntu, takes debootstrap's.
        let mirror = quotagate_workspace::debian::mirror().ok();
        run(debootstrap.arg(name).arg(&half).args(mirror))?;
        fs::rename(&half, &folder)?;
        Ok(folder)
    }
}

fn roots() -> PathBuf {
    paths::root().join("target").join("roots")
}
