//! The families of quota headers (`response.headers`).
//!
//! `ietf` lists every policy (Structured Fields); the others show only the tightest one. Policies
//! that mark, or in shadow mode, never show. Numbers are units and whole seconds. Structured Fields
//! cap them at 999,999,999,999,999, the largest Integer there.

use std::borrow::Cow;
use std::cmp::Reverse;

use itoa::Buffer;

use super::upstream::{HeaderWrite, Precedence, Upstream, list, precedence};
use super::{Header, Now};
use crate::config::{Config, HeaderFamily, Reset, integer, push_item, push_slots_item};
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
    let (mut headers, mut value) = (Vec::with_capacity(8), String::new());
    for family in &config.response.families {
        shown.fields(*family, &mut value, |name, value| {
            headers.push((name, Cow::from(value.to_owned())));
        });
    }
    headers
}

/// The quota headers of a counted response, in the families that the configuration names. `None` if
/// there is nothing to show; then it does not call `now`.
///
/// If the upstream limits as well, its list items stay in front of ours. In the families with one
/// limit, the tighter limit stays.
pub fn response_headers<'a>(
    config: &'a Config,
    standings: &'a [Standing],
    upstream: &impl Upstream,
    now: impl FnOnce() -> Now,
) -> Option<ResponseHeaders<'a>> {
    let shown = Shown::new(config, standings, now)?;
    let mut headers =
        ResponseHeaders { shown, families: [const { None }; HeaderFamily::ALL.len()] };
    let [window, slots] = headers.shown.tightest.map(|it| it.map(|of| of.balance.remaining));
    let all = window.into_iter().chain(slots).min();
    for (slot, &family) in headers.families.iter_mut().zip(&config.response.families) {
        let ours = match family {
            HeaderFamily::Ietf => all,
            HeaderFamily::Concurrency => slots,
            HeaderFamily::XRateLimit | HeaderFamily::Draft07 | HeaderFamily::Draft03 => window,
        };
        let Some(remaining) = ours else { continue };
        let fields = match precedence(upstream, family, remaining) {
            Precedence::Ours(how) => OurFields::Alone(how),
            Precedence::Theirs => continue,
            Precedence::Both => {
                OurFields::After(family.fields().iter().map(|name| list(upstream, name)).collect())
            }
        };
        *slot = Some((family, fields));
    }
    Some(headers)
}

/// The quota headers of a counted response. All that the upstream says has been read, so the
/// response may change while they are [written](Self::write).
pub struct ResponseHeaders<'a> {
    shown: Shown<'a>,
    families: [Option<(HeaderFamily, OurFields)>; HeaderFamily::ALL.len()],
}

/// Our fields of a family.
enum OurFields {
    /// Only ours.
    Alone(HeaderWrite),
    /// Behind these lists of the upstream.
    After(Vec<String>),
}

impl ResponseHeaders<'_> {
    /// Passes name and value of each header to `write`. `scratch` holds one value after the other,
    /// and keeps its memory for the next response.
    pub fn write(
        &self,
        scratch: &mut String,
        mut write: impl FnMut(HeaderWrite, &'static str, &str),
    ) {
        for (family, fields) in self.families.iter().flatten() {
            match fields {
                OurFields::Alone(how) => {
                    self.shown.fields(*family, scratch, |name, value| write(*how, name, value));
                }
                OurFields::After(lists) => {
                    let mut lists = lists.iter();
                    self.shown.fields(*family, scratch, |name, ours| {
                        let theirs = lists.next().map_or("", String::as_str);
                        let comma = if theirs.is_empty() { "" } else { ", " };
                        write(HeaderWrite::Replace, name, &format!("{theirs}{comma}{ours}"));
                    });
                }
            }
        }
    }
}

