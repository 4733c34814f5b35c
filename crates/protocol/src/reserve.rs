//! The bodies of `POST /v1/reserve`: refunds, charges and reservations, and the grants of the
//! reply.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{BUILD, CounterKey, Kind, MAX_UNITS, MAX_WINDOW_S, Window, grants, is_default};

/// How long the slots of a worker count after it last said that it holds them.
pub const HOLDING: Duration = Duration::from_secs(9);
/// Longest [`Holding::worker`], in bytes.
pub const MAX_WORKER: usize = 64;

/// The body of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveRequest {
    /// How long the caller waits, in milliseconds from receipt. After that, the store starts no
    /// more work for it.
    pub budget_ms: u32,
    /// Units to refund, carried out before the reservations.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refunds: Vec<Adjustment>,
    /// Units that settled costs take beyond what was reserved, carried out before the reservations.
    /// The store never refuses them: beyond the quota they are debt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<Adjustment>,
    /// Units that requests need. The reply keeps their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation>,
}

/// Units of one window of one counter: to refund, because they were granted and never spent, or to
/// charge. Without effect once that window is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustment {
    /// `<domain>:<policy>:{<partition>}`.
    pub key: Arc<str>,
    /// The kind of the window.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: Kind,
    /// Length of the window in seconds; 0 for a calendar window.
    #[serde(default, skip_serializing_if = "is_default")]
    pub window_s: u32,
    /// Shift of the window's boundaries in seconds, less than its length.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offset_s: u32,
    /// The number of the window that granted the units, or their reservation.
    pub window: u64,
    /// The units, 1 to [`MAX_UNITS`].
    pub units: u64,
}

/// Asks for units of one counter in its current window.
///
/// By default the window is fixed, and neither `spare` nor a flag is set.
///
/// ```
/// use quotagate_protocol::Reservation;
///
/// let key = "shop:per-user:{alice}".into();
/// let ask =
///     Reservation { key, window_s: 60, quota: 10, want: 4, min: 1, ..Reservation::default() };
/// assert!(ask.check().is_ok());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// `<domain>:<policy>:{<partition>}`.
    pub key: Arc<str>,
    /// The kind of the window.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: Kind,
    /// Length of the window in seconds; 0 for a calendar window, and for slots.
    #[serde(default, skip_serializing_if = "is_default")]
    pub window_s: u32,
    /// Shift of the window's boundaries in seconds, less than its length.
    #[serde(default, skip_serializing_if = "is_default")]
    pub offset_s: u32,
    /// The quota of the window, or the limit of slots: 0 to [`MAX_UNITS`].
    pub quota: u64,
    /// Units for requests that wait, 0 to [`MAX_UNITS`]. 0 if no request waits: only `spare` is
    /// wanted, a worker only says how many slots it holds, or the counter is only read.
    pub want: u64,
    /// The smallest useful grant, 1 to `want`; 0 if `want` is 0.
    pub min: u64,
    /// Units to prefetch for a lease, 0 to [`MAX_UNITS`]. The store grants them only after all of
    /// `want`, and at most an eighth of what is left then.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spare: u64,
    /// Whether refused units count as used, too.
    #[serde(default, skip_serializing_if = "is_default")]
    pub count_denied: bool,
    /// Whether only policies that mark, or in shadow mode, need it, so that it never refuses a
    /// request.
    #[serde(default, skip_serializing_if = "is_default")]
    pub shadow: bool,
    /// Whether the quota may differ from the one that the policy's report names: by a tier,
    /// `quota_from`, a static override, or a limit that the request brought. Then the store keeps
    /// it with the counter, for operators.
    #[serde(default, skip_serializing_if = "is_default")]
    pub own_quota: bool,
    /// What the worker says of its slots. Present with [`Kind::InFlight`], and only with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holding: Option<Holding>,
}

