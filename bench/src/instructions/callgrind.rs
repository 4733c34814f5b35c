//! Callgrind: how it runs a program, and the files that it writes.
//!
//! The format of the files is in the manual of Valgrind, "Callgrind Format Specification".

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// How a program takes memory.
const ALLOCATES: [&str; 5] = ["malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc"];

/// A program that runs under callgrind, which counts from [`begin`](Self::begin) to
/// [`end`](Self::end).
#[derive(Debug)]
pub struct Callgrind {
    valgrind: PathBuf,
    directory: tempfile::TempDir,
}

/// What callgrind counted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstructionCounts {
    /// All instructions.
    pub total: u64,
    /// How often each function was called, and the instructions of these calls, with all that they
    /// call. Only of functions that have a name.
    pub calls: BTreeMap<String, Calls>,
    /// How often the object took memory, such as the native module.
    pub allocations: u64,
}

/// The calls of a function.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// How many.
    pub count: u64,
    /// Their instructions.
    pub instructions: u64,
}

impl Callgrind {
    /// With this valgrind.
    pub fn new(valgrind: PathBuf) -> Result<Self> {
        Ok(Self { valgrind, directory: tempfile::tempdir()? })
    }

    /// The command that runs a program.
    pub fn command(&self) -> Vec<OsString> {
        self.with(["--instr-atstart=no".to_owned(), "--smc-check=all-non-file".to_owned()])
    }

    /// The command that runs a program to its end, and counts only what happens within a function.
    /// [`calls`](Self::calls) returns the counts.
    pub fn within(&self, function: &str) -> Vec<OsString> {
        self.with(["--zero-before", "--dump-after"].map(|name| format!("{name}={function}")))
    }

    fn with(&self, options: [String; 2]) -> Vec<OsString> {
        let mut out = OsString::from("--callgrind-out-file=");
        out.push(self.directory.path().join("out"));
        let quiet = ["--tool=callgrind", "--quiet"].map(OsString::from);
        let options = quiet.into_iter().chain(options.map(OsString::from)).chain([out]);
        std::iter::once(self.valgrind.clone().into()).chain(options).collect()
    }

    /// Callgrind counts from now on.
    pub fn begin(&self, pid: u32) -> Result<()> {
        control(&["-i", "on"], pid)
    }

    /// Callgrind stops, and tells what it counted. `name` is that of the file, if it is kept.
    pub fn end(&self, pid: u32, object: &str, name: &str) -> Result<InstructionCounts> {
        control(&["-i", "off"], pid)?;
        control(&["-d"], pid)?;
        let mut dumps = self.calls(object, name)?;
        dumps.pop().context("callgrind wrote no file")
    }

    /// What callgrind counted in each call of the function, in their order.
    pub fn calls(&self, object: &str, name: &str) -> Result<Vec<InstructionCounts>> {
        // Valgrind writes a file `out` without a number when the program ends.
        let number = |path: &Path| path.extension()?.to_str()?.parse::<u32>().ok();
        let mut dumps = BTreeMap::new();
        for entry in fs::read_dir(self.directory.path())? {
            let path = entry?.path();
            dumps.extend(number(&path).map(|number| (number, path)));
        }
        let read = |(number, dump): (u32, PathBuf)| {
            let counts = InstructionCounts::parse(&fs::read_to_string(&dump)?, object)
                .with_context(|| format!("cannot read {}", dump.display()))?;
            keep(&dump, &format!("callgrind.out.{name}.{number}"))?;
            Ok(counts)
        };
        dumps.into_iter().map(read).collect()
    }
}

/// The variable that names a folder in which the files of callgrind stay, for `callgrind_annotate`.
const KEEP: &str = "QUOTAGATE_CALLGRIND";

/// Removes a file, or moves it to where the user wants it.
fn keep(dump: &Path, name: &str) -> Result<()> {
    if let Some(folder) = std::env::var_os(KEEP).filter(|folder| !folder.is_empty()) {
        let kept = Path::new(&folder).join(name);
        fs::copy(dump, &kept)
            .with_context(|| format!("{KEEP}: cannot write {}", kept.display()))?;
    }
    Ok(fs::remove_file(dump)?)
}

fn control(arguments: &[&str], pid: u32) -> Result<()> {
    let mut command = Command::new("callgrind_control");
    command.args(arguments).arg(pid.to_string());
    let output = command.output().context("cannot run callgrind_control")?;
    if !output.status.success() {
        bail!(
            "callgrind_control {} failed: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

impl InstructionCounts {
    /// Reads a file of callgrind's, and counts how often an object of this name took memory.
    fn parse(text: &str, object: &str) -> Result<Self> {
        let mut counts = Self::default();
        let mut summary = None;
        let (mut objects, mut functions) = (Names::default(), Names::default());
        // The object of the function whose costs follow, and what it calls next.
        let (mut caller, mut callee) = (String::new(), String::new());
        let mut called: Option<u64> = None;
        for line in text.lines() {
            if let Some(count) = called.take() {
                let cost = line.split_ascii_whitespace().nth(1).unwrap_or("0").parse::<u64>();
                let instructions = cost.with_context(|| format!("the cost of a call: {line}"))?;
                // A recursive call has a number behind its name.
                let name = callee.split('\'').next().unwrap_or_default();
                if caller.ends_with(object) && ALLOCATES.contains(&name) {
                    counts.allocations += count;
                }
                let calls = counts.calls.entry(name.to_owned()).or_default();
                calls.count += count;
                calls.instructions += instructions;
                continue;
            }
            let Some((field, value)) = line.split_once(['=', ':']) else { continue };
            match field {
                "ob" => caller = objects.name(value),
                "cob" => drop(objects.name(value)),
                "fn" => drop(functions.name(value)),
                "cfn" => callee = functions.name(value),
                "calls" => {
                    let count = value.split_ascii_whitespace().next().unwrap_or_default();
                    called = Some(count.parse().with_context(|| format!("calls: {line}"))?);
                }
                "summary" | "totals" => summary = value.trim().parse().ok().or(summary),
                _ => {}
            }
        }
        counts.total = summary.context("the file has no summary")?;
        Ok(counts)
    }
}

/// Names that are written once, as `(7) name`, and then as `(7)`.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn name(&mut self, text: &str) -> String {
        let Some((number, name)) = text.split_once(')') else { return text.to_owned() };
        let known = self.0.entry(number.to_owned()).or_default();
        if !name.is_empty() {
            name.trim().clone_into(known);
        }
        known.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_allocations_are_counted() {
        let text = "\
version: 1
positions: line
events: Ir
summary: 1000

ob=(1) /usr/bin/envoy
fl=(1) ???
fn=(1) 0x0001
0 500
cob=(2) /x/libquotagate.so
cfn=(2) hook
calls=3 0
0 300
cfn=(3) malloc
calls=9 0
0 90

ob=(2)
fn=(2)
0 60
cob=(1)
cfn=(3)
calls=4 0
* 40
cfn=(4) malloc'2
calls=1 +2
+1 10
";
        let counts = InstructionCounts::parse(text, "libquotagate.so").unwrap();
        assert_eq!((counts.total, counts.allocations), (1000, 5));
        assert_eq!(counts.calls["hook"], Calls { count: 3, instructions: 300 });
        assert_eq!(counts.calls["malloc"], Calls { count: 14, instructions: 140 });
        assert!(InstructionCounts::parse("events: Ir\n", "").is_err(), "nothing was counted");
    }
}