/// What is shown of a request's standings.
struct Shown<'s> {
    config: &'s Config,
    standings: &'s [Standing],
    /// The tightest policy with a window, and the tightest one of slots: at least one of them.
    tightest: [Option<&'s Standing>; 2],
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
        let of = |slots| tightest(enforced(standings).filter(|it| it.counter.is_slots() == slots));
        let tightest = if config.has_slots {
            [of(false), of(true)]
        } else {
            [tightest(enforced(standings)), None]
        };
        tightest.iter().any(Option::is_some).then_some(())?;
        Some(Self { config, standings, tightest, now: now() })
    }

    /// Passes the fields of a family to `field`, in the order of [`HeaderFamily::fields`]. `value`
    /// is room for one of their values.
    fn fields(
        &self,
        family: HeaderFamily,
        value: &mut String,
        mut field: impl FnMut(&'static str, &str),
    ) {
        let names = family.fields().iter().copied();
        let [window, slots] = self.tightest;
        let mut numbers = |numbers: &[u64]| {
            for (name, number) in names.clone().zip(numbers) {
                field(name, Buffer::new().format(*number));
            }
        };
        match family {
            HeaderFamily::Ietf => {
                for (name, list) in names.zip([Self::policies, Self::limits]) {
                    value.clear();
                    list(self, value);
                    field(name, value);
                }
            }
            HeaderFamily::XRateLimit => {
                let Some(standing) = window else { return };
                let Balance { quota, remaining, .. } = standing.balance;
                numbers(&[quota, used(standing), remaining, self.x_reset(standing)]);
            }
            HeaderFamily::Draft07 => {
                let Some(standing) = window else { return };
                value.clear();
                let labels = ["limit=", ", remaining=", ", reset="];
                for (label, number) in labels.into_iter().zip(self.limit(standing)) {
                    parameter(value, label, integer(number));
                }
                names.for_each(|name| field(name, value));
            }
            HeaderFamily::Draft03 => {
                let Some(standing) = window else { return };
                numbers(&self.limit(standing));
            }
            HeaderFamily::Concurrency => {
                let Some(Standing { balance, .. }) = slots else { return };
                numbers(&[balance.quota, balance.remaining]);
            }
        }
    }

    /// The value of `RateLimit-Policy`.
    fn policies(&self, list: &mut String) {
        for Standing { policy, counter, balance, .. } in enforced(self.standings) {
            let Some(policy) = self.config.policies.get(*policy) else { continue };
            if !list.is_empty() {
                list.push_str(", ");
            }
            let Balance { quota, window_s, .. } = *balance;
            if counter.is_slots() {
                push_slots_item(list, &policy.name, quota);
            } else if (quota, window_s) == (policy.quota, policy.window.usual_s()) {
                list.push_str(&policy.item);
            } else {
                push_item(list, &policy.name, quota, window_s);
            }
        }
    }

    /// The value of `RateLimit`.
    fn limits(&self, list: &mut String) {
        for Standing { policy, counter, balance, .. } in enforced(self.standings) {
            let Balance { quota, remaining, resets, .. } = *balance;
            let Some(policy) = self.config.policies.get(*policy) else { continue };
            if !list.is_empty() {
                list.push_str(", ");
            }
            for part in ["\"", &policy.name, "\""] {
                list.push_str(part);
            }
            parameter(list, ";r=", integer(remaining));
            // With a quota of 0, no reset grants more. Nobody knows when a running request ends.
            if quota > 0 && !counter.is_slots() {
                parameter(list, ";t=", seconds_until(resets, self.now));
            }
        }
    }

    /// Limit, remaining and seconds until the reset.
    fn limit(&self, standing: &Standing) -> [u64; 3] {
        let Balance { quota, remaining, resets, .. } = standing.balance;
        [quota, remaining, seconds_until(resets, self.now)]
    }

    fn x_reset(&self, standing: &Standing) -> u64 {
        let seconds = seconds_until(standing.balance.resets, self.now);
        match self.config.response.reset {
            Reset::Epoch => self.now.epoch.as_secs().saturating_add(seconds),
            Reset::Delta => seconds,
        }
    }
}

fn enforced(standings: &[Standing]) -> impl Iterator<Item = &Standing> {
    standings.iter().filter(|standing| standing.enforced())
}

/// Appends a parameter of an item.
#[inline]
fn parameter(list: &mut String, label: &'static str, number: u64) {
    list.push_str(label);
    list.push_str(Buffer::new().format(number));
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
