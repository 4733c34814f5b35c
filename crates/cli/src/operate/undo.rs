//! The commands that take a change back, on the same store, as a shell takes them.

use quotagate_control::api::{Allow, DialEntry, OverrideEntry};

use super::address::AdminAddr;
use super::words::{duration, mode, number, on_failure, quoted};
use super::{Common, Session};

/// What was there before a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Before<T> {
    /// Nothing.
    Nothing,
    /// This.
    Was(T),
    /// The store did not tell.
    Unknown,
}

impl<T> Before<T> {
    /// What there was, where the store did tell.
    pub(crate) fn found(list: Option<impl IntoIterator<Item = T>>, is_it: impl Fn(&T) -> bool) -> Self {
        match list.map(|list| list.into_iter().find(is_it)) {
            None => Self::Unknown,
            Some(None) => Self::Nothing,
            Some(Some(was)) => Self::Was(was),
        }
    }
}

/// The fields of a dial: the flag, its value for a shell, and both in words.
pub(crate) fn dialled(dial: &DialEntry) -> Vec<(&'static str, String, String)> {
    let quota = dial.quota.map(|quota| ("--quota", quota.to_string(), format!("quota {}", number(quota))));
    let word = |flag: &'static str, name: &str, word: &str| (flag, word.to_owned(), format!("{name} {word}"));
    let new_mode = dial.mode.map(|m| word("--mode", "mode", mode(m)));
    let new_failure = dial.on_failure.map(|f| word("--on-failure", "on_failure", on_failure(f)));
    [new_mode, quota, new_failure].into_iter().flatten().collect()
}

/// Until when something was to hold.
pub(crate) fn until(remaining_ms: Option<u64>) -> String {
    remaining_ms.map_or_else(|| "until cleared".to_owned(), |ms| format!("for another {}", duration(ms)))
}

/// What is to be minded of a command that restores a time.
pub(crate) const fn note(remaining_ms: Option<u64>) -> &'static str {
    if remaining_ms.is_some() { " (its time counts from when you run that)" } else { "" }
}

/// The flags that grant as long.
fn time(remaining_ms: Option<u64>) -> Vec<String> {
    let seconds = |ms: u64| vec!["--for".to_owned(), format!("{}s", ms.div_ceil(1000).max(1))];
    remaining_ms.map(seconds).unwrap_or_default()
}

impl Session {
    /// Dials `policy` as it was. A field that was not dialled is cleared by `clear` alone.
    pub(crate) fn redial(&self, was: &DialEntry, fields: &[(&str, String, String)]) -> String {
        let mut words = vec!["dial".to_owned(), "set".to_owned(), was.policy.clone()];
        words.extend(fields.iter().flat_map(|(flag, value, _)| [(*flag).to_owned(), value.clone()]));
        words.extend(time(was.remaining_ms));
        self.command(&words)
    }

    /// Sets an override as it was.
    pub(crate) fn override_again(&self, was: &OverrideEntry, flags: &[&str]) -> String {
        let mut words = ["override", "set", &was.policy, &was.partition].map(str::to_owned).to_vec();
        match was.allow {
            Allow::Quota(quota) => words.extend(["--quota".to_owned(), quota.to_string()]),
            Allow::Unlimited => words.push("--unlimited".to_owned()),
            Allow::Blocked => words.push("--blocked".to_owned()),
        }
        words.extend(time(was.remaining_ms));
        words.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.command(&words)
    }

    /// A command on the same store and domain, for a shell.
    pub(crate) fn command(&self, arguments: &[impl AsRef<str>]) -> String {
        let arguments = arguments.iter().map(AsRef::as_ref).chain(self.place.iter().map(String::as_str));
        std::iter::once("quotagate".to_owned()).chain(arguments.map(quoted)).collect::<Vec<_>>().join(" ")
    }
}

impl Common {
    /// The flags that lead to the same store and domain from a shell with the same variables.
    pub(super) fn place(&self, by_variable: Option<&AdminAddr>) -> Vec<String> {
        let mut flags = Vec::new();
        if Some(&self.admin) != by_variable {
            flags.extend(["--admin".to_owned(), self.admin.to_string()]);
        }
        if let Some(file) = &self.token_file {
            flags.extend(["--token-file".to_owned(), file.display().to_string()]);
        }
        if let Some(domain) = self.domain.as_ref().filter(|domain| !domain.is_empty()) {
            flags.extend(["--domain".to_owned(), domain.clone()]);
        }
        flags
    }
}
