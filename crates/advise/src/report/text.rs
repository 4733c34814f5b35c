//! The advice as text.

use std::fmt::Write as _;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::advice::{Advice, Candidate, Percentile, Reading, WindowAdvice};
use crate::display::{counted, number, percent, percent_below};

/// How many unreadable logs are named.
const SHOWN: usize = 3;
/// From this share on, requests without a user make the recommendation doubtful.
const DOUBTFUL: f64 = 0.01;

impl Advice {
    /// The whole advice as text.
    #[must_use]
    pub fn text(&self) -> String {
        let read = [self.head(), self.notes()].concat();
        let several = self.windows.len() > 1;
        let windows = self.windows.iter().flat_map(|window| {
            let head = if several { window.head() } else { String::new() };
            let notes = [head, window.notes(), window.percentiles()].concat();
            [notes, window.table(&self.read), self.reason(window), window.top()]
        });
        let tail = [self.in_flight(), self.snippet.clone()];
        let parts = [read].into_iter().chain(windows).chain(tail);
        let parts: Vec<String> = parts
            .filter(|part| !part.is_empty())
            .map(|part| part.trim_end().to_owned() + "\n")
            .collect();
        parts.join("\n")
    }

    fn head(&self) -> String {
        let read = &self.read;
        let (first, last) = (time(read.first_ms), time(read.last_ms));
        let whose = match self.windows.as_slice() {
            [only] => format!(
                " of {} users in {} user-windows of {}",
                number(only.users),
                number(only.user_windows),
                only.window
            ),
            _ => String::new(),
        };
        format!("{} requests{whose}, from {first} to {last}\n", number(read.requests))
    }

    fn notes(&self) -> String {
        let read = &self.read;
        let mut text = String::new();
        let mut note = |count: u64, one: &str, several: &str| {
            if count > 0 {
                let _ = writeln!(text, "{}", counted(count, one, several));
            }
        };
        note(
            read.not_counted,
            "request has empty fields and is left out: no policy counted it",
            "requests have empty fields and are left out: no policy counted them",
        );
        note(
            read.without_field,
            "request has no field for the user and is left out: another log format, or no policy counted it",
            "requests have no field for the user and are left out: another log format, or no policy counted them",
        );
        note(
            read.without_user,
            "request has no user and is left out",
            "requests have no user and are left out",
        );
        note(
            read.without_cost,
            "request has no whole number in the field of the cost and counts as one unit",
            "requests have no whole number in the field of the cost and count as one unit each",
        );
        note(
            read.not_selected,
            "request is of another policy or path",
            "requests are of other policies or paths",
        );
        note(read.malformed, "line is malformed and left out", "lines are malformed and left out");
        for line in &read.malformed_first {
            let _ = writeln!(text, "  {} at byte {}: {}", line.log, line.byte, line.text);
        }
        for log in read.unreadable.iter().take(SHOWN) {
            let _ = writeln!(text, "  no line of {log} can be read: is it an access log?");
        }
        if let Some(more) = read.unreadable.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(text, "  and no line of {more} other logs");
        }
        for excluded in &read.excluded {
            let _ = match excluded.requests {
                0 => writeln!(text, "--exclude {} matches no user", excluded.users),
                requests => {
                    writeln!(
                        text,
                        "{} requests of {} are excluded",
                        number(requests),
                        excluded.users
                    )
                }
            };
        }
        for damage in &read.damaged {
            let _ = writeln!(
                text,
                "{} is truncated ({}): everything before the cut counts",
                damage.log, damage.why
            );
        }
        text
    }

    /// The reason for the recommended quota.
    fn reason(&self, of: &WindowAdvice) -> String {
        let best = &of.recommended;
        let mut text = format!(
            "Recommended: {} per {}. It is the smallest quota that refuses less than {} of users and less than {} of \
             user-windows: {} ({} of {}) and {} ({} of {}).\n",
            number(best.quota),
            of.window,
            percent(self.limits.users),
            percent(self.limits.windows),
            percent_below(best.users_share, self.limits.users),
            number(best.users),
            number(of.users),
            percent_below(best.user_windows_share, self.limits.windows),
            number(best.user_windows),
            number(of.user_windows),
        );
        if let Some(less) = &of.one_less {
            let _ = writeln!(
                text,
                "{} would refuse {} of users and {} of user-windows.",
                number(less.quota),
                percent(less.users_share),
                percent(less.user_windows_share)
            );
        }
        if best.quota == of.most && best.users == 0 {
            let _ = writeln!(
                text,
                "This is the largest user-window: with {} users and {} user-windows, no smaller quota stays below both \
                 limits. Read a longer log, or raise --max-users and --max-windows.",
                number(of.users),
                number(of.user_windows)
            );
        }
        if let Some(without) = &of.without_top {
            let users = if without.left_out == 1 {
                "user with the largest window".to_owned()
            } else {
                format!("{} users with the largest windows", without.left_out)
            };
            let _ = match &without.recommended {
                Some(best) => {
                    writeln!(text, "Without the {users}: {} per {}.", number(best.quota), of.window)
                }
                None if without.others == 0 => {
                    writeln!(text, "Without the {users}, no user is left.")
                }
                None => writeln!(
                    text,
                    "There was not enough memory for a quota without the {users}: raise --memory."
                ),
            };
        }
        let unknown = self.read.not_counted + self.read.without_field;
        let share = unknown as f64 / (unknown + self.read.requests).max(1) as f64;
        if share >= DOUBTFUL {
            let _ = writeln!(
                text,
                "Careful: {} of the requests ({}) have no user, so all numbers above leave them out. If this policy should \
                 have counted them, the quota is too small.",
                percent(share),
                number(unknown)
            );
        }
        text
    }
}

