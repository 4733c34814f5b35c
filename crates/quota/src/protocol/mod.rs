//! The messages between filter and store (`POST /v1/reserve`), shared by both sides.
//!
//! This module says what a batch means; how a call carries it (path, headers, retries) is the business of
//! the filter's adapter and of the store's server.

pub mod dials;
mod window;

pub use window::{MAX_WINDOW_S, Window};

use serde::{Deserialize, Serialize};

/// The path of the call.
pub const RESERVE_PATH: &str = "/v1/reserve";
/// Most items (returns and reservations together) in one call.
pub const MAX_ITEMS: usize = 1024;
/// Largest body of a call and of its reply, in bytes.
pub const MAX_BODY: usize = 1024 * 1024;
/// Largest quota, cost and number of units: 2^53 - 1, the largest integer that JSON, Lua and Redis' scripts
/// all hold exactly.
pub const MAX_UNITS: u64 = (1 << 53) - 1;
/// Longest key of a message, in bytes.
pub const MAX_KEY: usize = 4096;

/// The body of a call: `K` is `&str` or `Rc<str>` where it is written, `String` where it is read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReserveRequest<K = String> {
    /// How long the caller waits, in milliseconds from receipt: nothing is started for it afterwards.
    pub budget_ms: u32,
    /// Units given back, carried out before the reservations.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub returns: Vec<Return<K>>,
    /// Units asked for; the reply keeps their order.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<Reservation<K>>,
}

/// Units of one window of one counter that were granted and never spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Return<K = String> {
    /// `<domain>:<policy>:{<partition>}`.
    pub key: K,
    /// Length of the window in seconds.
    pub window_s: u32,
    /// The number of the window whose grant this was.
    pub window: u64,
    /// How many, 1 to [`MAX_UNITS`].
    pub units: u64,
}

/// A wish for units of one counter in its current window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation<K = String> {
    /// `<domain>:<policy>:{<partition>}`.
    pub key: K,
    /// Length of the window in seconds.
    pub window_s: u32,
    /// Shift of the window's boundaries in seconds, less than its length.
    #[serde(default)]
    pub offset_s: u32,
    /// The quota of the window, 0 to [`MAX_UNITS`].
    pub quota: u64,
    /// Units wanted for requests that wait, 1 to [`MAX_UNITS`]; 0 where nobody waits and only `spare` is
    /// asked for.
    pub want: u64,
    /// The smallest number of units that is of use, 1 to `want`; 0 where `want` is.
    pub min: u64,
    /// Units wanted beyond those, granted where all of `want` is, and at most an eighth of what then remains;
    /// 0 to [`MAX_UNITS`].
    #[serde(default)]
    pub spare: u64,
    /// Whether units refused count as used as well.
    #[serde(default)]
    pub count_denied: bool,
    /// Whether only requests in shadow mode wait for it: what is not granted is refused to nobody.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shadow: bool,
}

/// The reply: one outcome a reservation, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReserveReply {
    /// Version of the dials in force; 0 while there are none.
    #[serde(default)]
    pub dials: u64,
    /// One a reservation.
    pub grants: Vec<Outcome>,
}

/// What became of one reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "OutcomeForm", into = "OutcomeForm")]
pub enum Outcome {
    /// It was carried out, perhaps with a grant of 0.
    Granted(Grant),
    /// It was not carried out, and this says why; it took nothing that the store knows of.
    Failed(String),
}

/// What the store granted of one reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Units granted, 0 to `want + spare`.
    pub granted: u64,
    /// Units of the window in use, this grant (and what `count_denied` counted) included.
    pub used: u64,
    /// The quota in force, which an override may have changed.
    pub quota: u64,
    /// Milliseconds until the window ends.
    pub reset_ms: u64,
    /// The number of the window.
    pub window: u64,
}

impl Grant {
    /// Units that nobody has reserved yet.
    pub const fn left(&self) -> u64 {
        self.quota.saturating_sub(self.used)
    }
}

/// The JSON form of [`Outcome`]: the fields of a grant, or `error` alone.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct OutcomeForm {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    granted: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reset_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
}

impl OutcomeForm {
    fn grant(&self) -> Option<Grant> {
        Some(Grant {
            granted: self.granted?,
            used: self.used?,
            quota: self.quota?,
            reset_ms: self.reset_ms?,
            window: self.window?,
        })
    }
}

/// Why a message is refused: the field and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Invalid {
    /// The field of the item.
    pub field: &'static str,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

impl<K: AsRef<str>> Reservation<K> {
    /// The window that it names, once every field is known to be within its bounds.
    ///
    /// # Errors
    /// The first field out of its bounds.
    pub fn check(&self) -> Result<Window, Invalid> {
        check_key(self.key.as_ref())?;
        let window = Window::new(self.window_s, self.offset_s).ok_or_else(|| Invalid {
            field: "window_s",
            reason: format!("must be 1 to {MAX_WINDOW_S} seconds, and offset_s less than it"),
        })?;
        within("quota", self.quota, 0, MAX_UNITS)?;
        within("spare", self.spare, 0, MAX_UNITS)?;
        let least = u64::from(self.spare == 0);
        within("want", self.want, least, MAX_UNITS)?;
        within("min", self.min, self.want.min(1), self.want)?;
        Ok(window)
    }
}

