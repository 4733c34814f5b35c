//! Reads the reply to a fetch so that a bad dial does not affect the others.
//!
//! A reply may hold anything, since operators can write into Redis by hand. The reader ignores an
//! invalid field. It ignores a whole dial if the policy or the time is invalid: without the time,
//! the dial might never end. A dial of a policy that this filter does not have is not a fault,
//! since another filter of the same domain may have that policy. The reader takes at most
//! [`MAX_REPLY`] bytes, and [`MAX_DIALS`] dials of this filter.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::dials::{ALL_POLICIES, DocumentVersion, EnforcedShare, MAX_REPLY};
use quotagate_protocol::{MAX_UNITS, Mode, OnFailure, is_policy};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::config::{Config, Dialed, MAX_POLICIES};
use crate::time::Monotonic;

/// Most dials of this filter in a reply: one per policy, and one for all policies.
pub(super) const MAX_DIALS: usize = MAX_POLICIES + 1;

/// The dials and overrides of a domain in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredChanges {
    pub(super) version: u64,
    pub(super) dials: Vec<Timed>,
    /// The indexes of policies with runtime overrides, sorted.
    pub(super) overridden: Vec<usize>,
    /// What the reader ignored.
    pub(super) ignored: Ignored,
    /// The published document, if the store said which one is published.
    pub(super) document: Option<DocumentVersion>,
}

/// A dial, and when it reverts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timed {
    /// The index of its policy. `None` is all policies.
    pub(super) policy: Option<usize>,
    pub(super) dialed: Dialed,
    /// `None`: it does not revert by itself.
    pub(super) until: Option<Monotonic>,
}

/// What the reader ignored in a reply: the first item as text, and the number of others.
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

    /// As text, if the reader ignored anything.
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
/// Why the body is not a reply.
pub(super) fn read(body: &[u8], config: &Config, now: Monotonic) -> Result<StoredChanges, String> {
    if body.len() > MAX_REPLY {
        return Err(format!("{} bytes, at most {MAX_REPLY} are read", body.len()));
    }
    let reply: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let version = reply.get("version").and_then(Value::as_u64).ok_or("it has no version")?;
    let dials = reply.get("dials").and_then(Value::as_array).ok_or("it has no list of dials")?;
    let mut reading = StoredChanges { version, ..StoredChanges::default() };
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
            // Other filters of the domain have the other policies.
            let names = || names.iter().take(MAX_REPLY).filter_map(Value::as_str);
            reading.overridden = if names().any(|name| name == ALL_POLICIES) {
                (0..config.policies.len()).collect()
            } else {
                names().filter_map(|name| index_of(config, name)).collect()
            };
            reading.overridden.sort_unstable();
            reading.overridden.dedup();
        }
        Some(_) => reading.ignored.note("overridden, which is not a list"),
    }
    if let Some(document) = reply.get("document") {
        match DocumentVersion::deserialize(document) {
            Ok(document) => reading.document = Some(document),
            Err(_) => reading.ignored.note("document, which names none"),
        }
    }
    Ok(reading)
}

/// Whether it is the dial of a policy that this filter does not have.
fn is_of_others(value: &Value, config: &Config) -> bool {
    let name = name(value);
    is_policy(name) && index_of(config, name).is_none()
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
            text => Some(index_of(config, text).ok_or_else(|| {
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
    // Without it, the mode holds for all partitions, and refuses none.
    let enforced_for = given(value, "enforced_for").and_then(|share| {
        let share = EnforcedShare::deserialize(share).ok();
        let share = share.filter(|share| share.is_sound() && mode == Some(Mode::Shadow));
        known(share.ok_or(()), "enforced_for", value, ignored).map(Arc::new)
    });
    let quota = given(value, "quota").and_then(|quota| {
        let quota = quota.as_u64().filter(|quota| *quota <= MAX_UNITS && policy.is_some());
        known(quota.ok_or(()), "quota", value, ignored)
    });
    let on_failure = given(value, "on_failure").and_then(|on_failure| {
        known(OnFailure::deserialize(on_failure), "on_failure", value, ignored)
    });
    let dialed = Dialed { mode, enforced_for, quota, on_failure, is_overridden: false };
    Ok(Timed { policy, dialed, until })
}

/// The value of a field. If it is invalid, notes that it is ignored.
fn known<T, E>(read: Result<T, E>, field: &str, dial: &Value, ignored: &mut Ignored) -> Option<T> {
    if read.is_err() {
        ignored.note(format_args!("{field} in the dial of {}", name(dial)));
    }
    read.ok()
}

/// A field that is set.
fn given<'v>(dial: &'v Value, field: &str) -> Option<&'v Value> {
    dial.get(field).filter(|value| !value.is_null())
}

/// The name of the policy of a dial.
fn name(dial: &Value) -> &str {
    dial.get("policy").and_then(Value::as_str).unwrap_or_default()
}

fn index_of(config: &Config, name: &str) -> Option<usize> {
    config.policies.iter().position(|policy| *policy.name == *name)
}
