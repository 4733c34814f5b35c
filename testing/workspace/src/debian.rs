//! Debian's packages, for tasks that build a file system or need one package of another release.

use std::process::Command;

use anyhow::{Context, Result};

use crate::task;

/// The address of the mirror of Debian that this machine uses: the source tree names none.
///
/// # Errors
/// When apt is missing, or reads no mirror of Debian.
pub fn mirror() -> Result<String> {
    let format = "$(ORIGIN)|$(LABEL)|$(COMPONENT)|$(SITE)";
    let mut apt = Command::new("apt-get");
    let targets =
        task::printed(apt.args(["indextargets", "Created-By: Packages", "--format", format]))?;
    first(&targets).context(
        "apt knows no mirror of Debian: use a Debian machine whose lists are there (`apt-get update`)",
    )
}

/// The first mirror of Debian itself, not of its security updates or of another vendor.
fn first(targets: &str) -> Option<String> {
    let site = targets.lines().find_map(|line| line.strip_prefix("Debian|Debian|main|"));
    site.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_debian_itself() {
        let targets = "Debian|Debian-Security|main|http://mirror.example/security\n\
                       Debian|Debian|contrib|http://mirror.example/other\n\
                       Debian|Debian|main|http://mirror.example/debian\n";
        assert_eq!(first(targets).as_deref(), Some("http://mirror.example/debian"));
        assert_eq!(first("Ubuntu|Ubuntu|main|http://mirror.example/ubuntu\n"), None);
    }
}
