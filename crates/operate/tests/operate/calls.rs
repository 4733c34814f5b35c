//! What calls showed, for tests in which the process that operates has answered none.

use quotagate_operate::api::Refused;
use quotagate_operate::watch::{Beyond, CallSight};

/// A process that has seen the quotas of these keys.
pub struct SeenQuotas(pub fn(&str) -> Option<u64>);

/// A process that has seen no call.
pub const NO_CALLS: SeenQuotas = SeenQuotas(|_| None);

impl CallSight for SeenQuotas {
    fn last(&self, key: &str, _: u64) -> Option<u64> {
        self.0(key)
    }

    fn beyond(&self, _: Beyond, _: &str) -> Option<Refused> {
        None
    }

    fn numbers(&self, _: &str, _: &str) -> Vec<u64> {
        Vec::new()
    }

    fn settled_if_missing(&self, _: &str, _: &str) -> u64 {
        0
    }
}
