//! Rust: comments wrap and avoid replaced words. The width of code is rustfmt's business.

use super::{Fault, too_long, words};

/// The faults of the comment lines of a Rust file.
pub fn faults(text: &str) -> Vec<Fault> {
    let comments = (1..).zip(text.lines()).filter(|(_, line)| line.trim_start().starts_with("//"));
    comments
        .flat_map(|(line, comment)| {
            let table = comment.trim_start_matches([' ', '/', '!']).starts_with('|');
            let long = too_long(comment).filter(|_| !table);
            long.into_iter().chain(words::replaced(comment)).map(move |rule| Fault { line, rule })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_comments_are_checked() {
        let long = "word ".repeat(30);
        let text = format!("let whoever = \"{long}\";\n/// {long}\n    // whoever\n//! fine\n");
        let lines: Vec<usize> = faults(&text).into_iter().map(|fault| fault.line).collect();
        assert_eq!(lines, [2, 3]);
    }
}
