//! The advice as text for people.

use std::fmt::Write as _;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use jiff::Timestamp;

use crate::advice::{Advice, Candidate};
use crate::shown::grouped;
use crate::snippet::window;

/// How many logs are named that are none.
const SHOWN: usize = 3;

impl Advice {
    /// All of it, as text.
    #[must_use]
    pub fn text(&self) -> String {
        let parts = [self.reading(), self.table(), self.reason(), self.snippet.clone()];
        parts.map(|part| part.trim_end().to_owned() + "\n").join("\n")
    }

    fn reading(&self) -> String {
        let read = &self.read;
        let mut text = format!(
            "{} requests of {} users in {} user-windows of {}, from {} to {}\n",
            grouped(read.requests),
            grouped(self.users),
            grouped(self.user_windows),
            window(self.window_s),
            time(read.first_ms),
            time(read.last_ms),
        );
        let mut note = |number: u64, what: &str| {
            if number > 0 {
                let _ = writeln!(text, "{} {what}", grouped(number));
            }
        };
        note(read.without_partition, "requests name nobody and are left out: no policy counted them");
        note(read.left_out, "requests were not asked for");
        note(read.malformed, "lines are malformed and left out");
        for line in &read.malformed_first {
            let _ = writeln!(text, "  {} at byte {}: {}", line.log, line.byte, line.text);
        }
        for log in read.no_logs.iter().take(SHOWN) {
            let _ = writeln!(text, "  no line of {log} is understood: is it an access log?");
        }
        if let Some(more) = read.no_logs.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(text, "  nor of {more} others");
        }
        for damage in &read.damaged {
            let _ = writeln!(text, "{} is cut short ({}): what came before counts", damage.log, damage.why);
        }
        if let Some(sample) = &self.sample {
            let _ = writeln!(
                text,
                "Memory did not suffice for all users: numbers are estimates from {} of them, of some parts one in {}. \
                 Of the recommended quota the share of users is known to ±{}, that of user-windows to ±{} (one standard \
                 error). --memory allows more",
                grouped(sample.users),
                grouped(sample.one_in),
                percent(sample.users_error),
                percent(sample.user_windows_error),
            );
        }
        if read.late > 0 {
            let _ = writeln!(
                text,
                "{} requests came after their window had been closed to save memory, and count as windows of their own: \
                 the quota may be too small. --memory or --lateness allow more",
                grouped(read.late)
            );
        }
        if self.rounded {
            text.push_str("Counts of 1,024 and more are rounded up by less than 0.05 %\n");
        }
        text
    }

    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING);
        let above =
            if self.read.units == self.read.requests { "requests above it" } else { "units above it" };
        table.set_header(["", "quota", "users refused", "", "user-windows refused", "", above, ""]);
        for candidate in &self.candidates {
            table.add_row(self.row(candidate));
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_padding((0, 2));
        }
        let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
        lines.join("\n") + "\n"
    }

    fn row(&self, candidate: &Candidate) -> [String; 8] {
        let mark = if candidate.quota == self.recommended.quota { ">" } else { "" };
        [
            mark.to_owned(),
            grouped(candidate.quota.into()),
            grouped(candidate.users),
            percent(candidate.users_share),
            grouped(candidate.user_windows),
            percent(candidate.user_windows_share),
            grouped(candidate.units),
            percent(candidate.units_share),
        ]
    }

    /// Why this quota.
    fn reason(&self) -> String {
        let best = &self.recommended;
        let mut text = format!(
            "Recommended: {} per {}. It is the smallest quota that refuses less than {} of users and less than {} of \
             user-windows: {} ({} of {}) and {} ({} of {}).\n",
            grouped(best.quota.into()),
            window(self.window_s),
            percent(self.limits.users),
            percent(self.limits.windows),
            percent(best.users_share),
            grouped(best.users),
            grouped(self.users),
            percent(best.user_windows_share),
            grouped(best.user_windows),
            grouped(self.user_windows),
        );
        if let Some(less) = &self.one_less {
            let _ = writeln!(
                text,
                "{} would refuse {} and {}.",
                grouped(less.quota.into()),
                percent(less.users_share),
                percent(less.user_windows_share)
            );
        }
        if best.quota == self.most && best.users == 0 {
            let _ = writeln!(
                text,
                "That is the most that anybody took: with {} users and {} user-windows no smaller one stays below both \
                 limits. Read more of the log, or allow more with --max-users and --max-windows.",
                grouped(self.users),
                grouped(self.user_windows)
            );
        }
        text
    }
}

fn time(milliseconds: i64) -> String {
    let seconds = milliseconds.div_euclid(1000);
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Two digits that say something, for shares however small.
pub(crate) fn percent(share: f64) -> String {
    let value = share * 100.0;
    let places = match value {
        _ if value >= 10.0 || value == 0.0 => 0,
        _ if value >= 1.0 => 1,
        _ if value >= 0.1 => 2,
        _ if value >= 0.01 => 3,
        _ if value >= 0.001 => 4,
        _ if value >= 0.0001 => 5,
        _ => 6,
    };
    // 0.10 says no more than 0.1.
    let text = format!("{value:.places$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        let shares = [0.0, 1.0, 0.123, 0.0123, 0.001, 0.00012, 0.000_001];
        assert_eq!(shares.map(percent), ["0 %", "100 %", "12 %", "1.2 %", "0.1 %", "0.012 %", "0.0001 %"]);
        assert_eq!(time(1_795_301_741_999), "2026-11-21T22:55:41Z");
    }
}
