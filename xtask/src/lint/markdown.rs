//! Markdown: prose wraps and avoids replaced words. Tables, code blocks and HTML stay as they are.

use super::{Fault, too_long, words};

/// The faults of a Markdown text.
pub fn faults(text: &str) -> Vec<Fault> {
    let (mut faults, mut fenced) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let start = line.trim_start();
        if start.starts_with("```") {
            fenced = !fenced;
        }
        if fenced || start.starts_with("```") {
            continue;
        }
        let cannot_wrap = start.starts_with(['|', '<', '#']) || is_link_definition(start);
        let long = too_long(line).filter(|_| !cannot_wrap);
        faults.extend(
            long.into_iter().chain(words::replaced(line)).map(|rule| Fault { line: number, rule }),
        );
    }
    faults
}

/// `[name]: target`, or an image or link on a line of its own.
fn is_link_definition(start: &str) -> bool {
    let alone = start.trim_start_matches("- ").trim_end_matches(['.', ')']);
    start.starts_with('[') && start.contains("]: ")
        || alone.starts_with("![") && alone.matches("](").count() == 1
        || alone.starts_with('[')
            && alone.rsplit_once("](").is_some_and(|(_, target)| !target.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        faults(text).into_iter().map(|fault| fault.line).collect()
    }

    #[test]
    fn prose_is_checked_and_tables_and_code_are_not() {
        let long = "word ".repeat(30);
        assert_eq!(lines(&format!("short\n{long}\n")), [2]);
        let exempt = format!(
            "| {long} |\n```sh\n{long} whoever\n```\n<p>{long}\n[x]: {long}\n![{long}](x)\n"
        );
        assert_eq!(lines(&exempt), [0; 0]);
        assert_eq!(lines(&format!("```\n```\n- {long}")), [3]);
    }

    #[test]
    fn replaced_words_are_faults_outside_code() {
        assert_eq!(lines("whoever asks\n```\nwhoever\n```\n"), [1]);
    }
}
