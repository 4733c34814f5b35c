//! The admitted units of each window, compared with its quota. Times are seconds since 1970.

use std::collections::BTreeMap;

use super::document::Way;

/// A counter: the way, the user, and the owner of the address.
pub type Counter = (Way, usize, u8);

/// Units admitted, by counter and end of the window.
#[derive(Debug, Clone, Default)]
pub struct Windows(BTreeMap<(Counter, u64), u64>);

/// The verdict over all windows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Windows in which something was admitted.
    pub windows: usize,
    /// The windows among them whose quota was used up.
    pub full: usize,
    /// Units over quota.
    pub excess: u64,
    /// Units over quota in windows that are excused.
    pub excused: u64,
}

impl Windows {
    /// Counts one admitted unit. `reset` is the end of its window according to the answer: rounded
    /// up, never early.
    pub fn admitted(&mut self, counter: Counter, reset: u64) {
        let length = counter.0.window_s();
        *self.0.entry((counter, reset / length * length)).or_default() += 1;
    }

    /// Adds what other clients saw.
    pub fn join(&mut self, other: Self) {
        for (window, units) in other.0 {
            *self.0.entry(window).or_default() += units;
        }
    }

    /// Judges the windows. Those that meet one of these spans are excused.
    #[must_use]
    pub fn judge(&self, excused: &[(u64, u64)]) -> Verdict {
        let mut verdict = Verdict { windows: self.0.len(), ..Verdict::default() };
        for (((way, user, _), ends), units) in &self.0 {
            let quota = way.quota(*user);
            verdict.full += usize::from(*units >= quota);
            let begins = ends.saturating_sub(way.window_s());
            let over = units.saturating_sub(quota);
            if excused.iter().any(|(from, to)| *from <= *ends && begins <= *to) {
                verdict.excused += over;
            } else {
                verdict.excess += over;
            }
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_window_holds_its_quota_unless_excused() {
        let mut windows = Windows::default();
        let quota = Way::Exact.quota(0);
        for _ in 0..=quota {
            windows.admitted((Way::Exact, 0, 1), 400);
            windows.admitted((Way::Exact, 1, 1), 803);
        }
        windows.admitted((Way::Leased, 0, 1), 400);
        let verdict = Verdict { windows: 3, full: 2, excess: 2, excused: 0 };
        assert_eq!(windows.judge(&[]), verdict);
        // The second is the window from 796 to 800.
        let one = Verdict { excess: 1, excused: 1, ..verdict };
        assert_eq!(windows.judge(&[(700, 795), (800, 900)]), one);
        assert_eq!(windows.judge(&[(700, 795), (801, 900)]), verdict);
    }
}
