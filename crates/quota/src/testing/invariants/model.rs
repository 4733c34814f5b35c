//! The contract of the store's script, without any of the product's code.

use std::collections::HashMap;
use std::sync::Arc;

use quotagate_protocol::{Grant, MAX_UNITS, ReserveReply, ReserveRequest};

/// Units in use by counter and number of the window.
#[derive(Clone, Default)]
pub(crate) struct ModelStore(HashMap<(Arc<str>, u64), u64>);

impl ModelStore {
    pub(crate) fn carry_out(&mut self, request: &ReserveRequest, now_ms: u64) -> ReserveReply {
        for back in &request.refunds {
            assert!(back.check().is_ok(), "{back:?}");
            if now_ms / 1000 / u64::from(back.window_s) == back.window
                && let Some(used) = self.0.get_mut(&(back.key.clone(), back.window))
            {
                assert!(*used >= back.units, "more is refunded than was taken: {back:?} of {used}");
                *used -= back.units;
            }
        }
        for charge in &request.charges {
            assert!(charge.check().is_ok(), "{charge:?}");
            if now_ms / 1000 / u64::from(charge.window_s) == charge.window {
                let used = self.0.entry((charge.key.clone(), charge.window)).or_default();
                *used = (*used + charge.units).min(MAX_UNITS);
            }
        }
        let grants = request.reservations.iter().map(|r| {
            assert!(r.check().is_ok(), "{r:?}");
            let window = now_ms / 1000 / u64::from(r.window_s);
            let used = self.0.entry((r.key.clone(), window)).or_default();
            let left = r.quota.saturating_sub(*used);
            let needed = if left < r.min { 0 } else { r.want.min(left) };
            let spare = if needed == r.want { r.spare.min((left - needed) / 8) } else { 0 };
            let refused = if r.count_denied { r.want - needed } else { 0 };
            *used = (*used + needed + spare + refused).min(MAX_UNITS);
            assert!(r.count_denied || needed + spare == 0 || *used <= r.quota);
            let reset_ms = (window + 1) * u64::from(r.window_s) * 1000 - now_ms;
            Ok(Grant {
                granted: needed + spare,
                used: *used,
                quota: r.quota,
                reset_ms,
                window,
                ..Grant::default()
            })
        });
        ReserveReply { dials: 0, grants: grants.collect() }
    }

    pub(crate) fn used(&self, counter: &(Arc<str>, u64)) -> u64 {
        self.0.get(counter).copied().unwrap_or_default()
    }

    pub(crate) fn counters(&self) -> impl Iterator<Item = &(Arc<str>, u64)> {
        self.0.keys()
    }
}
