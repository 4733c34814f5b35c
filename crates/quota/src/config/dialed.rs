//! A configuration as dials turn it.
//!
//! No dial can make a refused configuration: no fault of a configuration speaks of the three fields
//! that they turn, beside the bound of a quota, which whoever reads dials has seen to. Places of
//! policies never change.

use super::Config;
use crate::protocol::{Mode, OnFailure};

/// What is turned of one policy; what is absent is as the configuration says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turned {
    /// Whether it refuses.
    pub mode: Option<Mode>,
    /// Its quota, 0 to [`MAX_UNITS`](crate::protocol::MAX_UNITS).
    pub quota: Option<u64>,
    /// What becomes of its requests while the store fails.
    pub on_failure: Option<OnFailure>,
    /// Whether some partition of it has a run-time override.
    pub is_overridden: bool,
}

impl Config {
    /// This configuration with what is turned of each policy, by its place.
    pub fn dialed(&self, turned: &[Turned]) -> Self {
        let mut config = self.clone();
        for (policy, turned) in config.policies.iter_mut().zip(turned) {
            policy.mode = turned.mode.unwrap_or(policy.mode);
            policy.dialed_quota = turned.quota;
            policy.on_failure = turned.on_failure.unwrap_or(policy.on_failure);
            policy.is_overridden = turned.is_overridden;
        }
        config
    }
}
