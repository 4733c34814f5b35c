//! Invariants 1 to 3 over random histories: several workers, one store, calls that are late or
//! lost, clients that leave. Virtual time, one seed for each history; `QUOTAGATE_SEEDS=20` runs
//! twenty times as many.

mod histories;
mod leases;
mod model;
mod world;

pub(crate) use model::ModelStore;

/// splitmix64 (Steele, Lea and Flood 2014).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// More than 0, at most 1.
    pub(crate) fn fraction(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// The seeds of a test that tries `usual` histories.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let times = std::env::var("QUOTAGATE_SEEDS").ok().and_then(|times| times.parse().ok());
    0..usual * times.unwrap_or(1)
}
