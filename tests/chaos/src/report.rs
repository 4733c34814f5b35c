//! The table of what was found.

use std::fmt::Write as _;
use std::time::Duration;

use crate::fault::Fault;
use crate::findings::{Findings, Healing};

/// The head of the table of [`row`].
pub const HEAD: &str = "\
| fault | injected | what clients saw | what was lost | healed after | memory and descriptors | test |
| --- | --- | --- | --- | --- | --- | --- |";

/// A row of the table.
#[must_use]
pub fn row(fault: &Fault, findings: &Findings) -> String {
    let cells = [
        fault.name.replace('_', " "),
        fault.injected.to_owned(),
        seen(findings),
        lost(fault, findings),
        healed(&findings.healing()),
        held(findings),
        format!("`{}`", fault.name),
    ];
    format!("| {} |", cells.join(" | "))
}

fn seen(findings: &Findings) -> String {
    let mut text = String::new();
    for (status, count) in findings.statuses() {
        // Writing into a String cannot fail.
        let _ = write!(text, "{count} x {status}, ");
    }
    let _ = write!(text, "slowest {}", shown(findings.slowest()));
    text
}

fn lost(fault: &Fault, findings: &Findings) -> String {
    let counts = &findings.counts;
    let mut parts = Vec::new();
    if counts.windows > 0 {
        parts.push(match counts.excess {
            0 => format!("none over quota in {} windows", counts.windows),
            over => {
                format!("{over} over quota in {} windows, at most {} in one", counts.windows, counts.most)
            }
        });
    }
    if counts.admitted + counts.used > 0 {
        let (admitted, used) = (counts.admitted, counts.used);
        parts.push(if used >= admitted {
            format!("{admitted} admitted, {used} counted: {} units lost", used - admitted)
        } else {
            format!("{admitted} admitted, {used} counted: {} forgotten", admitted - used)
        });
    }
    parts.extend(findings.notes.iter().cloned());
    parts.extend(fault.bounds.forgets.map(str::to_owned));
    parts.join("; ")
}

fn healed(healing: &Healing) -> String {
    match healing.first {
        None => "not healed".to_owned(),
        Some(first) => format!("{}, last failure {}", shown(first), shown(healing.last)),
    }
}

fn held(findings: &Findings) -> String {
    let texts: Vec<_> = findings.footprints.iter().map(ToString::to_string).collect();
    texts.join(" → ")
}

fn shown(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}
