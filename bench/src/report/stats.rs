//! Medians and their spread.

use std::fmt;

/// The median of several measurements, with the least and the greatest of them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// The statistics of these values; `None` without any. Values that are no numbers count as
    /// greatest.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let lower = if sorted.len().is_multiple_of(2) {
            *sorted.get(middle.checked_sub(1)?)?
        } else {
            upper
        };
        Some(Self {
            median: f64::midpoint(lower, upper),
            least: *sorted.first()?,
            greatest: *sorted.last()?,
        })
    }
}

impl fmt::Display for Spread {
    /// `0.81 (0.79..0.84)`, with the precision of the formatter (two digits unless given).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$} ({:.digits$}..{:.digits$})", self.median, self.least, self.greatest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_counts() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[2.0]), Some(Spread { median: 2.0, least: 2.0, greatest: 2.0 }));
        assert_eq!(of(&[9.0, 1.0, 5.0]), Some(Spread { median: 5.0, least: 1.0, greatest: 9.0 }));
        assert_eq!(
            of(&[4.0, 1.0, 9.0, 2.0]),
            Some(Spread { median: 3.0, least: 1.0, greatest: 9.0 })
        );
    }

    #[test]
    fn spread_is_displayed_with_its_range() {
        let spread = Spread::of([0.8, 0.75, 0.9]).unwrap();
        assert_eq!(spread.to_string(), "0.80 (0.75..0.90)");
        assert_eq!(format!("{spread:.1}"), "0.8 (0.8..0.9)");
    }
}
