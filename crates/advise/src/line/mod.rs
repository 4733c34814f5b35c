//! Reads one line of a log: the time, the user and the cost of a request.

mod fields;
mod json;
mod operators;
mod parts;
#[cfg(test)]
mod tests;
mod text;
mod time;
mod wrapped;

use std::borrow::Cow;

pub use self::fields::{Fields, Only};
pub(crate) use self::parts::{Parts, without_unfinished};

use self::fields::{COST, DECISION, DURATION, KEY, NUMBER, PATH, POLICY, TIME};
use self::json::{Found, Paths};
use self::operators::{quota, strftime, want};
use self::text::Format;
use self::time::TimeFormat;
use crate::display::shown;

/// A request to count.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'l> {
    pub(crate) time_ms: i64,
    pub(crate) key: Cow<'l, [u8]>,
    /// Absent if the log names none, or if other fields than the filter's are read.
    pub(crate) policy: Option<Cow<'l, [u8]>>,
    /// Absent if the field of the cost has no whole number.
    pub(crate) cost: Option<u32>,
    /// In milliseconds. Absent if its field is not read or has no whole number.
    pub(crate) duration_ms: Option<u32>,
}

impl Request<'_> {
    /// The cost as the filter reads it: one unit unless it is a larger whole number.
    pub(crate) fn units(&self) -> u32 {
        self.cost.unwrap_or(1).max(1)
    }
}

/// The meaning of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'l> {
    /// A request to count.
    Request(Request<'l>),
    /// A request without a user.
    Unidentified(Missing),
    /// A request of another policy or path than those selected.
    NotSelected,
    /// The line does not have the format.
    Malformed,
}

impl Line<'_> {
    fn into_owned(self) -> Line<'static> {
        let owned = |text: Cow<'_, [u8]>| Cow::Owned(text.into_owned());
        match self {
            Line::Request(Request { time_ms, key, policy, cost, duration_ms }) => {
                let (key, policy) = (owned(key), policy.map(owned));
                Line::Request(Request { time_ms, key, policy, cost, duration_ms })
            }
            Line::Unidentified(missing) => Line::Unidentified(missing),
            Line::NotSelected => Line::NotSelected,
            Line::Malformed => Line::Malformed,
        }
    }
}

/// What a line without a user lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The field of the user.
    Field,
    /// A user and a policy: both fields are empty, so no policy counted the request.
    UserAndPolicy,
    /// A user, although a policy is named or the field is not the filter's.
    User,
}

/// Reads lines.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    names: [Option<String>; NUMBER],
    /// The format of text lines, or the operator that it lacks.
    text: Result<Format, String>,
    json_dash: Dash,
    text_dash: Dash,
    times: TimeFormat,
    text_times: TimeFormat,
    only: Only,
}

/// The meaning of `-` as the name of a user.
///
/// The filter writes it for all requests that share a counter because they lack an identity
/// (`on_missing: shared`). Envoy writes it into text for a missing value, and `null` into JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dash {
    /// The shared user.
    Shared,
    /// The shared user, if the line names a policy or a decision of one.
    SharedOfPolicy,
    /// A missing user.
    Missing,
}

/// How many names of fields an error lists.
const SHOWN: usize = 12;

const DASH: &[u8] = b"-";
/// The decision on requests that were refused because they lack an identity.
const MISSING_IDENTITY: &[u8] = b"missing_identity";

impl Reader {
    /// A reader of lines with these fields.
    ///
    /// # Errors
    /// A sentence about fields or a format that contradict each other.
    pub(crate) fn new(fields: &Fields, only: &Only) -> Result<Self, String> {
        let name = |given: &Option<String>, shipped: &str| {
            Some(given.clone().unwrap_or_else(|| shipped.to_owned()))
        };
        // With another field for the user, policies do not matter unless the options name one.
        let by_policy = fields.policy.is_some() || fields.key.is_none() || only.policy.is_some();
        let names = [
            name(&fields.time, "time"),
            name(&fields.key, "quota_partition"),
            if by_policy { name(&fields.policy, "quota_policy") } else { None },
            if only.path.is_some() { name(&fields.path, "path") } else { None },
            fields.cost.clone(),
            // JSON has no need for the decision.
            None,
            fields.duration.clone(),
        ];
        let mut format = Format::parse(fields.format.as_deref().unwrap_or(text::DEFAULT))?;
        let missing = want(&mut format, fields, &names);
        if let (Some(missing), true) = (&missing, fields.format.is_some()) {
            return Err(format!("the format has no {missing}"));
        }
        let given = fields.time_format.clone().map(TimeFormat::Strftime);
        let of_operator =
            format.names().find_map(|name| name.strip_prefix("START_TIME(")?.strip_suffix(')'));
        let of_operator = of_operator.filter(|_| fields.time.is_none()).map(strftime);
        let text_times = given.clone().or(of_operator).unwrap_or(TimeFormat::Known);
        format.stop_early();
        let json_dash = match (fields.key.is_some(), by_policy) {
            (false, _) => Dash::Shared,
            (true, true) => Dash::SharedOfPolicy,
            (true, false) => Dash::Missing,
        };
        let of_filter = fields.key.as_ref().is_none_or(|key| *key == quota("partition"));
        let text_dash = if of_filter { Dash::SharedOfPolicy } else { Dash::Missing };
        let text = missing.map_or(Ok(format), Err);
        let times = given.unwrap_or(TimeFormat::Known);
        Ok(Self { names, text, json_dash, text_dash, times, text_times, only: only.clone() })
    }

