//! The two families of quota headers: `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11,
//! Structured Fields), and `X-RateLimit-*`.
//!
//! Only enforced policies show: a client learns nothing of those in shadow mode. Numbers are units and whole
//! seconds; in Structured Fields they are cut at 999,999,999,999,999, the largest Integer there.

use std::borrow::Cow;
use std::cmp::Reverse;

use itoa::Buffer;

use super::{Header, Now};
use crate::config::{Config, Reset};
use crate::decision::Standing;
use crate::time::Monotonic;

/// The quota headers of a counted response, by the families that the configuration names: for each a
/// replacement of whatever the upstream sent. Empty, and `now` not asked, where there is nothing to show.
pub fn quota_headers<'a>(
    config: &'a Config,
    standings: &[Standing],
    now: impl FnOnce() -> Now,
) -> Vec<Header<'a>> {
    let shown = || standings.iter().filter(|standing| standing.enforced);
    let families = &config.response;
    let Some(tightest) = tightest(shown()).filter(|_| families.ietf || families.x_ratelimit) else {
        return Vec::new();
    };
    let now = now();
    let mut headers = Vec::with_capacity(8);
    if families.ietf {
        let (mut policies, mut limits) = (String::with_capacity(48), String::with_capacity(32));
        for Standing { policy, quota, remaining, resets, .. } in shown() {
            let Some(policy) = config.policies.get(*policy) else { continue };
            let window = u64::from(policy.window.seconds());
            item(&mut policies, &policy.name, [(";q=", integer(*quota)), (";w=", window)]);
            let reset = seconds_until(*resets, now);
            item(&mut limits, &policy.name, [(";r=", integer(*remaining)), (";t=", reset)]);
        }
        headers.push(("ratelimit-policy", Cow::from(policies)));
        headers.push(("ratelimit", Cow::from(limits)));
    }
    if families.x_ratelimit {
        let seconds = seconds_until(tightest.resets, now);
        let reset = match families.reset {
            Reset::Epoch => now.epoch.as_secs().saturating_add(seconds),
            Reset::Delta => seconds,
        };
        for (name, number) in [
            ("x-ratelimit-limit", tightest.quota),
            ("x-ratelimit-used", used(tightest)),
            ("x-ratelimit-remaining", tightest.remaining),
            ("x-ratelimit-reset", reset),
        ] {
            headers.push((name, Cow::from(Buffer::new().format(number).to_owned())));
        }
    }
    headers
}

/// Appends a policy's item to a List: its name, and its parameters.
fn item(list: &mut String, name: &str, parameters: [(&str, u64); 2]) {
    list.push_str(if list.is_empty() { "\"" } else { ", \"" });
    list.push_str(name);
    list.push('"');
    for (parameter, number) in parameters {
        list.push_str(parameter);
        list.push_str(Buffer::new().format(number));
    }
}

/// The tightest of them: the one with the fewest units left; of several such the one that resets last, and of
/// these the first.
pub fn tightest<'s>(standings: impl Iterator<Item = &'s Standing>) -> Option<&'s Standing> {
    standings.min_by_key(|standing| (standing.remaining, Reverse(standing.resets)))
}

/// The units of its quota that are used, as far as known.
pub(crate) fn used(standing: &Standing) -> u64 {
    standing.quota.saturating_sub(standing.remaining)
}

/// Whole seconds until `moment`, rounded up.
pub(super) fn seconds_until(moment: Monotonic, now: Now) -> u64 {
    let left = moment.since(now.monotonic);
    left.as_secs().saturating_add(u64::from(left.subsec_nanos() > 0))
}

/// The largest Integer of a Structured Field has 15 digits (RFC 9651, section 3.3.1).
fn integer(units: u64) -> u64 {
    units.min(999_999_999_999_999)
}
