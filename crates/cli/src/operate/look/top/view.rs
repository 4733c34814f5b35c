//! The full-screen view: what it shows, and what its keys do. It reads no key and asks no store.

use quotagate_operate::api::Top;
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::TopSort;
use super::rows::{PartitionName, PartitionRow, TopFilter, rows};
use super::tables::{ends_in, notices, now_ms, publishers};
use crate::operate::display::{Weight, at_most, full, quota, weight};
use crate::text::{clean, moment, number};

/// Longest filter.
const MAX_FILTER: usize = 100;
/// The widest column before the partition.
const WIDEST: usize = 32;
/// The narrowest column of the partition. On a narrow terminal the others shrink.
const NARROWEST: u16 = 24;
/// What the keys do, at the bottom.
const KEYS: &str = "/ filter  s sort  ↑↓ choose  enter open  q leave";

/// What a key asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pressed {
    /// Nothing but to draw again.
    Draw,
    /// To leave.
    Leave,
    /// To say why this partition is refused.
    Open(PartitionName),
}

/// The view of `quotagate top --watch`.
///
/// Call order: [`show`](Self::show) each answer of the store, pass each key to
/// [`press`](Self::press), and [`draw`](Self::draw) after both. [`Pressed::Open`] is answered with
/// [`open`](Self::open).
pub(super) struct TopView {
    address: String,
    every: String,
    colour: bool,
    sort: TopSort,
    filter: String,
    /// Whether keys go to the filter.
    typing: bool,
    top: Top,
    at_ms: u64,
    /// Why the last answer is old.
    fault: Option<String>,
    chosen: Option<PartitionName>,
    table: TableState,
    /// The lines about the partition that is open, and how many of them have scrolled away.
    opened: Option<(Vec<String>, u16)>,
}

impl TopView {
    /// A view without an answer.
    pub(super) fn new(
        address: String,
        every: String,
        colour: bool,
        sort: TopSort,
        filter: String,
    ) -> Self {
        Self {
            address,
            every,
            colour,
            sort,
            filter,
            typing: false,
            top: Top::default(),
            at_ms: 0,
            fault: None,
            chosen: None,
            table: TableState::default(),
            opened: None,
        }
    }

    /// Takes an answer of the store.
    pub(super) fn show(&mut self, top: Top) {
        (self.top, self.at_ms, self.fault) = (top, now_ms(), None);
    }

    /// Keeps the last answer, because the store did not answer.
    pub(super) fn keep(&mut self, why: &str) {
        self.fault = why.lines().next().map(clean);
    }

    /// Shows these lines about a partition until a key closes them.
    pub(super) fn open(&mut self, lines: Vec<String>) {
        self.opened = Some((lines, 0));
    }