impl WindowAdvice {
    fn head(&self) -> String {
        format!(
            "Windows of {}: {} users in {} user-windows\n",
            self.window,
            number(self.users),
            number(self.user_windows)
        )
    }

    fn notes(&self) -> String {
        let mut text = String::new();
        if let Some(sample) = &self.sample {
            let _ = writeln!(
                text,
                "There was not enough memory for all users: numbers are estimates from a sample of {} users, at least one \
                 in {}. For the recommended quota, the standard error is ±{} of users and ±{} of user-windows. For exact \
                 numbers, raise --memory.",
                number(sample.users),
                number(sample.one_in),
                percent(sample.users_error),
                percent(sample.user_windows_error),
            );
        }
        if self.late > 0 {
            let _ = writeln!(
                text,
                "{} requests came after their window had been closed to save memory. They count as windows of their own, so \
                 the quota may be too small: raise --memory or --lateness.",
                number(self.late)
            );
        }
        if self.rounded {
            text.push_str("Counts of 1,024 and more are rounded up by less than 0.05 %.\n");
        }
        text
    }

    /// The table of percentiles.
    fn percentiles(&self) -> String {
        // 99.9 % keeps its decimal.
        let shares =
            self.percentiles.iter().map(|of| format!("{} %", (of.share * 1000.0).round() / 10.0));
        let header = [String::new()].into_iter().chain(shares).chain(["most".to_owned()]);
        let row = |name: &str, of: fn(&Percentile) -> u32| -> Vec<String> {
            let numbers = self.percentiles.iter().map(of).chain([self.most]);
            [name.to_owned()].into_iter().chain(numbers.map(number)).collect()
        };
        let rows = [
            row("units in a user-window, at most", |of| of.user_windows),
            row("in a user's largest window, at most", |of| of.users),
        ];
        table(header.collect(), rows.into())
    }

    fn table(&self, read: &Reading) -> String {
        let above =
            if read.units == read.requests { "requests above it" } else { "units above it" };
        let header = ["", "quota", "users refused", "", "user-windows refused", "", above, ""];
        let columns = header.len() - if self.recommended.units.is_none() { 2 } else { 0 };
        let columns = |row: [String; 8]| row.into_iter().take(columns).collect();
        let rows = self.candidates.iter().map(|candidate| columns(self.row(candidate)));
        let rows = rows.collect();
        table(columns(header.map(str::to_owned)), rows)
    }

    fn row(&self, candidate: &Candidate) -> [String; 8] {
        let mark = if candidate.quota == self.recommended.quota { ">" } else { "" };
        [
            mark.to_owned(),
            number(candidate.quota),
            number(candidate.users),
            percent(candidate.users_share),
            number(candidate.user_windows),
            percent(candidate.user_windows_share),
            candidate.units.map(number).unwrap_or_default(),
            candidate.units_share.map(percent).unwrap_or_default(),
        ]
    }

    /// The users with the largest windows.
    fn top(&self) -> String {
        let quota = self.recommended.quota;
        let mut text = String::new();
        if self.top_users.is_empty() {
            return text;
        }
        let _ = writeln!(text, "Largest windows of {}:", self.window);
        let width = number(self.most).len();
        for user in &self.top_users {
            let refused = if user.most > quota { ", refused" } else { "" };
            let _ = writeln!(
                text,
                "  {:>width$}  {} (at {}{refused})",
                number(user.most),
                user.user,
                local_time(user.window_ms, &self.window.time_zone())
            );
        }
        text
    }
}

pub(super) fn table(header: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING);
    table.set_header(header);
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
        column.set_padding((0, 2));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}

fn time(milliseconds: i64) -> String {
    let seconds = milliseconds.div_euclid(1000);
    Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// The time with its offset from UTC.
fn local_time(milliseconds: i64, zone: &TimeZone) -> String {
    let seconds = milliseconds.div_euclid(1000);
    match Timestamp::from_second(seconds) {
        Ok(time) if *zone != TimeZone::UTC => {
            time.display_with_offset(zone.to_offset(time)).to_string()
        }
        _ => self::time(milliseconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_in_whole_seconds() {
        assert_eq!(time(1_795_301_741_999), "2026-11-21T22:55:41Z");
    }
}
