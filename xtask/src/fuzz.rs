//! `cargo xtask fuzz`: hostile bytes for the configuration's reader, the keys, the readers of the
//! store's replies and of token usage, and the take-up of published documents.
//!
//! With cargo-fuzz and a nightly Rust, libFuzzer searches for bytes that reach new code. Without
//! them, the same checks run over random bytes, as the tests do, but over far more. Findings,
//! corpora and builds stay below Cargo's target directory.

use std::{fs, process::Command};

use anyhow::{Context, Result};
use quotagate_workspace::{paths, task};

/// The targets, and the folders of inputs to begin with besides what earlier runs have found.
const TARGETS: [(&str, &[&str]); 5] = [
    ("config", &["crates/quota/tests/fixtures", REFUSED]),
    ("key", &[]),
    ("reply", &[]),
    ("take_up", &[]),
    ("usage", &[]),
];

/// The folder of the documents that the reader must refuse: [`write_refused`] makes it.
const REFUSED: &str = "target/fuzz/seeds/refused";

/// The number of random cases per target without cargo-fuzz.
const CASES: u32 = 100_000;

/// Runs each target for so many seconds.
pub fn run(seconds: u32) -> Result<()> {
    if task::succeeds(cargo_fuzz().arg("--version")) {
        write_refused()?;
        return TARGETS.iter().try_for_each(|(target, seeds)| search(target, seeds, seconds));
    }
    task::step(&format!("fuzz: {CASES} random cases of each"));
    task::note(
        "no cargo-fuzz with a nightly Rust; to search instead: rustup toolchain install nightly, and",
    );
    task::note("cargo install cargo-fuzz");
    let tests = [
        "test",
        "--locked",
        "--release",
        "--package",
        "quotagate-quota",
        "--test",
        "hostile",
        "fuzz_",
    ];
    task::visibly(task::cargo().args(tests).env("QUOTAGATE_FUZZ_CASES", CASES.to_string()))
}

/// Writes the documents of `crates/quota/tests/config/faults`, which are patches there.
fn write_refused() -> Result<()> {
    let folder = paths::root().join(REFUSED);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let test = ["test", "--locked", "--package", "quotagate-quota", "--test", "config"];
    let writes = ["--", "--ignored", "--exact", "faults::write_seeds"];
    task::visibly(task::cargo().args(test).args(writes).env("QUOTAGATE_SEEDS", folder))
}

fn search(target: &str, seeds: &[&str], seconds: u32) -> Result<()> {
    task::step(&format!("fuzz: {target}, for {seconds} s"));
    let folder = paths::root().join("target").join("fuzz");
    let (corpus, findings) =
        (folder.join("corpus").join(target), folder.join("findings").join(target));
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut fuzz = cargo_fuzz();
    // In safe Rust a sanitizer finds nothing, and the search is several times faster without it.
    fuzz.args(["run", "--sanitizer", "none", "--target-dir"])
        .arg(&folder)
        .arg(target)
        .arg(&corpus)
        .args(seeds);
    fuzz.arg("--").args([
        "-max_len=8192",
        "-len_control=0",
        "-timeout=10",
        "-verbosity=0",
        "-print_final_stats=1",
    ]);
    // The slash makes it a folder.
    fuzz.arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", findings.display()));
    task::visibly(&mut fuzz)
}

/// Through rustup, because the Rust that runs this task is no nightly.
fn cargo_fuzz() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "fuzz"]).current_dir(paths::root());
    command
}
