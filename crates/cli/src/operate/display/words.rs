//! How values of the admin API are written in tables and sentences.

use quotagate_operate::api::{Allow, OverrideEntry, QuotaFrom, Usage};
use quotagate_protocol::dials::ALL_POLICIES;
use quotagate_protocol::{Calendar, Kind, Mode, OnFailure};

use super::Weight;
use crate::text::{duration, number};

/// A mode, as policies write it.
pub(crate) const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Mark => "mark",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    }
}

/// A failure mode, as policies write it.
pub(crate) const fn on_failure(on_failure: OnFailure) -> &'static str {
    match on_failure {
        OnFailure::Allow => "allow",
        OnFailure::Deny => "deny",
        OnFailure::Local => "local",
    }
}

/// When a dial or an override ends.
pub(crate) fn ends(remaining_ms: Option<u64>) -> String {
    remaining_ms.map_or_else(|| "when cleared".to_owned(), |ms| format!("in {}", duration(ms)))
}

/// The quota in force, or `unlimited`, or `unknown`.
pub(crate) fn quota(usage: &Usage) -> String {
    let absent = if usage.quota_from == QuotaFrom::Unknown { "unknown" } else { "unlimited" };
    usage.quota.map_or_else(|| absent.to_owned(), number)
}

/// The name of a window: `1 min`, `1 min sliding`, `day Europe/Berlin`.
pub(crate) fn window(kind: &Kind, seconds: u32) -> String {
    let length = || duration(u64::from(seconds) * 1000);
    match kind {
        Kind::Fixed => length(),
        Kind::Sliding => format!("{} sliding", length()),
        Kind::Calendar(Calendar { unit, time_zone }) => format!("{} {time_zone}", unit.name()),
        Kind::InFlight => "at once".to_owned(),
        Kind::Unknown => "of a kind that only a newer version of this command knows".to_owned(),
    }
}

/// Debt; empty without any.
pub(crate) fn debt(usage: &Usage) -> String {
    if usage.debt > 0 { number(usage.debt) } else { String::new() }
}

/// When a counter ends, as the end of a sentence.
pub(crate) fn end(usage: &Usage) -> String {
    let left = duration(usage.reset_ms);
    match usage.kind {
        Kind::Sliding => format!("the last units return in {left}"),
        Kind::InFlight => "its slots are free when the requests end".to_owned(),
        Kind::Fixed | Kind::Calendar(_) | Kind::Unknown => format!("its window ends in {left}"),
    }
}

/// The used part of the quota in percent; empty where it is unlimited or unknown.
pub(crate) fn full(usage: &Usage) -> String {
    match usage.quota {
        Some(0) => "100 %".to_owned(),
        Some(quota) => format!("{} %", u128::from(usage.used) * 100 / u128::from(quota)),
        None => String::new(),
    }
}

/// A used-up quota is alarming, one that is used to nine tenths is notable.
pub(crate) fn weight(usage: &Usage) -> Weight {
    match usage.quota {
        Some(quota) if usage.used >= quota => Weight::Alarming,
        Some(quota) if usage.used >= quota - quota / 10 => Weight::Notable,
        Some(_) | None => Weight::Plain,
    }
}

/// A count of a sketch, which may be too high by `error`.
pub(crate) fn at_most(requests: u64, error: u64) -> String {
    match error {
        0 => number(requests),
        error => format!("{} to {}", number(requests.saturating_sub(error)), number(requests)),
    }
}

/// What an override grants.
pub(crate) fn allows(allow: Allow) -> String {
    match allow {
        Allow::Quota(quota) => format!("quota {}", number(quota)),
        Allow::Unlimited => "unlimited".to_owned(),
        Allow::Blocked => "blocked".to_owned(),
    }
}

/// An override of every partition that contains a party, in a sentence.
pub(crate) fn covered(entry: &OverrideEntry) -> String {
    let OverrideEntry { domain, policy, partition, allow, remaining_ms, by, .. } = entry;
    let policies = if policy == ALL_POLICIES { "all policies" } else { policy };
    let allows = allows(*allow);
    let ends = ends(*remaining_ms);
    format!(
        "An override by {by} covers {partition} in {policies} of {domain}: {allows}, ends {ends}."
    )
}

/// A warning about an override that matches no request, with the reason.
pub(crate) fn without_effect(entry: &OverrideEntry) -> Option<String> {
    let why = entry.unmatched.as_ref()?;
    Some(format!(
        "The override of {} in {} matches no request: {why}.",
        entry.partition, entry.policy
    ))
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::Unit;

    use super::*;

    #[test]
    fn windows_are_named() {
        let calendar = |unit| {
            let time_zone = "Europe/Berlin".into();
            Kind::Calendar(Calendar { unit, time_zone })
        };
        for (kind, seconds, name) in [
            (Kind::Fixed, 60, "1 min"),
            (Kind::Sliding, 60, "1 min sliding"),
            (calendar(Unit::Day), 23 * 3600, "day Europe/Berlin"),
            (calendar(Unit::Month), 0, "month Europe/Berlin"),
        ] {
            assert_eq!(window(&kind, seconds), name);
        }
    }

    #[test]
    fn usage_is_shown_in_percent_and_stands_out_from_nine_tenths_on() {
        for (used, quota, text, stands_out) in [
            (0, Some(100), "0 %", Weight::Plain),
            (89, Some(100), "89 %", Weight::Plain),
            (90, Some(100), "90 %", Weight::Notable),
            (100, Some(100), "100 %", Weight::Alarming),
            (130, Some(100), "130 %", Weight::Alarming),
            (0, Some(0), "100 %", Weight::Alarming),
            (u64::MAX, Some(1), "1844674407370955161500 %", Weight::Alarming),
            (7, None, "", Weight::Plain),
        ] {
            let usage = Usage {
                domain: "shop".into(),
                policy: "p".into(),
                partition: "*".into(),
                used,
                debt: 0,
                quota,
                quota_from: QuotaFrom::Policy,
                kind: Kind::Fixed,
                window_s: 60,
                reset_ms: 1,
            };
            assert_eq!(
                (full(&usage).as_str(), weight(&usage)),
                (text, stands_out),
                "{used} of {quota:?}"
            );
        }
    }
}
