//! The circumstances of a measurement: programs, machine and date.

use std::{fmt, fs, path::Path, process::Command, thread};

use anyhow::Result;
use quotagate_support::{paths, tools};

/// The circumstances of a measurement.
#[derive(Debug, Clone)]
pub struct Circumstances {
    date: String,
    code: String,
    machine: String,
    versions: Vec<String>,
}

impl Circumstances {
    /// The circumstances here and now.
    pub fn of(load: &Path) -> Result<Self> {
        let git = Command::new("git")
            .args(["describe", "--always", "--dirty", "--tags"])
            .current_dir(paths::root())
            .output();
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            date: first_line(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"])),
            code: git.map(|output| text(&output.stdout)).unwrap_or_default(),
            machine: format!("{cores} cores of {}", model(&cpu)),
            versions: vec![
                format!(
                    "Envoy {}",
                    envoy_version(&first_line(Command::new(tools::envoy()?).arg("--version")))
                ),
                until(&first_line(Command::new(tools::redis_server()?).arg("--version")), " sha=")
                    .to_owned(),
                // wrk exits with an error after it prints its version.
                until(&first_line(Command::new(load).arg("--version")), " [").to_owned(),
                until(&first_line(Command::new("rustc").arg("--version")), " (").to_owned(),
            ],
        })
    }
}

impl fmt::Display for Circumstances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, quotagate {}, {}; {}",
            self.date,
            self.code,
            self.machine,
            self.versions.join("; ")
        )
    }
}

/// The first line that a program prints; empty if it cannot be run.
fn first_line(command: &mut Command) -> String {
    command.output().map(|output| text(&output.stdout)).unwrap_or_default()
}

fn text(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
}

/// `.../envoy  version: <commit>/<version>/Clean/RELEASE/BoringSSL`: the version.
fn envoy_version(line: &str) -> &str {
    line.split('/')
        .rev()
        .find(|part| part.contains('.') && part.starts_with(|c: char| c.is_ascii_digit()))
        .unwrap_or(line)
}

/// The text before `mark`.
fn until<'a>(line: &'a str, mark: &str) -> &'a str {
    line.split_once(mark).map_or(line, |(before, _)| before)
}

/// The processor's name.
fn model(cpuinfo: &str) -> &str {
    let line = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    line.map_or("an unknown processor", |(_, name)| name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_and_version_are_parsed() {
        assert_eq!(model("processor\t: 0\nmodel name\t: AMD EPYC \n"), "AMD EPYC");
        assert_eq!(model(""), "an unknown processor");
        let line = "/x/envoy-1.40.0/envoy  version: 8f3a1b/1.40.0/Clean/RELEASE/BoringSSL";
        assert_eq!(envoy_version(line), "1.40.0");
        assert_eq!(envoy_version("?"), "?");
    }

    #[test]
    fn missing_program_has_no_version() {
        assert_eq!(first_line(&mut Command::new("no-such-program-here")), "");
        assert_eq!(until("wrk 4.1.0 [epoll]", " ["), "wrk 4.1.0");
        assert_eq!(until("wrk", " ["), "wrk");
        assert_eq!(text(b"\n  a b \nc\n"), "a b");
    }
}
