//! What a reply to a fetch says, read so that one bad dial harms no other.
//!
//! Anything may stand there, for an operator can write it into Redis by hand. A field that is none
//! is left out, and a dial whose policy or time is none is left out altogether: of the latter
//! nobody knows when it should end. A dial of a policy that this filter has not is another filter's
//! of the same domain, and no fault. Read are at most [`MAX_REPLY`] bytes and [`MAX_DIALS`] dials
//! besides those.

use std::fmt::{self, Write};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::{Config, MAX_POLICIES, Turned, is_policy_name};
use crate::protocol::dials::{ALL_POLICIES, MAX_REPLY};
use crate::protocol::{MAX_UNITS, Mode, OnFailure};
use crate::time::Monotonic;

/// Most dials of a reply: one a policy, and the one for all.
pub(super) const MAX_DIALS: usize = MAX_POLICIES + 1;

/// What the store says of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) version: u64,
    pub(super) dials: Vec<Timed>,
    /// The places of policies of which some partition has an override.
    pub(super) overridden: Vec<usize>,
    /// What was left out.
    pub(super) ignored: Ignored,
}

/// A dial, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    /// The place of its policy; `None` is all policies.
    pub(super) policy: Option<usize>,
    pub(super) turned: Turned,
    /// `None` is for good.
    pub(super) until: Option<Monotonic>,
}

/// What was left out of a reply: the first of it in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ignored {
    first: Option<String>,
    more: u64,
}

impl Ignored {
    fn note(&mut self, what: impl fmt::Display) {
        match self.first {
            None => self.first = Some(what.to_string()),
            Some(_) => self.more += 1,
        }
    }

    /// In words, if there is any.
    pub(super) fn text(&self) -> Option<String> {
        let mut text = self.first.clone()?;
        if self.more > 0 {
            // Writing into memory cannot fail.
            let _ = write!(text, ", and {} more", self.more);
        }
        Some(text)
    }
}

/// Reads a reply, received `now`, for the policies of `config`.
///
/// # Errors
/// Why it is no reply at all.
pub(super) fn read(body: &[u8], config: &Config, now: Monotonic) -> Result<Reading, String> {
    if body.len() > MAX_REPLY {
        return Err(format!("{} bytes, at most {MAX_REPLY} are read", body.len()));
    }
    let reply: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let version = reply.get("version").and_then(Value::as_u64).ok_or("it has no version")?;
    let dials = reply.get("dials").and_then(Value::as_array).ok_or("it has no list of dials")?;
    let mut reading = Reading { version, ..Reading::default() };
    let mut ours = dials.iter().filter(|value| !is_of_others(value, config));
    for value in ours.by_ref().take(MAX_DIALS) {
        match dial(value, config, &mut reading.ignored, now) {
            Ok(dial) if reading.dials.iter().all(|known| known.policy != dial.policy) => {
                reading.dials.push(dial);
            }
            Ok(_) => reading.ignored.note(format_args!("a second dial of {}", name(value))),
            Err(why) => reading.ignored.note(why),
        }
    }
    if ours.next().is_some() {
        reading.ignored.note(format_args!("all dials but the first {MAX_DIALS}"));
    }
    match reply.get("overridden") {
        None | Some(Value::Null) => {}
        Some(Value::Array(names)) => {
            // Of a policy that this filter has not nobody needs to know.
            let places =
                names.iter().take(MAX_REPLY).filter_map(|name| place(config, name.as_str()?));
            reading.overridden = places.collect();
            reading.overridden.sort_unstable();
            reading.overridden.dedup();
        }
        Some(_) => reading.ignored.note("overridden, which is not a list"),
    }
    Ok(reading)
}

/// Whether it is the dial of a policy that this filter has not.
fn is_of_others(value: &Value, config: &Config) -> bool {
    let name = name(value);
    is_policy_name(name) && place(config, name).is_none()
}

fn dial(
    value: &Value,
    config: &Config,
    ignored: &mut Ignored,
    now: Monotonic,
) -> Result<Timed, String> {
    let text = value.get("policy").and_then(Value::as_str).ok_or("a dial without a policy")?;
    let policy =
        match text {
            ALL_POLICIES => None,
            text => Some(place(config, text).ok_or_else(|| {
                format!("the dial of {}: no policy can have that name", name(value))
            })?),
        };
    let until = match given(value, "for_ms") {
        None => None,
        Some(time) => {
            let ms = time.as_u64().ok_or_else(|| {
                format!("the dial of {}: its for_ms is not a whole number", name(value))
            })?;
            Some(now + Duration::from_millis(ms))
        }
    };
    let mode = given(value, "mode")
        .and_then(|mode| known(Mode::deserialize(mode), "mode", value, ignored));
    let quota = given(value, "quota").and_then(|quota| {
        let quota = quota.as_u64().filter(|quota| *quota <= MAX_UNITS && policy.is_some());
        known(quota.ok_or(()), "quota", value, ignored)
    });
    let on_failure = given(value, "on_failure").and_then(|on_failure| {
        known(OnFailure::deserialize(on_failure), "on_failure", value, ignored)
    });
    Ok(Timed { policy, turned: Turned { mode, quota, on_failure, is_overridden: false }, until })
}

/// A field that has been read, or is left out.
fn known<T, E>(read: Result<T, E>, field: &str, dial: &Value, ignored: &mut Ignored) -> Option<T> {
    if read.is_err() {
        ignored.note(format_args!("{field} in the dial of {}", name(dial)));
    }
    read.ok()
}

/// A field that is there.
fn given<'v>(dial: &'v Value, field: &str) -> Option<&'v Value> {
    dial.get(field).filter(|value| !value.is_null())
}

/// The name of the policy of a dial.
fn name(dial: &Value) -> &str {
    dial.get("policy").and_then(Value::as_str).unwrap_or_default()
}

fn place(config: &Config, name: &str) -> Option<usize> {
    config.policies.iter().position(|policy| *policy.name == *name)
}