    /// The operator that the format lacks to read text lines, if any.
    pub(crate) fn text_lacks(&self) -> Option<&str> {
        self.text.as_ref().err().map(String::as_str)
    }

    /// Reads a line, with or without its line end, and with what a collector of logs wrote around
    /// it.
    pub(crate) fn read<'l>(&self, line: &'l [u8]) -> Line<'l> {
        let line = wrapped::bare(line);
        if let Some(inner) = wrapped::of_docker(line) {
            return self.read_bare(wrapped::bare(inner.as_bytes())).into_owned();
        }
        match self.read_bare(line) {
            Line::Malformed => wrapped::without_time(line)
                .map_or(Line::Malformed, |line| self.read_bare(wrapped::bare(line))),
            read => read,
        }
    }

    fn read_bare<'l>(&self, line: &'l [u8]) -> Line<'l> {
        let (found, times) = if line.starts_with(b"{") {
            (json::find(line, &self.paths()), &self.times)
        } else {
            (self.text.as_ref().ok().and_then(|format| format.find(line)), &self.text_times)
        };
        found
            .and_then(|found| self.judge(&found, times, line.starts_with(b"{")))
            .unwrap_or(Line::Malformed)
    }

    /// The time at which the request of a line began.
    pub(crate) fn time(&self, line: &[u8]) -> Option<i64> {
        match self.read(line) {
            Line::Request(request) => Some(request.time_ms),
            _ => None,
        }
    }

    /// Why a JSON line has no time. None if it has one, or if it is no JSON line.
    pub(crate) fn why_no_time(&self, line: &[u8]) -> Option<String> {
        let line = wrapped::bare(line);
        if let Some(inner) = wrapped::of_docker(line) {
            return self.why_no_time(inner.as_bytes());
        }
        let line = wrapped::without_time(line).unwrap_or(line);
        let found = json::find(line, &self.paths()).filter(|_| line.starts_with(b"{"))?;
        let name = self.names.get(TIME)?.as_deref()?;
        let Some(raw) = found.get(TIME).copied().flatten() else {
            let names = json::names(line).map(|name| format!("{:?}", shown(name.as_bytes())));
            let names: Vec<String> = names.take(SHOWN).collect();
            return Some(format!(
                "it has no field {name:?} for the time; its fields are {}: choose one with --time-field",
                names.join(", ")
            ));
        };
        let text = json::text(raw).unwrap_or_default();
        let is_time = self.times.milliseconds(&text).is_some_and(|time| time >= 0);
        (!is_time).then(|| {
            format!(
                "its field {name:?} is {:?}, which is no known time: describe it with --time-format",
                shown(&text)
            )
        })
    }

    fn paths(&self) -> Paths<'_> {
        self.names.each_ref().map(Option::as_deref)
    }

    fn judge<'l>(&self, found: &Found<'l>, times: &TimeFormat, json: bool) -> Option<Line<'l>> {
        let written = |field: usize| -> Option<Cow<'l, [u8]>> {
            let raw = found.get(field).copied().flatten()?;
            let text = if json { json::text(raw)? } else { Cow::Borrowed(raw) };
            (!text.is_empty()).then_some(text)
        };
        // Envoy writes a dash for a missing value.
        let text = |field: usize| written(field).filter(|text| **text != *DASH);
        let time_ms = times.milliseconds(&text(TIME)?).filter(|time| *time >= 0)?;
        let policy = text(POLICY);
        if let Some(only) = &self.only.path
            && !text(PATH).is_some_and(|path| path.starts_with(only.as_bytes()))
        {
            return Some(Line::NotSelected);
        }
        let dash = if json { self.json_dash } else { self.text_dash };
        let is_user = |key: &Cow<'l, [u8]>| {
            **key != *DASH
                || match dash {
                    Dash::Shared => true,
                    Dash::SharedOfPolicy => match text(DECISION) {
                        Some(decision) => *decision != *MISSING_IDENTITY,
                        None => policy.is_some(),
                    },
                    Dash::Missing => false,
                }
        };
        let key = written(KEY).filter(is_user);
        if let Some(only) = &self.only.policy
            && policy.as_deref() != Some(only.as_bytes())
            && (policy.is_some() || key.is_some())
        {
            return Some(Line::NotSelected);
        }
        let Some(key) = key else {
            let has_field = found.get(KEY).copied().flatten().is_some();
            return Some(Line::Unidentified(match (policy, self.names.get(POLICY)) {
                (None, _) if !has_field => Missing::Field,
                (None, Some(Some(_))) => Missing::UserAndPolicy,
                _ => Missing::User,
            }));
        };
        let has_cost = self.names.get(COST).is_some_and(Option::is_some);
        let cost = if has_cost { whole(text(COST).as_deref()) } else { Some(1) };
        let duration_ms = whole(text(DURATION).as_deref());
        Some(Line::Request(Request { time_ms, key, policy, cost, duration_ms }))
    }
}

/// A whole number, or the largest of them.
fn whole(text: Option<&[u8]>) -> Option<u32> {
    let number = str::from_utf8(text?).ok()?.parse::<u64>().ok()?;
    Some(u32::try_from(number).unwrap_or(u32::MAX))
}
