//! Markdown: prose avoids replaced words. `rumdl` checks its width and its links.

use super::{Fault, words};

/// The faults of a Markdown text outside of code blocks.
pub fn faults(text: &str) -> Vec<Fault> {
    let (mut faults, mut fenced) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let rules = words::replaced(line).into_iter();
            faults.extend(rules.map(|rule| Fault { line: number, rule }));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_words_are_faults_outside_code() {
        let lines = faults("whoever asks\n```\nwhoever\n```\n| whoever |\n").into_iter();
        assert_eq!(lines.map(|fault| fault.line).collect::<Vec<_>>(), [1, 5]);
    }
}
