//! The results as Markdown tables, and the page that shows them.

use std::fmt::Write as _;
use std::time::Duration;

use crate::document::Kind;
use crate::fault::Fault;
use crate::findings::{Findings, HEALED, Healing};
use crate::spared::Spared;

/// The head of the table of [`row`].
const HEAD: &str = "\
| fault | injected | what clients saw | what was lost | healed after | test |
| --- | --- | --- | --- | --- | --- |";
/// The head of the table of [`held`].
const HELD: &str = "\
| fault | before | after each round |
| --- | --- | --- |";
const BEGIN: &str = "<!-- written by `cargo xtask chaos` -->";
const END: &str = "<!-- written so far -->";

/// The results of one fault.
pub type Result<'a> = (&'a Fault, &'a Findings);

/// Both tables.
#[must_use]
pub fn tables(results: &[Result<'_>]) -> String {
    let rows: Vec<String> = results.iter().map(|(fault, findings)| row(fault, findings)).collect();
    let held: Vec<String> = results.iter().map(|(fault, findings)| held(fault, findings)).collect();
    format!("{HEAD}\n{}\n\n{HELD}\n{}\n", rows.join("\n"), held.join("\n"))
}

/// The page, with the text between its two marks replaced. `None` without both marks.
#[must_use]
pub fn page(old: &str, written: &str) -> Option<String> {
    let (head, rest) = old.split_once(BEGIN)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{BEGIN}\n\n{written}\n{END}{tail}"))
}

/// A row of the table of what clients saw and what was lost.
#[must_use]
pub fn row(fault: &Fault, findings: &Findings) -> String {
    let cells = [
        title(fault),
        fault.injected.to_owned(),
        seen(findings),
        lost(fault, findings),
        healed(findings),
        format!("`{}`", fault.name),
    ];
    format!("| {} |", cells.join(" | "))
}

/// A row of the table of memory and descriptors.
fn held(fault: &Fault, findings: &Findings) -> String {
    let texts: Vec<_> = findings.footprints.iter().map(ToString::to_string).collect();
    let (before, after) =
        texts.split_first().map_or(("", "".to_owned()), |(b, a)| (b, a.join("; ")));
    format!("| {} | {before} | {after} |", title(fault))
}

fn title(fault: &Fault) -> String {
    fault.name.replace('_', " ")
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
                let (passed, windows, most) = (counts.over, counts.windows, counts.most);
                format!("{over} over quota in {passed} of {windows} windows, at most {most} admitted in one")
            }
        });
    }
    if counts.admitted + counts.used > 0 {
        let (admitted, used) = (counts.admitted, counts.used);
        parts.push(format!("{} requests of open users", asked(findings)));
        parts.push(if used >= admitted {
            format!(
                "{admitted} admitted, {used} counted: {} units lost, {} may be",
                used - admitted,
                counts.unsure
            )
        } else {
            format!("{admitted} admitted, {used} counted: {} forgotten", admitted - used)
        });
    }
    if findings.reloads > 0 {
        parts.push(format!("{} virtual machines restarted", findings.reloads));
    }
    parts.extend(fault.bounds.spares.map(|users| Spared::of(findings, users).to_string()));
    parts.extend(fault.bounds.avoided_after.map(|start| {
        let (undecided, all) = findings.undecided_after(start);
        format!("later than {} after the start {undecided} of {all} not counted", shown(start))
    }));
    parts.extend(findings.notes.iter().cloned());
    parts.extend(fault.bounds.forgets.map(str::to_owned));
    parts.join("; ")
}

/// The number of requests for the policy with an unlimited quota.
fn asked(findings: &Findings) -> usize {
    findings.samples.iter().filter(|sample| sample.kind != Kind::Spend).count()
}

fn healed(findings: &Findings) -> String {
    if findings.rounds.is_empty() {
        return "-".to_owned();
    }
    let Healing { first, last, strays, .. } = findings.healing(Duration::ZERO);
    let Some(first) = first else { return "not healed".to_owned() };
    let mut text = match last {
        None if strays > 0 => format!("{}, no failure within {}", shown(first), shown(HEALED)),
        None => format!("{}, no failure after the end", shown(first)),
        Some(last) => format!("{}, last failure {}", shown(first), shown(last)),
    };
    if strays > 0 {
        // Writing into a String cannot fail.
        let _ = write!(text, ", {strays} later");
    }
    text
}

fn shown(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        format!("{} ms", time.as_millis())
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::audit::Counts;
    use crate::findings::Round;
    use crate::load::{Outcome, Sample};

    #[test]
    fn late_failure_and_window_over_quota_are_distinct_faults() {
        let ended = Instant::now();
        let sample = |ms, outcome| Sample {
            kind: Kind::Open,
            user: "open-0".to_owned(),
            sent: ended + Duration::from_millis(ms),
            took: Duration::from_millis(1),
            outcome,
        };
        let mut findings = Findings {
            samples: vec![sample(9, Outcome::Admitted { ends: 4 })],
            rounds: vec![Round { began: ended, ended }],
            counts: Counts {
                windows: 21,
                over: 6,
                excess: 51,
                most: 20,
                admitted: 5,
                used: 7,
                unsure: 3,
            },
            ..Findings::default()
        };
        assert_eq!(healed(&findings), "10 ms, no failure after the end");
        findings.samples.push(sample(2_001, Outcome::Unavailable));
        assert_eq!(healed(&findings), "10 ms, no failure within 2.0 s, 1 later");
        findings.samples.push(sample(1_500, Outcome::Unavailable));
        assert_eq!(healed(&findings), "10 ms, last failure 1.5 s, 1 later");
        let fault = crate::faults::named("store_killed").unwrap();
        let lost = lost(&fault, &findings);
        assert!(
            lost.starts_with("51 over quota in 6 of 21 windows, at most 20 admitted in one"),
            "{lost}"
        );
        assert!(lost.contains("5 admitted, 7 counted: 2 units lost, 3 may be"), "{lost}");
    }

    #[test]
    fn only_the_marked_part_is_replaced() {
        let old = format!("# Head\n{BEGIN}\nold\n{END}\ntail\n");
        let new = page(&old, "new").unwrap();
        assert_eq!(new, format!("# Head\n{BEGIN}\n\nnew\n{END}\ntail\n"));
        assert_eq!(page(&new, "new"), Some(new.clone()));
        assert_eq!(page("no marks", "new"), None);
    }
}