impl<K: AsRef<str>> Return<K> {
    /// # Errors
    /// The first field out of its bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_key(self.key.as_ref())?;
        within("window_s", self.window_s.into(), 1, MAX_WINDOW_S.into())?;
        within("window", self.window, 0, MAX_UNITS)?;
        within("units", self.units, 1, MAX_UNITS)
    }
}

/// A flag that is not set takes no room.
fn is_false(flag: &bool) -> bool {
    !*flag
}

fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), Invalid> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(Invalid { field, reason: format!("must be {least} to {most}, is {value}") })
    }
}

/// A key is `<domain>:<policy>:{<partition>}` of printable ASCII without spaces, with one pair of braces, so
/// that it stays one argument of a command and one hash slot of a Redis Cluster.
fn check_key(key: &str) -> Result<(), Invalid> {
    let well_formed = || {
        let (name, partition) = key.strip_suffix('}')?.split_once(":{")?;
        let (domain, policy) = name.split_once(':')?;
        let plain = |part: &str, extra: &[u8]| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_graphic() && !b"{}".contains(&b) && !extra.contains(&b))
        };
        (plain(domain, b":") && plain(policy, b":") && plain(partition, b"")).then_some(())
    };
    if key.len() > MAX_KEY {
        return Err(Invalid { field: "key", reason: format!("must be at most {MAX_KEY} bytes long") });
    }
    well_formed().ok_or_else(|| Invalid {
        field: "key",
        reason: "must be <domain>:<policy>:{<partition>} in printable ASCII".to_owned(),
    })
}

impl From<OutcomeForm> for Outcome {
    fn from(form: OutcomeForm) -> Self {
        match (form.grant(), form.error) {
            (_, Some(error)) => Self::Failed(error),
            (Some(grant), None) => Self::Granted(grant),
            (None, None) => Self::Failed("neither a grant nor an error".to_owned()),
        }
    }
}

impl From<Outcome> for OutcomeForm {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Granted(Grant { granted, used, quota, reset_ms, window }) => Self {
                error: None,
                granted: Some(granted),
                used: Some(used),
                quota: Some(quota),
                reset_ms: Some(reset_ms),
                window: Some(window),
            },
            Outcome::Failed(error) => Self { error: Some(error), ..Self::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(key: &str) -> Reservation<&str> {
        Reservation {
            key,
            window_s: 60,
            offset_s: 0,
            quota: 5,
            want: 3,
            min: 1,
            spare: 0,
            count_denied: false,
            shadow: false,
        }
    }

    #[test]
    fn a_reply_reads_as_the_contract_writes_it() {
        let text = r#"{"dials":17,"grants":[{"granted":3,"used":57,"quota":100,"reset_ms":42137,"window":28333335},{"error":"down"},{}]}"#;
        let reply: ReserveReply = serde_json::from_str(text).unwrap();
        let grant = Grant { granted: 3, used: 57, quota: 100, reset_ms: 42137, window: 28_333_335 };
        assert_eq!(
            reply.grants,
            [
                Outcome::Granted(grant),
                Outcome::Failed("down".into()),
                Outcome::Failed("neither a grant nor an error".into())
            ]
        );
        assert_eq!(grant.left(), 43);
        assert_eq!(
            serde_json::to_string(&reply.grants[..2]).unwrap(),
            r#"[{"granted":3,"used":57,"quota":100,"reset_ms":42137,"window":28333335},{"error":"down"}]"#
        );
    }

    #[test]
    fn keys_that_could_be_more_than_a_key_are_refused() {
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
    fn numbers_out_of_bounds_are_named() {
        let good = reservation("s:p:{*}");
        let nobody_waits = Reservation { want: 0, min: 0, spare: 1, ..good.clone() };
        assert!(nobody_waits.check().is_ok());
        for (bad, field) in [
            (Reservation { window_s: 0, ..good.clone() }, "window_s"),
            (Reservation { offset_s: 60, ..good.clone() }, "window_s"),
            (Reservation { quota: MAX_UNITS + 1, ..good.clone() }, "quota"),
            (Reservation { want: 0, ..good.clone() }, "want"),
            (Reservation { spare: 0, ..nobody_waits.clone() }, "want"),
            (Reservation { min: 1, ..nobody_waits }, "min"),
            (Reservation { min: 0, spare: 1, ..good.clone() }, "min"),
            (Reservation { min: 4, ..good.clone() }, "min"),
            (Reservation { min: 0, ..good.clone() }, "min"),
            (Reservation { spare: u64::MAX, ..good.clone() }, "spare"),
        ] {
            assert_eq!(bad.check().unwrap_err().field, field);
        }
        let back = Return { key: "s:p:{*}", window_s: 60, window: 1, units: 0 };
        assert_eq!(back.check().unwrap_err().field, "units");
    }
}
