//! A configuration with dials applied.
//!
//! A dial cannot make a configuration invalid. It changes fields that the reader of documents
//! checks for nothing but the bound of a quota, and the reader of dials checks that bound, too. The
//! indexes of policies never change.

use std::sync::Arc;

use quotagate_protocol::dials::EnforcedShare;
use quotagate_protocol::{Mode, OnFailure};

use super::Config;

/// The dial of one policy, and whether it has runtime overrides. An absent field stays as
/// configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dialed {
    /// Whether the policy refuses.
    pub mode: Option<Mode>,
    /// Whom it refuses in mode shadow.
    pub enforced_for: Option<Arc<EnforcedShare>>,
    /// Its quota, 0 to [`MAX_UNITS`](quotagate_protocol::MAX_UNITS).
    pub quota: Option<u64>,
    /// What happens to its requests while the store fails.
    pub on_failure: Option<OnFailure>,
    /// Whether some partition of it has a runtime override.
    pub is_overridden: bool,
}

impl Config {
    /// This configuration with the dial of each policy, by index.
    pub fn dialed(&self, dialed: &[Dialed]) -> Self {
        let mut config = self.clone();
        for (policy, dialed) in config.policies.iter_mut().zip(dialed) {
            policy.mode = dialed.mode.unwrap_or(policy.mode);
            policy.enforced_for = dialed.enforced_for.clone();
            policy.dialed_quota = dialed.quota;
            policy.on_failure = dialed.on_failure.unwrap_or(policy.on_failure);
            policy.is_overridden = dialed.is_overridden;
            // An upstream may know the mark by the document, even while no policy marks.
            config.marks |= policy.mode == Mode::Mark;
        }
        config
    }
}