    /// Takes a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Pressed {
        if key.kind == KeyEventKind::Release {
            return Pressed::Draw;
        }
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Pressed::Leave;
        }
        if self.typing {
            self.typed(key.code);
            return Pressed::Draw;
        }
        if let Some((_, scrolled)) = &mut self.opened {
            match key.code {
                KeyCode::Down => *scrolled = scrolled.saturating_add(1),
                KeyCode::Up => *scrolled = scrolled.saturating_sub(1),
                _ => self.opened = None,
            }
            return Pressed::Draw;
        }
        match key.code {
            KeyCode::Char('q') => return Pressed::Leave,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('s') => {
                self.sort = match self.sort {
                    TopSort::Refused => TopSort::Full,
                    TopSort::Full => TopSort::Refused,
                }
            }
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Up => self.choose(|index| index.saturating_sub(1)),
            KeyCode::Down => self.choose(|index| index.saturating_add(1)),
            KeyCode::PageUp => self.choose(|index| index.saturating_sub(10)),
            KeyCode::PageDown => self.choose(|index| index.saturating_add(10)),
            KeyCode::Home => self.choose(|_| 0),
            KeyCode::End => self.choose(|_| usize::MAX),
            KeyCode::Enter => {
                let rows = self.rows();
                let chosen = rows.into_iter().nth(self.index().unwrap_or_default());
                return chosen.map_or(Pressed::Draw, |row| Pressed::Open(row.name));
            }
            _ => {}
        }
        Pressed::Draw
    }

    fn typed(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if self.filter.chars().count() < MAX_FILTER => self.filter.push(c),
            _ => {}
        }
    }

    fn rows(&self) -> Vec<PartitionRow> {
        let mut top = self.top.clone();
        let Ok(filter) = self.filter.parse::<TopFilter>();
        filter.apply(&mut top);
        rows(&top, self.sort)
    }

    /// The row that is chosen. It stays chosen when it moves to another line.
    fn index(&self) -> Option<usize> {
        let chosen = self.chosen.as_ref()?;
        self.rows().iter().position(|row| row.name == *chosen)
    }

    fn choose(&mut self, next: impl Fn(usize) -> usize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        // The first arrow chooses the first row.
        let index = self.index().map_or(0, next).min(last);
        self.chosen = rows.into_iter().nth(index).map(|row| row.name);
    }

    /// Draws it.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let notices = self.notices();
        let height = u16::try_from(notices.len()).unwrap_or(u16::MAX);
        let areas: [Rect; 4] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(height),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let [heading, body, below, keys] = areas;
        let at = moment(self.at_ms);
        let by = match self.sort {
            TopSort::Refused => "refused",
            TopSort::Full => "full",
        };
        let text = format!("{}, {at} UTC, every {}, by {by}", self.address, self.every);
        frame.render_widget(Line::styled(text, Modifier::BOLD), heading);
        match &self.opened {
            Some((lines, scrolled)) => {
                let lines: Vec<Line<'_>> =
                    lines.iter().map(|line| Line::raw(clean(line))).collect();
                let text = Paragraph::new(lines).wrap(Wrap { trim: false }).scroll((*scrolled, 0));
                frame.render_widget(text, body);
            }
            None => self.draw_rows(frame, body),
        }
        let notices: Vec<Line<'_>> = notices.into_iter().map(Line::raw).collect();
        frame.render_widget(Paragraph::new(notices), below);
        let text = match (&self.opened, self.typing, self.filter.as_str()) {
            (Some(_), ..) => "↑↓ scroll, any other key goes back".to_owned(),
            (None, true, filter) => format!("/{}_", clean(filter)),
            (None, false, "") => KEYS.to_owned(),
            (None, false, filter) => format!("{KEYS}  filter: {} (esc clears it)", clean(filter)),
        };
        frame.render_widget(Line::styled(text, Modifier::DIM), keys);
    }

    fn notices(&self) -> Vec<String> {
        let (mut failed, mut missing) = (0_u64, 0_u64);
        for of in &self.top.uncounted {
            failed = failed.saturating_add(of.store_error);
            missing = missing.saturating_add(of.missing_identity);
        }
        let counts = [
            (failed, "requests not counted, because the store failed"),
            (missing, "requests without an identity"),
        ];
        let counts = counts.into_iter().filter(|(count, _)| *count > 0);
        let counts = counts.map(|(count, what)| format!("{} {what}", number(count)));
        let fault = self.fault.iter().cloned();
        let seen = publishers(&self.top.publishers, now_ms());
        fault.chain(counts).chain(notices(&self.top)).chain([seen]).collect()
    }

    fn draw_rows(&mut self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.rows();
        if rows.is_empty() {
            let none = match self.filter.is_empty() {
                true => "no requests were counted lately",
                false => "no row contains the filter",
            };
            frame.render_widget(Line::raw(none), area);
            return;
        }
        let would = rows.iter().any(|row| row.would_refuse.is_some());
        let first = rows.first().map(|row| row.name.0.clone());
        let several = rows.iter().any(|row| Some(&row.name.0) != first.as_ref());
        let mut headings =
            vec!["refused", "full", "used", "quota", "ends in", "policy", "partition"];
        if would {
            headings.insert(1, "would be");
        }
        let cells = |row: &PartitionRow| {
            let usage = row.usage.as_ref();
            let beyond = |of: Option<&_>| of.map_or_else(String::new, beyond);
            let (domain, policy, partition) = &row.name;
            let policy = if several { format!("{domain}:{policy}") } else { policy.clone() };
            let mut cells = vec![
                beyond(row.refused.as_ref()),
                usage.map_or_else(String::new, full),
                usage.map_or_else(String::new, |usage| number(usage.used)),
                usage.map_or_else(String::new, quota),
                usage.map_or_else(String::new, ends_in),
                clean(&policy),
                clean(partition),
            ];
            if would {
                cells.insert(1, beyond(row.would_refuse.as_ref()));
            }
            cells
        };
        let texts: Vec<Vec<String>> = rows.iter().map(cells).collect();
        let policy = headings.len().saturating_sub(2);
        let width = |column: usize| {
            let of = |row: &Vec<String>| row.get(column).map_or(0, |text| text.chars().count());
            let heading = headings.get(column).map_or(0, |text| text.len());
            let width = texts.iter().map(of).max().unwrap_or_default().max(heading).min(WIDEST);
            match column > policy {
                true => Constraint::Min(NARROWEST),
                false => Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)),
            }
        };
        let widths: Vec<Constraint> = (0..headings.len()).map(width).collect();
        let aligned = |(column, text): (usize, String)| {
            let alignment = if column < policy { Alignment::Right } else { Alignment::Left };
            Cell::from(Line::raw(text).alignment(alignment))
        };
        let lines: Vec<Row<'_>> = rows
            .iter()
            .zip(texts)
            .map(|(row, texts)| {
                let cells: Vec<_> = texts.into_iter().enumerate().map(aligned).collect();
                Row::new(cells).style(self.style(row))
            })
            .collect();
        let header: Vec<_> =
            headings.iter().map(|text| (*text).to_owned()).enumerate().map(aligned).collect();
        let table = Table::new(lines, widths)
            .header(Row::new(header).style(Modifier::BOLD))
            .row_highlight_style(Modifier::REVERSED);
        self.table.select(self.index());
        frame.render_stateful_widget(table, area, &mut self.table);
    }

    fn style(&self, row: &PartitionRow) -> Style {
        let weight = match (&row.refused, &row.usage) {
            (Some(_), _) => Weight::Alarming,
            (None, Some(usage)) => weight(usage),
            (None, None) => Weight::Notable,
        };
        match weight {
            Weight::Alarming if self.colour => Style::new().fg(Color::Red),
            Weight::Notable if self.colour => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        }
    }
}

