//! Rust: comments wrap, and comments and identifiers avoid replaced words. The width of code is
//! rustfmt's business.

use anyhow::Result;

use super::{Fault, identifiers, words};

/// Comments wrap here, as Markdown does.
const WIDTH: usize = 100;

/// The faults of the comment lines and identifiers of a Rust file.
///
/// # Errors
/// When the text is not Rust.
pub fn faults(text: &str) -> Result<Vec<Fault>> {
    let mut faults = comments(text);
    faults.extend(identifiers::faults(text)?);
    Ok(faults)
}

fn comments(text: &str) -> Vec<Fault> {
    let comments = (1..).zip(text.lines()).filter(|(_, line)| line.trim_start().starts_with("//"));
    comments
        .flat_map(|(line, comment)| {
            let table = comment.trim_start_matches([' ', '/', '!']).starts_with('|');
            let long = too_long(comment).filter(|_| !table);
            long.into_iter().chain(words::replaced(comment)).map(move |rule| Fault { line, rule })
        })
        .collect()
}

/// A line that is too long, unless it is one word that cannot be wrapped.
fn too_long(line: &str) -> Option<String> {
    let length = line.chars().count();
    let can_wrap = line.trim_start_matches([' ', '/', '!', '*', '-', '>']).contains(' ');
    (length > WIDTH && can_wrap).then(|| format!("{length} columns: wrap at {WIDTH}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_identifiers_are_checked_and_the_width_of_code_is_not() {
        let long = "word ".repeat(30);
        let text = format!(
            "//! fine\nlet fine = \"{long}\";\n/// {long}\nlet whoever = 1;\n    // whoever\n"
        );
        let mut lines: Vec<usize> =
            faults(&text).unwrap().into_iter().map(|fault| fault.line).collect();
        lines.sort_unstable();
        assert_eq!(lines, [3, 4, 5]);
    }

    #[test]
    fn long_lines_are_faults_unless_they_are_one_word() {
        let words = "word ".repeat(20);
        assert_eq!(too_long(words.trim_end()), None);
        assert_eq!(too_long(&format!("{words}x")), Some("101 columns: wrap at 100".to_owned()));
        assert_eq!(too_long(&format!("- {}", "x".repeat(200))), None);
        assert_eq!(too_long(&"µ".repeat(100)), None, "columns are characters");
    }
}
