//! The targets that Cargo reports as built.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::Result;
use quotagate_workspace::task;
use serde_json::Value;

/// A target that Cargo has built, or found up to date.
#[derive(Debug)]
pub struct Artifact {
    /// The name of the target.
    pub name: String,
    /// Whether it is a test binary.
    pub test: bool,
    /// The program, if it is one.
    pub executable: Option<PathBuf>,
    /// All files.
    pub files: Vec<PathBuf>,
    /// The folder of the package.
    pub package: PathBuf,
}

/// Runs a Cargo command that builds, and reads what it built.
///
/// # Errors
/// When the command fails.
pub fn build(cargo: &mut Command) -> Result<Vec<Artifact>> {
    let printed =
        task::printed(cargo.arg("--message-format=json-render-diagnostics").stdin(Stdio::null()))?;
    Ok(printed.lines().filter_map(|line| artifact(&serde_json::from_str(line).ok()?)).collect())
}

fn artifact(message: &Value) -> Option<Artifact> {
    let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str);
    if text("/reason")? != "compiler-artifact" {
        return None;
    }
    let files = message.pointer("/filenames")?.as_array()?;
    Some(Artifact {
        name: text("/target/name")?.to_owned(),
        test: message.pointer("/profile/test")?.as_bool()?,
        executable: text("/executable").map(PathBuf::from),
        files: files.iter().filter_map(Value::as_str).map(PathBuf::from).collect(),
        package: PathBuf::from(text("/manifest_path")?).parent()?.to_path_buf(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn programs_and_test_binaries_are_told_apart() {
        let mut message = json!({
            "reason": "compiler-artifact", "manifest_path": "/w/crates/cli/Cargo.toml",
            "target": {"name": "quotagate"}, "profile": {"test": false},
            "filenames": ["/w/target/debug/quotagate"], "executable": "/w/target/debug/quotagate",
        });
        let program = artifact(&message).unwrap();
        assert_eq!((program.name.as_str(), program.test), ("quotagate", false));
        assert_eq!(program.package, PathBuf::from("/w/crates/cli"));
        assert_eq!(program.executable.as_ref(), program.files.first());
        message["profile"]["test"] = json!(true);
        assert!(artifact(&message).unwrap().test);
        message["reason"] = json!("build-finished");
        assert!(artifact(&message).is_none());
    }
}