fn beyond(of: &quotagate_operate::api::Refused) -> String {
    at_most(of.requests, of.error)
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rows::tests::{refused, top};
    use super::*;

    fn view(top: Top) -> TopView {
        let address = "127.0.0.1:9181".to_owned();
        let mut view =
            TopView::new(address, "2 s".to_owned(), true, TopSort::Refused, String::new());
        view.show(top);
        view
    }

    fn press(view: &mut TopView, code: KeyCode) -> Pressed {
        view.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn typed(view: &mut TopView, text: &str) {
        for c in text.chars() {
            assert_eq!(press(view, KeyCode::Char(c)), Pressed::Draw);
        }
    }

    /// The lines of a terminal of this size.
    fn screen(view: &mut TopView, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let cells: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        cells.chunks(columns.into()).map(|line| line.concat().trim_end().to_owned()).collect()
    }

    #[test]
    fn refused_come_first_and_shadow_policies_show_their_victims() {
        let mut view = view(top());
        let lines = screen(&mut view, 90, 8);
        assert!(lines[0].starts_with("127.0.0.1:9181, 20"), "{lines:?}");
        assert!(lines[0].ends_with(" UTC, every 2 s, by refused"), "{lines:?}");
        let words: Vec<Vec<&str>> =
            lines.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            words[2],
            ["17", "90", "%", "9", "10", "12", "s", "per-caller", "jwt.sub=alice"]
        );
        assert_eq!(words[3], ["5", "trial", "jwt.sub=tom"]);
        assert_eq!(words[4][..3], ["100", "%", "10"]);
        assert_eq!(lines[7], KEYS);
        typed(&mut view, "s");
        let lines = screen(&mut view, 90, 8);
        assert!(lines[0].ends_with("by full") && lines[2].ends_with("jwt.sub=bob"), "{lines:?}");
    }

    #[test]
    fn slash_filters_while_typing_and_escape_clears_it() {
        let mut view = view(top());
        typed(&mut view, "/Tomq");
        press(&mut view, KeyCode::Backspace);
        let lines = screen(&mut view, 90, 8);
        assert!(lines[2].ends_with("jwt.sub=tom") && lines[7] == "/Tom_", "{lines:?}");
        assert!(!lines.concat().contains("alice"), "{lines:?}");
        press(&mut view, KeyCode::Enter);
        assert!(screen(&mut view, 90, 8)[7].ends_with("filter: Tom (esc clears it)"));
        press(&mut view, KeyCode::Esc);
        assert!(screen(&mut view, 90, 8).concat().contains("alice"));
        typed(&mut view, "/nobody");
        assert_eq!(screen(&mut view, 90, 8)[1], "no row contains the filter");
    }

    #[test]
    fn chosen_row_stays_chosen_when_it_moves_and_enter_opens_it() {
        let mut view = view(top());
        let name = |policy: &str, partition: &str| {
            ("shop".to_owned(), policy.to_owned(), partition.to_owned())
        };
        let opens = |view: &mut TopView| press(view, KeyCode::Enter);
        assert_eq!(opens(&mut view), Pressed::Open(name("per-caller", "jwt.sub=alice")));
        press(&mut view, KeyCode::Down);
        press(&mut view, KeyCode::Down);
        let tom = Pressed::Open(name("trial", "jwt.sub=tom"));
        assert_eq!(opens(&mut view), tom);
        let mut later = top();
        later.refused.push(refused("trial", "jwt.sub=tom", 90));
        view.show(later);
        assert!(screen(&mut view, 90, 8)[2].ends_with("jwt.sub=tom"));
        assert_eq!(opens(&mut view), tom);
        press(&mut view, KeyCode::End);
        assert_eq!(opens(&mut view), Pressed::Open(name("per-caller", "jwt.sub=bob")));
        view.open(vec!["trial in shop would refuse\u{1b}[2J jwt.sub=tom".to_owned()]);
        let lines = screen(&mut view, 90, 8);
        assert!(lines[1].starts_with("trial in shop would refuse\\u{1b}[2J"), "{lines:?}");
        assert_eq!(press(&mut view, KeyCode::Char('q')), Pressed::Draw, "it closes the lines");
        assert_eq!(press(&mut view, KeyCode::Char('q')), Pressed::Leave);
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.press(ctrl_c), Pressed::Leave);
    }

    #[test]
    fn many_rows_fit_every_terminal() {
        let mut top = top();
        top.refused = (0..100)
            .map(|n| refused("per-caller", &format!("jwt.sub={n:03}{}", "x".repeat(200)), n + 1))
            .collect();
        let mut view = view(top);
        for (columns, rows) in [(1, 1), (20, 5), (40, 12), (80, 24), (300, 120)] {
            assert_eq!(screen(&mut view, columns, rows).len(), usize::from(rows));
        }
        assert!(screen(&mut view, 40, 12)[2].contains("jwt.sub=099xxx"), "the name stays readable");
        press(&mut view, KeyCode::End);
        press(&mut view, KeyCode::End);
        let lines = screen(&mut view, 80, 24);
        assert!(lines[20].contains("jwt.sub=bob"), "it scrolls to the chosen row: {lines:?}");
    }

    #[test]
    fn fault_of_the_store_keeps_the_last_rows() {
        let mut view = view(top());
        view.keep("cannot reach the store\nhelp");
        let lines = screen(&mut view, 90, 9);
        assert!(lines[2].ends_with("jwt.sub=alice"), "{lines:?}");
        assert!(lines.contains(&"cannot reach the store".to_owned()), "{lines:?}");
    }
}
