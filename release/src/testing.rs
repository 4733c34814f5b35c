//! Small parts for tests.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use quotagate_workspace::paths;

use crate::{Architecture, Parts};

/// Writes a shell script.
pub fn script(file: &Path, code: &str) -> PathBuf {
    fs::write(file, format!("#!/bin/sh\n{code}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    file.to_path_buf()
}

/// Writes a command that can do what packing needs.
pub fn command(folder: &Path) -> PathBuf {
    fs::create_dir_all(folder).unwrap();
    let man = r#"for page in quotagate quotagate-serve; do echo ".TH $page" >"$2/$page.1"; done"#;
    let code = format!("if [ \"$1\" = man ]; then {man}; else echo \"$@\"; fi");
    script(&folder.join(paths::COMMAND), &code)
}

/// Writes parts for these architectures below a folder.
pub fn parts(folder: &Path, architectures: &[Architecture]) -> Parts {
    let write = |file: PathBuf| {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, file.file_name().unwrap().as_encoded_bytes()).unwrap();
    };
    for architecture in architectures {
        let folder = folder.join(architecture.name());
        command(&folder);
        write(folder.join(paths::MODULE));
    }
    command(&folder.join(std::env::consts::ARCH));
    write(folder.join("wasm").join(paths::FILTER));
    write(folder.join("wasm").join(paths::BODIES_FILTER));
    let commit = Some("abcdef123456".to_owned());
    Parts::find(folder, architectures, commit, 1_700_000_000).unwrap()
}
