//! Tables for people. A row is one line of any length, so that a partition, the last column, can be
//! copied whole.

use std::fmt::Write as _;

use anstyle::{AnsiColor, Style};
use comfy_table::presets::NOTHING;
use comfy_table::{Cell, CellAlignment};

use crate::text::clean;

/// How a row stands out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Not at all.
    Plain,
    /// In yellow: an operator should notice it.
    Notable,
    /// In red: requests are refused.
    Alarming,
}

/// Rows below a heading.
#[derive(Debug)]
pub(crate) struct Table {
    inner: comfy_table::Table,
    weights: Vec<Weight>,
    right: Vec<usize>,
}

impl Table {
    /// A table with these headings. The columns with the indexes `right` hold numbers.
    pub(crate) fn new(headings: &[&str], right: &[usize]) -> Self {
        let mut inner = comfy_table::Table::new();
        inner.load_style(NOTHING);
        let mut table = Self { inner, weights: Vec::new(), right: right.to_vec() };
        let cells = table.cells(headings.iter().map(ToString::to_string));
        table.inner.set_header(cells);
        table
    }

    /// Adds a row. Its cells may hold untrusted text.
    pub(crate) fn row(&mut self, weight: Weight, cells: impl IntoIterator<Item = String>) {
        let cells = self.cells(cells.into_iter());
        self.inner.add_row(cells);
        self.weights.push(weight);
    }

    fn cells(&self, texts: impl Iterator<Item = String>) -> Vec<Cell> {
        let cell = |(i, text): (usize, String)| {
            let cell = Cell::new(clean(&text));
            if self.right.contains(&i) { cell.set_alignment(CellAlignment::Right) } else { cell }
        };
        texts.enumerate().map(cell).collect()
    }

    /// The lines of the table, each with a line feed.
    pub(crate) fn render(&self, colour: bool) -> String {
        let heading = std::iter::once(Style::new().bold());
        let styles = heading.chain(self.weights.iter().map(|weight| weight.style()));
        let mut out = String::new();
        for (line, style) in self.inner.lines().zip(styles) {
            let line = line.trim_end();
            // Writing to a String cannot fail.
            let _ = if colour {
                writeln!(out, "{style}{line}{style:#}")
            } else {
                writeln!(out, "{line}")
            };
        }
        out
    }
}

impl Weight {
    const fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Notable => AnsiColor::Yellow.on_default(),
            Self::Alarming => AnsiColor::Red.on_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&["policy", "used", "partition"], &[1]);
        table.row(Weight::Plain, ["a".into(), "1,000".into(), "x".repeat(200)]);
        table.row(Weight::Alarming, ["per-caller".into(), "7".into(), "e\u{1b}[31m\nvil".into()]);
        table
    }

    #[test]
    fn a_row_is_one_line_without_harmful_characters() {
        let text = table().render(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], " policy       used  partition");
        assert_eq!(lines[1], format!(" a           1,000  {}", "x".repeat(200)));
        assert_eq!(lines[2], r" per-caller      7  e\u{1b}[31m\u{a}vil");
    }

    #[test]
    fn rows_are_coloured_on_request() {
        let text = table().render(true);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("\u{1b}[1m") && lines[0].ends_with("\u{1b}[0m"), "{text:?}");
        assert!(lines[2].starts_with("\u{1b}[31m "), "{text:?}");
        assert!(!lines[1].contains('\u{1b}'), "{text:?}");
    }
}
