//! The cost of a usage.

use quotagate_protocol::MAX_UNITS;

use super::usage;
use crate::config::{Measure, TokenUsage, Weights};

fn weighted(input: f64, cached_input: Option<f64>, output: f64) -> Measure {
    Measure::Weighted(Weights::new(input, cached_input, output).unwrap())
}

#[test]
fn a_total_is_stated_or_the_sum() {
    for (usage, expected) in [
        (usage(9, 4, 3, 15), Some(15)),
        (usage(9, 4, 3, None), Some(12)),
        (usage(None, None, None, 15), Some(15)),
        (usage(9, None, None, None), Some(9)),
        (usage(None, None, 3, None), None),
        (usage(MAX_UNITS, None, MAX_UNITS, None), Some(MAX_UNITS)),
        (TokenUsage::default(), None),
    ] {
        assert_eq!(Measure::Total.units(&usage), expected, "{usage:?}");
    }
}

#[test]
fn input_and_output_count_alone() {
    for (usage, input, output) in [
        (usage(9, 4, 3, 15), Some(9), Some(3)),
        (usage(9, None, None, 9), Some(9), Some(0)),
        (usage(None, None, 3, None), None, Some(3)),
        (usage(None, None, None, 9), None, None),
    ] {
        assert_eq!(Measure::Input.units(&usage), input, "{usage:?}");
        assert_eq!(Measure::Output.units(&usage), output, "{usage:?}");
    }
}

#[test]
fn a_weighted_sum_is_rounded_up() {
    for (measure, usage, expected) in [
        (weighted(1.0, Some(0.1), 4.0), usage(110, 100, 5, None), Some(40)),
        (weighted(1.0, Some(0.1), 4.0), usage(111, 101, 5, None), Some(41)),
        (weighted(1.0, None, 4.0), usage(110, 100, 5, None), Some(130)),
        (weighted(1.0, Some(0.1), 4.0), usage(10, None, None, 10), Some(10)),
        // Exact where floats are not: 30 * 0.1 > 3.
        (weighted(0.1, None, 0.0), usage(30, None, 7, None), Some(3)),
        (weighted(0.000_002_5, None, 0.0), usage(1, None, 7, None), Some(1)),
        (weighted(0.0, None, 0.0), usage(30, 5, 7, None), Some(0)),
        (weighted(1.0, None, 1.0), usage(None, None, 7, 9), None),
        (weighted(1.0, Some(0.0), 1.0), usage(5, 9, 0, None), Some(0)),
        (weighted(f64::MAX, None, 1.0), usage(MAX_UNITS, 0, 0, None), Some(MAX_UNITS)),
        (weighted(f64::MAX, None, f64::MAX), usage(MAX_UNITS, 1, MAX_UNITS, None), Some(MAX_UNITS)),
    ] {
        assert_eq!(measure.units(&usage), expected, "{measure:?} {usage:?}");
    }
}

#[test]
fn weights_are_finite_and_not_negative() {
    for wrong in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(Weights::new(wrong, None, 1.0), None);
        assert_eq!(Weights::new(1.0, Some(wrong), 1.0), None);
        assert_eq!(Weights::new(1.0, None, wrong), None);
    }
    assert!(Weights::new(-0.0, Some(0.0), 1e300).is_some());
    assert!(Weights::new(1e-10, None, 0.0).unwrap().are_zero(), "rounded to nothing");
}