/// What a worker says of the slots that it holds of one counter. It replaces all that the store
/// knew of that worker and counter, and holds for [`HOLDING`].
///
/// A worker has at most one such message for a counter under way. If it gets no answer, it holds
/// what it held before: its next message says so, and undoes what the lost one took. A message that
/// comes later than a newer one of the same worker changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Names the worker, and differs for each start of it: 1 to [`MAX_WORKER`] characters of `a` to
    /// `z`, `0` to `9`, `.` and `-`.
    pub worker: Arc<str>,
    /// Grows with each message of the worker: 1 to [`MAX_UNITS`].
    pub serial: u64,
    /// Slots that the worker holds without those that it asks for, 0 to [`MAX_UNITS`]. They count
    /// even if they exceed the limit.
    pub held: u64,
    /// Slots that its requests wait for, with those that it asks for: 0 to [`MAX_UNITS`]. When
    /// others ask, the store leaves at most `min` of them for this worker.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waiting: u64,
    /// How long the oldest of these requests has waited, in milliseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub waited_ms: u64,
    /// How long requests of this counter wait at most, in milliseconds. What a request that arrived
    /// earlier waited for holds up nobody: it has left. 0: unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub max_wait_ms: u64,
    /// How long the worker's longest live request has held a slot, in milliseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub longest_ms: u64,
}

/// The reply: one outcome for each reservation, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveReply {
    /// Version of the dials in force; 0 before the first.
    #[serde(default)]
    pub dials: u64,
    /// One for each reservation: its grant, perhaps of 0 units, or why the store did not carry it
    /// out. As far as the store knows, a failed reservation took nothing.
    #[serde(with = "grants")]
    pub grants: Vec<Result<Grant, String>>,
}

/// What the store granted of one reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Grant {
    /// Units granted, 0 to `want + spare`.
    pub granted: u64,
    /// Units of the window in use, including this grant and what `count_denied` counted. Of slots:
    /// what all workers hold.
    pub used: u64,
    /// The quota in force, which a runtime override may have changed.
    pub quota: u64,
    /// Milliseconds until the window ends. For a sliding window: until units return, as many as the
    /// reservation needs at least. For slots: how long the worker holds them, or 0 if the store
    /// knows a newer message of the worker.
    pub reset_ms: u64,
    /// The number of the window. A fixed window counts from the Unix epoch, a sliding window has
    /// the number of the slice that granted the units, and a calendar window that of the second of
    /// its start. For slots: [`Holding::serial`].
    pub window: u64,
    /// Length of a calendar window in seconds; 0 for other windows, whose length is known.
    #[serde(skip_serializing_if = "is_default")]
    pub window_s: u32,
    /// Slots that other workers asked for within the last second and did not get, whether their
    /// requests wait or were refused. A worker that sees them keeps no idle slots.
    #[serde(skip_serializing_if = "is_default")]
    pub waiting: u64,
    /// Slots that this call found expired, for the metrics of the store. They do not go over the
    /// wire.
    #[serde(skip)]
    pub expired: u64,
}

impl Grant {
    /// Units that are not reserved yet.
    pub const fn left(&self) -> u64 {
        self.quota.saturating_sub(self.used)
    }
}

/// A field of an item that is out of its bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    /// The name of the field.
    pub field: &'static str,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

impl Reservation {
    /// Checks every field against its bounds, and returns the window.
    ///
    /// # Errors
    /// The first field out of its bounds.
    pub fn check(&self) -> Result<Window, Invalid> {
        CounterKey::parse(&self.key)?;
        let window = check_window(&self.kind, self.window_s, self.offset_s)?;
        within("quota", self.quota, 0, MAX_UNITS)?;
        within("spare", self.spare, 0, MAX_UNITS)?;
        self.check_holding()?;
        within("want", self.want, 0, MAX_UNITS)?;
        within("min", self.min, self.want.min(1), self.want)?;
        Ok(window)
    }

