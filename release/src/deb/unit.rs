//! The unit of the package, made from the one that operators install by hand.

use anyhow::{Result, ensure};

/// What becomes what.
const CHANGES: [(&str, &str); 3] = [
    ("ExecStart=/usr/local/bin/quotagate ", "ExecStart=/usr/bin/quotagate "),
    // The package makes a user, so that files can belong to it.
    ("DynamicUser=yes\n", "User=quotagate\n"),
    (
        "# Restart it however often it exits.\n",
        "# Without its secrets it does not start: the package enables it before they are there.\n\
         ConditionPathExists=/etc/quotagate/redis-password\n\
         ConditionPathExists=/etc/quotagate/token\n\
         ConditionPathExists=/etc/quotagate/admin-token\n\
         # Restart it however often it exits.\n",
    ),
];
/// The comment in the place of the one that explains how to install the files by hand.
const HEAD: &str = "\
# The store under systemd, with few rights: /etc/quotagate/store.env says what it needs. Add Envoy's
# user to the group that may use the socket: `usermod -aG quotagate-callers envoy`.

";

/// The unit for the package.
///
/// # Errors
/// When the source does not contain what must change.
pub fn packaged(source: &str) -> Result<String> {
    let start = source.find("[Unit]");
    ensure!(start.is_some(), "the unit has no [Unit]");
    let mut unit = source.get(start.unwrap_or_default()..).unwrap_or_default().to_owned();
    for (from, to) in CHANGES {
        ensure!(unit.matches(from).count() == 1, "the unit does not contain {from:?} once");
        unit = unit.replace(from, to);
    }
    Ok(format!("{HEAD}{unit}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quotagate_workspace::paths;

    #[test]
    fn unit_starts_the_packaged_command_as_its_user_once_it_has_secrets() {
        let source = std::fs::read_to_string(paths::root().join("systemd/quotagate.service"));
        let unit = packaged(&source.unwrap()).unwrap();
        assert!(unit.contains("\nExecStart=/usr/bin/quotagate serve "), "{unit}");
        assert!(unit.contains("\nUser=quotagate\n") && !unit.contains("DynamicUser"));
        let credentials = unit.lines().filter_map(|line| line.strip_prefix("LoadCredential="));
        let files = credentials.filter_map(|one| one.split_once(':').map(|(_, file)| file));
        let files: Vec<&str> = files.collect();
        assert_eq!(files.len(), 3, "{files:?}");
        assert!(files.iter().all(|file| unit.contains(&format!("\nConditionPathExists={file}\n"))));
        assert!(!unit.contains("/usr/local"));
    }

    #[test]
    fn changed_source_is_a_fault() {
        let error = packaged("[Unit]\n[Service]\nExecStart=/bin/true\n").unwrap_err().to_string();
        assert!(error.contains("ExecStart"), "{error}");
    }
}
