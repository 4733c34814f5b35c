//! Time zones by name, from the data that this program brings along.

use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::display::shown;
use crate::error::Error;

/// How many similar names an error lists.
const SIMILAR: usize = 3;
/// The least similarity of a name that may have been meant.
const LEAST: f64 = 0.8;

/// The time zone of this name, in any case.
///
/// # Errors
/// An unknown name, with similar ones.
pub(super) fn find(name: &str) -> Result<TimeZone, Error> {
    let known = TimeZoneDatabase::bundled();
    known.get(name).ok().filter(|zone| !zone.is_unknown()).ok_or_else(|| {
        let similar = similar(&known, name);
        let meant = if similar.is_empty() {
            String::new()
        } else {
            format!("; similar names are {}", similar.join(", "))
        };
        Error::Usage(format!(
            "{:?} is no time zone: --time-zone takes a name such as UTC or Europe/Berlin{meant}",
            shown(name.as_bytes())
        ))
    })
}

/// The name of a zone that [`find`] has found.
pub(super) fn name(zone: &TimeZone) -> &str {
    zone.iana_name().unwrap_or("UTC")
}

/// The names that are closest to this one: as a whole, or in the last part, `Berlin`.
fn similar(known: &TimeZoneDatabase, name: &str) -> Vec<String> {
    let name = shown(name.as_bytes()).to_lowercase();
    let rate = |other: &str| {
        let other = other.to_lowercase();
        let last = other.rsplit('/').next().unwrap_or_default();
        strsim::jaro_winkler(&name, &other).max(strsim::jaro_winkler(&name, last))
    };
    let mut rated: Vec<(f64, String)> = known
        .available()
        .map(|other| (rate(other.as_str()), other.to_string()))
        .filter(|(rate, _)| *rate >= LEAST)
        .collect();
    rated.sort_by(|one, two| two.0.total_cmp(&one.0).then_with(|| one.1.cmp(&two.1)));
    rated.into_iter().take(SIMILAR).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case() {
        for (text, expected) in
            [("UTC", "UTC"), ("europe/berlin", "Europe/Berlin"), ("Asia/Kolkata", "Asia/Kolkata")]
        {
            assert_eq!(name(&find(text).unwrap()), expected);
        }
    }

    #[test]
    fn an_unknown_name_is_shown_with_similar_ones() {
        for (text, similar) in [
            ("Europe/Belrin", "Europe/Berlin"),
            ("Berlin", "Europe/Berlin"),
            ("America/New York", "America/New_York"),
        ] {
            let error = find(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{text:?} is no time zone")) && error.contains(similar),
                "{error}"
            );
        }
        for text in
            ["", "+01:00", "Etc/Unknown", "\u{1b}[31m", "../../etc/passwd", &"x".repeat(10_000)]
        {
            let error = find(text).unwrap_err().to_string();
            assert!(error.contains("Europe/Berlin") && !error.contains('\u{1b}'), "{error}");
            assert!(error.len() < 1000, "{error}");
        }
    }
}
