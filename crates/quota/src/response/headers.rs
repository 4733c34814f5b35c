//! The families of quota headers (`response.headers`).
//!
//! `ietf` lists every policy (Structured Fields); the others show only the tightest one. Policies
//! that mark, or in shadow mode, never show. Numbers are units and whole seconds. Structured Fields
//! cap them at 999,999,999,999,999, the largest Integer there.

use std::borrow::Cow;
use std::cmp::Reverse;

use itoa::Buffer;

use super::upstream::{Precedence, Upstream, list, precedence};
use super::{Header, Now};
use crate::config::{Config, HeaderFamily, Reset};
use crate::decision::{Balance, Standing};
use crate::time::Monotonic;

/// The quota headers of a refusal, in the families that the configuration names. If there is
/// nothing to show, returns none and does not call `now`.
pub fn quota_headers<'a>(
    config: &'a Config,
    standings: &[Standing],
    now: impl FnOnce() -> Now,
) -> Vec<Header<'a>> {
    let Some(shown) = Shown::new(config, standings, now) else { return Vec::new() };
    config.response.families.iter().flat_map(|family| shown.fields(*family)).collect()
}

/// The quota headers of a counted response: each replaces the upstream's headers of its name.
///
/// If the upstream limits as well, its list items stay in front of ours. In the families with one
/// limit, the tighter limit stays.
pub fn response_headers<'a>(
    config: &'a Config,
    standings: &[Standing],
    upstream: &impl Upstream,
    now: impl FnOnce() -> Now,
) -> Vec<Header<'a>> {
    let Some(shown) = Shown::new(config, standings, now) else { return Vec::new() };
    let mut headers = Vec::with_capacity(8);
    for &family in config.response.families.iter() {
        match precedence(upstream, family, shown.tightest.balance.remaining) {
            Precedence::Ours => headers.extend(shown.fields(family)),
            Precedence::Theirs => {}
            Precedence::Both => headers.extend(shown.fields(family).map(|(name, ours)| {
                let mut all = list(upstream, name);
                all.push_str(if all.is_empty() { "" } else { ", " });
                all.push_str(&ours);
                (name, Cow::from(all))
            })),
        }
    }
    headers
}

/// What is shown of a request's standings.
struct Shown<'s> {
    config: &'s Config,
    enforced: Vec<&'s Standing>,
    tightest: &'s Standing,
    now: Now,
}

impl<'s> Shown<'s> {
    /// `None` if there is nothing to show.
    fn new(
        config: &'s Config,
        standings: &'s [Standing],
        now: impl FnOnce() -> Now,
    ) -> Option<Self> {
        if config.response.families.is_empty() {
            return None;
        }
        let enforced: Vec<&Standing> =
            standings.iter().filter(|standing| standing.enforced()).collect();
        let tightest = tightest(enforced.iter().copied())?;
        Some(Self { config, enforced, tightest, now: now() })
    }

    /// The fields of a family, in the order of [`HeaderFamily::fields`].
    fn fields<'a>(&self, family: HeaderFamily) -> impl Iterator<Item = Header<'a>> + use<'a> {
        let values: Vec<String> = match family {
            HeaderFamily::Ietf => self.lists().into(),
            HeaderFamily::XRateLimit => {
                let Balance { quota, remaining, .. } = self.tightest.balance;
                [quota, used(self.tightest), remaining, self.x_reset()].map(number).into()
            }
            HeaderFamily::Draft07 => {
                let [limit, remaining, reset] = self.limit().map(|value| number(integer(value)));
                vec![format!("limit={limit}, remaining={remaining}, reset={reset}")]
            }
            HeaderFamily::Draft03 => self.limit().map(number).into(),
        };
        family.fields().iter().copied().zip(values.into_iter().map(Cow::from))
    }

    /// The values of `RateLimit-Policy` and `RateLimit`.
    fn lists(&self) -> [String; 2] {
        let (mut policies, mut limits) = (String::with_capacity(48), String::with_capacity(32));
        for Standing { policy, balance, .. } in &self.enforced {
            let Balance { quota, remaining, resets, window_s } = *balance;
            let Some(policy) = self.config.policies.get(*policy) else { continue };
            let window = u64::from(window_s);
            item(&mut policies, &policy.name, &[(";q=", integer(quota)), (";w=", window)]);
            let (left, reset) =
                ((";r=", integer(remaining)), (";t=", seconds_until(resets, self.now)));
            // With a quota of 0, no reset grants more.
            let parameters: &[_] = if quota == 0 { &[left] } else { &[left, reset] };
            item(&mut limits, &policy.name, parameters);
        }
        [policies, limits]
    }

    /// Limit, remaining and seconds until the reset.
    fn limit(&self) -> [u64; 3] {
        let Balance { quota, remaining, resets, .. } = self.tightest.balance;
        [quota, remaining, seconds_until(resets, self.now)]
    }

    fn x_reset(&self) -> u64 {
        let seconds = seconds_until(self.tightest.balance.resets, self.now);
        match self.config.response.reset {
            Reset::Epoch => self.now.epoch.as_secs().saturating_add(seconds),
            Reset::Delta => seconds,
        }
    }
}

fn number(number: u64) -> String {
    Buffer::new().format(number).to_owned()
}

/// Appends a policy's item to a List: its name, and its parameters.
fn item(list: &mut String, name: &str, parameters: &[(&str, u64)]) {
    list.push_str(if list.is_empty() { "\"" } else { ", \"" });
    list.push_str(name);
    list.push('"');
    for (parameter, number) in parameters {
        list.push_str(parameter);
        list.push_str(Buffer::new().format(*number));
    }
}

/// The tightest standing: the one with the fewest units left. Among equals, the one that resets
/// last, then the first.
pub fn tightest<'s>(standings: impl Iterator<Item = &'s Standing>) -> Option<&'s Standing> {
    standings.min_by_key(|standing| (standing.balance.remaining, Reverse(standing.balance.resets)))
}

/// The used units of its quota, as far as the worker knows.
pub(crate) fn used(standing: &Standing) -> u64 {
    standing.balance.quota.saturating_sub(standing.balance.remaining)
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
