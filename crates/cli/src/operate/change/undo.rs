//! Commands that undo a change on the same store, quoted for a shell.

use quotagate_operate::api::{Allow, DialEntry, OverrideEntry};
use quotagate_protocol::dials::{DialFields, EnforcedShare};

use crate::operate::display::{mode, on_failure};
use crate::operate::session::Session;
use crate::text::{duration, number};

/// The entry that a change replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Before<T> {
    /// There was none.
    Nothing,
    /// There was this one.
    Was(T),
    /// The store could not list the entries.
    Unknown,
}

impl<T> Before<T> {
    /// The first entry of `list` that `is_it` matches; unknown without a list.
    pub(crate) fn found(
        list: Option<impl IntoIterator<Item = T>>,
        is_it: impl Fn(&T) -> bool,
    ) -> Self {
        match list.map(|list| list.into_iter().find(is_it)) {
            None => Self::Unknown,
            Some(None) => Self::Nothing,
            Some(Some(was)) => Self::Was(was),
        }
    }
}

/// The fields that a dial sets: the flag, its value for a shell, and both in words.
pub(crate) fn fields(dial: &DialFields) -> Vec<(&'static str, String, String)> {
    let quota =
        dial.quota.map(|quota| ("--quota", quota.to_string(), format!("quota {}", number(quota))));
    let word = |flag: &'static str, name: &str, word: &str| {
        (flag, word.to_owned(), format!("{name} {word}"))
    };
    let new_mode = match &dial.enforced_for {
        None => dial.mode.map(|m| word("--mode", "mode", mode(m))).into_iter().collect(),
        Some(share) => shares(share),
    };
    let new_failure = dial.on_failure.map(|f| word("--on-failure", "on_failure", on_failure(f)));
    new_mode.into_iter().chain(quota).chain(new_failure).collect()
}

/// The same for the partitions for which a policy in mode shadow refuses.
fn shares(share: &EnforcedShare) -> Vec<(&'static str, String, String)> {
    let percent = (share.percent > 0).then(|| {
        ("--percent", share.percent.to_string(), format!("enforced for {} %", share.percent))
    });
    let only = share.only.iter();
    let only = only.map(|party| ("--only", party.clone(), format!("enforced for {party}")));
    percent.into_iter().chain(only).collect()
}

/// How long an entry would have stayed in force.
pub(crate) fn until(remaining_ms: Option<u64>) -> String {
    remaining_ms
        .map_or_else(|| "until cleared".to_owned(), |ms| format!("for another {}", duration(ms)))
}

/// A remark on a command that restores an entry with a time.
pub(crate) const fn remark(remaining_ms: Option<u64>) -> &'static str {
    if remaining_ms.is_some() { " (its time starts when you run that)" } else { "" }
}

/// The flags that set the same time.
fn time(remaining_ms: Option<u64>) -> Vec<String> {
    let seconds = |ms: u64| vec!["--for".to_owned(), format!("{}s", ms.div_ceil(1000).max(1))];
    remaining_ms.map(seconds).unwrap_or_default()
}

/// The command that sets a dial as it was. It leaves a field that the dial did not set as it is.
pub(crate) fn set_dial(
    session: &Session,
    was: &DialEntry,
    fields: &[(&str, String, String)],
) -> String {
    let mut words = vec!["dial".to_owned(), "set".to_owned(), was.policy.clone()];
    words.extend(fields.iter().flat_map(|(flag, value, _)| [(*flag).to_owned(), value.clone()]));
    words.extend(time(was.remaining_ms));
    session.command(&words)
}

/// The command that sets an override as it was.
/// `whom` are the words that name its partition.
pub(crate) fn set_override(session: &Session, was: &OverrideEntry, whom: &[&str]) -> String {
    let mut words = ["override", "set"].map(str::to_owned).to_vec();
    words.extend(whom.iter().map(|word| (*word).to_owned()));
    match was.allow {
        Allow::Quota(quota) => words.extend(["--quota".to_owned(), quota.to_string()]),
        Allow::Unlimited => words.push("--unlimited".to_owned()),
        Allow::Blocked => words.push("--blocked".to_owned()),
    }
    words.extend(time(was.remaining_ms));
    session.command(&words)
}
