//! What fits on a terminal: a longer line would wrap and push the first lines out of sight.

use std::cmp::Ordering;

/// The first rows of a text, each cut to so many columns. Colours take no column, and are ended where a line is cut.
pub(crate) fn clip(text: &str, rows: usize, columns: usize) -> String {
    let lines: Vec<String> = text.lines().take(rows).map(|line| clip_line(line, columns)).collect();
    // A line's end after the last row would scroll.
    lines.join("\n")
}

fn clip_line(line: &str, columns: usize) -> String {
    let is_cut = marked(line).filter(|(_, is_visible)| *is_visible).count() > columns;
    let mut shown = 0;
    let kept = marked(line).filter_map(|(c, is_visible)| {
        shown += usize::from(is_visible);
        match shown.cmp(&columns) {
            _ if !is_visible => Some(c),
            Ordering::Less => Some(c),
            Ordering::Equal => Some(if is_cut { '…' } else { c }),
            Ordering::Greater => None,
        }
    });
    kept.collect()
}

/// The characters of a line, and whether each takes a column; those of a colour take none.
fn marked(line: &str) -> impl Iterator<Item = (char, bool)> {
    let mut is_colour = false;
    line.chars().map(move |c| {
        let is_hidden = is_colour || c == '\u{1b}';
        is_colour = is_hidden && c != 'm';
        (c, !is_hidden)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_the_edge_and_colours_end() {
        assert_eq!(clip("abcdef\nabc\nlast\n", 2, 4), "abc…\nabc");
        assert_eq!(clip("\u{1b}[31mabcdef\u{1b}[0m\n", 9, 4), "\u{1b}[31mabc…\u{1b}[0m");
        assert_eq!(clip("\u{1b}[31mabcd\u{1b}[0m", 9, 4), "\u{1b}[31mabcd\u{1b}[0m");
        assert_eq!(
            (clip("", 3, 3), clip("ab", 0, 3), clip("äöü", 1, 2)),
            ("".into(), "".into(), "ä…".into())
        );
        assert_eq!(clip("ab", 1, 1), "…");
    }
}
