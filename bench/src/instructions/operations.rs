//! The operations of the core alone, without Envoy.

use std::path::Path;

use anyhow::{Result, ensure};
use quotagate_workspace::task;

use super::callgrind::Callgrind;

/// The package that runs each operation.
const PACKAGE: &str = "quotagate-bench-core";
/// The function in which it does so.
const MEASURED: &str = "quotagate_bench_core::measured";
/// How often it does so.
const TIMES: u32 = 100;

/// What an operation of the core costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Operation {
    /// What it does.
    pub name: String,
    /// Its instructions.
    pub instructions: f64,
    /// How often it takes memory.
    pub allocations: f64,
}

/// Counts the instructions of each operation.
pub fn measure(valgrind: &Path) -> Result<Vec<Operation>> {
    task::step("bench: instructions of the core alone");
    let callgrind = Callgrind::new(valgrind.to_owned())?;
    let mut cargo = task::cargo();
    cargo.args(["run", "--locked", "--quiet", "--profile", "callgrind", "--package", PACKAGE]);
    let words = callgrind.within(MEASURED);
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    cargo.arg("--config").arg(format!("target.'cfg(unix)'.runner = [{}]", words.join(", ")));
    let printed = task::printed(cargo.args(["--", &TIMES.to_string()]))?;
    let (names, counts) = (printed.lines(), callgrind.calls(PACKAGE, "core")?);
    ensure!(
        names.clone().count() == counts.len() && !counts.is_empty(),
        "callgrind saw {} calls of {MEASURED}, but the operations are:\n{printed}",
        counts.len()
    );
    let operations = names.zip(counts).map(|(name, counts)| Operation {
        name: name.to_owned(),
        instructions: counts.total as f64 / f64::from(TIMES),
        allocations: counts.allocations as f64 / f64::from(TIMES),
    });
    Ok(operations.collect())
}
