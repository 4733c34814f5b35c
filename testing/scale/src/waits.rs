//! How long requests waited for the store, in virtual time: counted in steps of 1 us up to 100 ms,
//! so that no request needs memory of its own.

use std::time::Duration;

const STEP: Duration = Duration::from_micros(1);
const STEPS: usize = 100_000;

/// The waiting times of many requests.
#[derive(Clone)]
pub struct Waits {
    none: u64,
    /// By waited steps; the last one holds all longer waits.
    steps: Vec<u64>,
}

impl Default for Waits {
    fn default() -> Self {
        Self { none: 0, steps: vec![0; STEPS + 1] }
    }
}

impl Waits {
    /// Counts a request that was decided at once.
    pub fn none(&mut self) {
        self.none += 1;
    }

    /// Counts a request that waited.
    pub fn add(&mut self, time: Duration) {
        let step = (time.as_nanos() / STEP.as_nanos()) as usize;
        if let Some(n) = self.steps.get_mut(step.min(STEPS)) {
            *n += 1;
        }
    }

    /// How many requests there were.
    pub fn len(&self) -> u64 {
        self.none + self.waited()
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many of them waited.
    pub fn waited(&self) -> u64 {
        self.steps.iter().sum()
    }

    /// The time within which this part of all requests was decided, rounded down to a step.
    pub fn quantile(&self, part: f64) -> Duration {
        let mut rest = ((self.len() as f64 * part).ceil() as u64).saturating_sub(self.none);
        if rest == 0 {
            return Duration::ZERO;
        }
        for (step, n) in self.steps.iter().enumerate() {
            if rest <= *n {
                return STEP * step as u32;
            }
            rest -= n;
        }
        STEP * STEPS as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_all_requests() {
        let mut waits = Waits::default();
        assert_eq!(waits.quantile(0.5), Duration::ZERO);
        for _ in 0..60 {
            waits.none();
        }
        for ms in 1..=40 {
            waits.add(Duration::from_millis(ms));
        }
        assert_eq!((waits.len(), waits.waited()), (100, 40));
        for (part, micros) in [(0.0, 0), (0.6, 0), (0.61, 1_000), (0.99, 39_000), (1.0, 40_000)] {
            assert_eq!(waits.quantile(part), Duration::from_micros(micros), "{part}");
        }
        waits.add(Duration::from_secs(5));
        assert_eq!(waits.quantile(1.0), Duration::from_millis(100));
    }
}