    fn check_holding(&self) -> Result<(), Invalid> {
        let Some(holding) = &self.holding else {
            return match self.kind {
                Kind::InFlight => Err(holding_is("must be present, since the kind is in_flight")),
                _ => Ok(()),
            };
        };
        if self.kind != Kind::InFlight {
            return Err(holding_is("must be absent, unless the kind is in_flight"));
        }
        if self.spare > 0 || self.count_denied {
            return Err(holding_is("does not go with spare or count_denied"));
        }
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-".contains(&b);
        let worker = &holding.worker;
        if !(1..=MAX_WORKER).contains(&worker.len()) || !worker.bytes().all(allowed) {
            let reason = format!("must be 1 to {MAX_WORKER} of a to z, 0 to 9, . and -");
            return Err(Invalid { field: "holding.worker", reason });
        }
        within("holding.serial", holding.serial, 1, MAX_UNITS)?;
        within("holding.held", holding.held, 0, MAX_UNITS)?;
        within("holding.waiting", holding.waiting, 0, MAX_UNITS)?;
        within("holding.waited_ms", holding.waited_ms, 0, MAX_UNITS)?;
        within("holding.max_wait_ms", holding.max_wait_ms, 0, MAX_UNITS)?;
        within("holding.longest_ms", holding.longest_ms, 0, MAX_UNITS)
    }
}

fn holding_is(reason: &str) -> Invalid {
    Invalid { field: "holding", reason: reason.to_owned() }
}

impl Adjustment {
    /// Checks every field against its bounds, and returns the window.
    ///
    /// # Errors
    /// The first field out of its bounds.
    pub fn check(&self) -> Result<Window, Invalid> {
        CounterKey::parse(&self.key)?;
        if self.kind == Kind::InFlight {
            let reason = "slots are freed by what a worker says of them, in a reservation";
            return Err(Invalid { field: "kind", reason: reason.to_owned() });
        }
        let window = check_window(&self.kind, self.window_s, self.offset_s)?;
        within("window", self.window, 0, MAX_UNITS)?;
        within("units", self.units, 1, MAX_UNITS)?;
        Ok(window)
    }
}

fn check_window(kind: &Kind, seconds: u32, offset: u32) -> Result<Window, Invalid> {
    Window::of(kind, seconds, offset).ok_or_else(|| {
        let (field, reason) = match kind {
            Kind::Fixed => (
                "window_s",
                format!("must be 1 to {MAX_WINDOW_S} seconds, and offset_s less than it"),
            ),
            Kind::Sliding => {
                ("window_s", format!("must be 1 to {MAX_WINDOW_S} seconds, and offset_s 0"))
            }
            Kind::Calendar(_) => {
                ("kind", "must name a time zone, without window_s and offset_s".to_owned())
            }
            Kind::InFlight => ("window_s", "must be 0, as slots have no window".to_owned()),
            Kind::Unknown => (
                "kind",
                format!(
                    "this store (version {BUILD}) does not know this kind of window: upgrade the \
                     stores before the filters"
                ),
            ),
        };
        Invalid { field, reason }
    })
}

fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), Invalid> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(Invalid { field, reason: format!("must be {least} to {most}, is {value}") })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Calendar, MAX_KEY, Unit};
    use super::*;

    fn reservation(key: &str) -> Reservation {
        Reservation {
            key: key.into(),
            window_s: 60,
            quota: 5,
            want: 3,
            min: 1,
            ..Reservation::default()
        }
    }

    #[test]
    fn reply_has_the_json_of_the_contract() {
        let text = r#"{"dials":17,"grants":[{"granted":3,"used":57,"quota":100,"reset_ms":42137,"window":28333335},{"error":"down"},{}]}"#;
        let reply: ReserveReply = serde_json::from_str(text).unwrap();
        let window = 28_333_335;
        let grant =
            Grant { granted: 3, used: 57, quota: 100, reset_ms: 42137, window, ..Grant::default() };
        assert_eq!(
            reply.grants,
            [Ok(grant), Err("down".into()), Err("neither a grant nor an error".into())]
        );
        assert_eq!(grant.left(), 43);
        assert_eq!(
            serde_json::to_string(&ReserveReply { grants: reply.grants[..2].to_vec(), ..reply })
                .unwrap(),
            r#"{"dials":17,"grants":[{"granted":3,"used":57,"quota":100,"reset_ms":42137,"window":28333335},{"error":"down"}]}"#
        );
    }

    #[test]
    fn malformed_keys_are_rejected() {
        for good in ["shop:per-ip:{ip=192.0.2.7}", "shop:all:{*}", "s:p:{header.x=a:b/c}"] {
            assert_eq!(reservation(good).check(), Ok(Window::new(60, 0).unwrap()), "{good}");
        }
        let longest = format!("s:p:{{{}}}", "a".repeat(MAX_KEY - "s:p:{}".len()));
        assert!(reservation(&longest).check().is_ok());
        let long = format!("s:p:{{{}}}", "a".repeat(MAX_KEY - "s:p:".len()));
        for bad in [
            "",
            "shop",
            "shop:p:{}",
            "shop:p:{a}b",
            "shop:p:{a}{b}",
            "shop:p:{a b}",
            "s:p:{a\r\n}",
            "s:p:q:{a}",
            ":p:{a}",
            &long,
        ] {
            assert_eq!(reservation(bad).check().unwrap_err().field, "key", "{bad:?}");
        }
    }

    #[test]
    fn numbers_out_of_bounds_name_their_field() {
        let good = reservation("s:p:{*}");
        let prefetch = Reservation { want: 0, min: 0, spare: 1, ..good.clone() };
        assert!(prefetch.check().is_ok());
        let look = Reservation { spare: 0, ..prefetch.clone() };
        assert!(look.check().is_ok());
        for (bad, field) in [
            (Reservation { window_s: 0, ..good.clone() }, "window_s"),
            (Reservation { offset_s: 60, ..good.clone() }, "window_s"),
            (Reservation { quota: MAX_UNITS + 1, ..good.clone() }, "quota"),
            (Reservation { want: 0, ..good.clone() }, "min"),
            (Reservation { want: MAX_UNITS + 1, ..good.clone() }, "want"),
            (Reservation { min: 1, ..prefetch }, "min"),
            (Reservation { min: 0, spare: 1, ..good.clone() }, "min"),
            (Reservation { min: 4, ..good.clone() }, "min"),
            (Reservation { min: 0, ..good.clone() }, "min"),
            (Reservation { spare: u64::MAX, ..good.clone() }, "spare"),
        ] {
            assert_eq!(bad.check().unwrap_err().field, field);
        }
        let slots = Reservation {
            kind: Kind::InFlight,
            window_s: 0,
            want: 0,
            min: 0,
            holding: Some(Holding { worker: "a1.0-7".into(), serial: 1, ..Holding::default() }),
            ..good.clone()
        };
        assert_eq!(slots.check(), Ok(Window::InFlight));
        let said = |holding: Holding| Reservation { holding: Some(holding), ..slots.clone() };
        let holding = slots.holding.clone().unwrap();
        for (bad, field) in [
            (Reservation { holding: None, ..slots.clone() }, "holding"),
            (Reservation { kind: Kind::Fixed, window_s: 60, ..slots.clone() }, "holding"),
            (Reservation { spare: 1, ..slots.clone() }, "holding"),
            (Reservation { count_denied: true, ..slots.clone() }, "holding"),
            (Reservation { window_s: 1, ..slots.clone() }, "window_s"),
            (said(Holding { worker: "A".into(), ..holding.clone() }), "holding.worker"),
            (said(Holding { worker: "".into(), ..holding.clone() }), "holding.worker"),
            (said(Holding { serial: 0, ..holding.clone() }), "holding.serial"),
            (said(Holding { held: u64::MAX, ..holding.clone() }), "holding.held"),
            (said(Holding { waiting: u64::MAX, ..holding.clone() }), "holding.waiting"),
            (said(Holding { max_wait_ms: u64::MAX, ..holding }), "holding.max_wait_ms"),
        ] {
            assert_eq!(bad.check().unwrap_err().field, field);
        }
        let kind = Kind::Fixed;
        let refund = Adjustment {
            key: "s:p:{*}".into(),
            kind,
            window_s: 60,
            offset_s: 0,
            window: 1,
            units: 0,
        };
        assert_eq!(refund.check().unwrap_err().field, "units");
        let calendar = Kind::Calendar(Calendar { unit: Unit::Day, time_zone: "UTC".into() });
        let reservation = Reservation { kind: calendar, ..good };
        assert_eq!(reservation.check().unwrap_err().field, "kind");
    }
}
