//! The advice on `in_flight` as text.

use std::fmt::Write as _;

use super::text::table;
use crate::advice::{Advice, InFlightAdvice, InFlightPercentile};
use crate::display::{counted, number, percent, percent_below};

impl Advice {
    /// Empty if the options do not ask for it.
    pub(super) fn in_flight(&self) -> String {
        let mut text = String::new();
        let missing = self.read.without_duration;
        let Some(of) = &self.in_flight else {
            if missing > 0 {
                text.push_str(
                    "No request has a duration, so there is no advice on in_flight. Add the operator %DURATION% to the \
                     access log, in JSON as the field duration: \"%DURATION%\"; --in-flight=FIELD reads another field.\n",
                );
            }
            return text;
        };
        let _ = writeln!(
            text,
            "Running at once: {} of {}",
            counted(of.requests, "request", "requests"),
            counted(of.users, "user", "users")
        );
        if missing > 0 {
            let _ = writeln!(
                text,
                "{} left out here: does the access log write %DURATION%?",
                counted(
                    missing,
                    "request has no duration in whole milliseconds and is",
                    "requests have no duration in whole milliseconds and are",
                )
            );
        }
        of.write(&mut text);
        let Some(best) = &of.recommended else {
            text.push_str("There was not enough memory for in_flight: raise --memory.\n");
            return text;
        };
        let _ = writeln!(
            text,
            "Recommended: in_flight: {}. It is the smallest limit that refuses less than {} of users and less than {} of \
             requests: {} ({} of {}) and {} ({} of {}).",
            best.in_flight,
            percent(self.limits.users),
            percent(self.limits.windows),
            percent_below(best.users_share, self.limits.users),
            number(best.users),
            number(of.users),
            percent_below(best.requests_share, self.limits.windows),
            number(best.requests),
            number(of.requests),
        );
        if let Some(less) = &of.one_less {
            let _ = writeln!(
                text,
                "{} would refuse {} of users and {} of requests.",
                number(less.in_flight),
                percent(less.users_share),
                percent(less.requests_share)
            );
        }
        text
    }
}

impl InFlightAdvice {
    /// Writes the notes and the percentiles.
    fn write(&self, text: &mut String) {
        if self.one_in > 1 {
            let _ = writeln!(
                text,
                "There was not enough memory for all requests: numbers are estimates from one user in {}. Raise --memory, \
                 or lower --lateness.",
                number(self.one_in)
            );
        }
        if self.late > 0 {
            let _ = writeln!(
                text,
                "{} had been counted to save memory, so in_flight may be too small: raise --memory or --lateness.",
                counted(self.late, "request came after its time", "requests came after their time",)
            );
        }
        // 99.9 % keeps its decimal.
        let shares =
            self.percentiles.iter().map(|of| format!("{} %", (of.share * 1000.0).round() / 10.0));
        let header = [String::new()].into_iter().chain(shares).chain(["most".to_owned()]);
        let row = |name: &str, of: fn(&InFlightPercentile) -> u32| -> Vec<String> {
            let numbers = self.percentiles.iter().map(of).chain([self.most]);
            [name.to_owned()].into_iter().chain(numbers.map(number)).collect()
        };
        let rows = [
            row("when a request arrives, at most", |of| of.requests),
            row("at a user's peak, at most", |of| of.users),
        ];
        *text += &table(header.collect(), rows.into());
    }
}
