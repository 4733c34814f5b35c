//! Reads the replies of Redis.

use std::slice;
use std::time::Duration;

use quotagate_protocol::{Grant, MAX_UNITS, Window};
use redis::{ServerError, ServerErrorKind, Value};

use super::Operation;
use crate::store::StoreError;
use crate::window::Position;

/// The outcome of one operation of the counter script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptAnswer {
    /// A reservation was carried out.
    Granted(Grant),
    /// A refund or a charge was carried out.
    Adjusted,
    /// The window was not the current one at this time of the server. Nothing was changed.
    OtherWindow(Duration),
    /// The override cannot be read on this server. Nothing was changed.
    OverrideElsewhere,
    /// The server did not execute the command.
    Rejected(Rejection),
    /// The operation failed.
    Failed(StoreError),
}

/// An error which proves that a server did not execute a command, so that it may be sent again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The slot belongs to the server at this address.
    #[error("MOVED {0}")]
    Moved(String),
    /// The slot migrates, and the server at this address may have the key already.
    #[error("ASK {0}")]
    Ask(String),
    /// The server does not know the script.
    #[error("NOSCRIPT")]
    NoScript,
    /// The keys of the command belong to several servers.
    #[error("CROSSSLOT")]
    CrossSlot,
    /// The server cannot serve now, for the reason of this code.
    #[error("{0}")]
    NotNow(String),
}

impl Rejection {
    /// What an error of a server proves; `None` if the command may have been executed, or must not
    /// be sent again.
    pub fn of(error: &ServerError) -> Option<Self> {
        let address = || {
            error.details().unwrap_or_default().rsplit(' ').next().unwrap_or_default().to_owned()
        };
        Some(match error.kind()? {
            ServerErrorKind::Moved => Self::Moved(address()),
            ServerErrorKind::Ask => Self::Ask(address()),
            ServerErrorKind::NoScript => Self::NoScript,
            ServerErrorKind::CrossSlot => Self::CrossSlot,
            ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly => Self::NotNow(error.code().to_owned()),
            _ => return None,
        })
    }

    /// Whether the slot migrates, and a key of the command is missing on this server.
    pub fn is_try_again(&self) -> bool {
        matches!(self, Self::NotNow(code) if code == "TRYAGAIN")
    }
}

/// What the counter script replies for its operations, in their order.
pub(super) struct Outcomes<'a> {
    numbers: slice::Iter<'a, [u8; 8]>,
    /// The error of each operation that failed. Empty if none did.
    faults: slice::Iter<'a, Value>,
}

impl<'a> Outcomes<'a> {
    /// Reads a reply of the script, and the server's clock in it.
    pub(super) fn of(reply: &'a Value) -> Option<(Duration, Self)> {
        let (packed, faults) = match reply {
            Value::BulkString(packed) => (packed, &[][..]),
            Value::Array(values) => match values.split_first()? {
                (Value::BulkString(packed), faults) => (packed, faults),
                _ => return None,
            },
            _ => return None,
        };
        let numbers = packed.as_chunks().0.iter();
        let mut outcomes = Self { numbers, faults: faults.iter() };
        Some((Duration::from_millis(whole_of(outcomes.number()?)?), outcomes))
    }

    /// The answer to the next operation, sent when the server's clock was predicted to be at `sent`
    /// and was at `now`. `None` for numbers that the script never returns.
    pub(super) fn answer(
        &mut self,
        operation: &Operation<'_>,
        sent: Duration,
        now: Duration,
    ) -> Option<ScriptAnswer> {
        let [first, used, quota] = [self.number()?, self.number()?, self.number()?];
        if let Some(Value::ServerError(error)) = self.faults.next() {
            return Some(refused(error));
        }
        match operation {
            Operation::Reserve { .. } if first == -1.0 => Some(ScriptAnswer::OtherWindow(now)),
            Operation::Reserve { .. } if first == -2.0 => Some(ScriptAnswer::OverrideElsewhere),
            Operation::Refund(_) | Operation::Charge(_) => {
                (first == -3.0).then_some(ScriptAnswer::Adjusted)
            }
            Operation::Reserve { reservation, .. } => {
                let granted = whole_of(first)?;
                let (mut waiting, mut expired) = (0, 0);
                let (position, reset_ms) = match reservation.window() {
                    // The slice of the moment at which the script ran.
                    window @ Window::Sliding(_) => {
                        (Position::at(window, now), whole_of(self.number()?)?)
                    }
                    Window::Fixed(_) | Window::Calendar(_) => {
                        let position = operation.position(sent);
                        let left = Duration::from_secs(position.span.end).saturating_sub(now);
                        (position, u64::try_from(left.as_millis()).ok()?)
                    }
                    window @ Window::InFlight => {
                        let held_ms = whole_of(self.number()?)?;
                        waiting = whole_of(self.number()?)?;
                        expired = whole_of(self.number()?)?;
                        let serial = reservation.holding.as_ref().map_or(0, |said| said.serial);
                        (Position::numbered(window, serial), held_ms)
                    }
                };
                Some(ScriptAnswer::Granted(Grant {
                    granted,
                    used: whole_of(used)?,
                    quota: whole_of(quota)?,
                    reset_ms,
                    window: position.number,
                    window_s: position.window_s(),
                    waiting,
                    expired,
                }))
            }
        }
    }

    fn number(&mut self) -> Option<f64> {
        self.numbers.next().copied().map(f64::from_le_bytes)
    }
}

/// The answer to every operation of a command that the script did not answer.
pub(super) fn of_all(reply: &Value) -> ScriptAnswer {
    if let Value::ServerError(error) = reply { refused(error) } else { unexpected() }
}

fn refused(error: &ServerError) -> ScriptAnswer {
    let failed = || {
        let detail = error.details().unwrap_or_default();
        ScriptAnswer::Failed(StoreError::Refused(format!("{} {detail}", error.code())))
    };
    Rejection::of(error).map_or_else(failed, ScriptAnswer::Rejected)
}

/// A whole number that is not negative.
pub fn whole(value: &Value) -> Option<u64> {
    if let Value::Int(number) = value { u64::try_from(*number).ok() } else { None }
}

/// A number of the script that is not negative, without its fraction.
fn whole_of(number: f64) -> Option<u64> {
    (0.0..=MAX_UNITS as f64).contains(&number).then_some(number as u64)
}

/// The outcome of an operation whose answer the script never gives.
pub fn unexpected() -> ScriptAnswer {
    ScriptAnswer::Failed(StoreError::unexpected_reply())
}

/// The code of an error that Redis would return for every other counter as well, if it is one.
pub fn refuses_all(reason: &str) -> Option<&'static str> {
    // Redis 6 writes "ERR @user_script: 42: -OOM command not allowed ...".
    let mut words = reason.split_whitespace().take(5);
    words.find_map(|word| {
        ["OOM", "MISCONF", "NOREPLICAS"]
            .into_iter()
            .find(|code| word.trim_start_matches('-') == *code)
    })
}

/// Whether an error says that the store's user lacks a right, in a command or within a script.
pub fn lacks_rights(reason: &str) -> bool {
    let within =
        ["The user executing the script", "ACL failure in script", "can't run this command"];
    reason.starts_with("NOPERM") || within.iter().any(|words| reason.contains(words))
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::{Adjustment, Holding, Kind, Reservation};

    use super::super::ScriptCall;
    use super::*;
    use crate::store::CheckedReservation;

    fn reservation() -> CheckedReservation {
        let reservation = Reservation {
            key: "test:p:{*}".into(),
            window_s: 60,
            quota: 100,
            want: 3,
            min: 1,
            ..Reservation::default()
        };
        CheckedReservation::new(reservation).unwrap()
    }

    #[test]
    fn answers_come_in_order_with_the_servers_clock() {
        let (kind, window_s, offset_s) = (Kind::Fixed, 60, 0);
        let refund =
            Adjustment { key: "test:p:{*}".into(), kind, window_s, offset_s, window: 6, units: 1 };
        let fixed = reservation();
        let sliding = Reservation { kind: Kind::Sliding, ..(*fixed).clone() };
        let sliding = &CheckedReservation::new(sliding).unwrap();
        let reserve = Operation::Reserve { index: 0, reservation: &fixed };
        let slides = Operation::Reserve { index: 0, reservation: sliding };
        let operations = [Operation::Refund(&refund), reserve, slides, reserve, reserve];
        let now_ms = 7 * 60_000 + 17_863_u32;
        let reply = packed(&[
            &[now_ms.into()],
            &[-3.0, 1.0, 0.0],
            &[3.0, 57.0, 100.0],
            &[5.0, 57.0, 100.0, 250.0],
            &[-1.0, 0.0, 0.0],
            &[-2.0, 0.0, 0.0],
        ]);
        let grant = Grant {
            granted: 3,
            used: 57,
            quota: 100,
            reset_ms: 42_137,
            window: 7,
            ..Grant::default()
        };
        let clock = Duration::from_millis(now_ms.into());
        let answers = vec![
            ScriptAnswer::Adjusted,
            ScriptAnswer::Granted(grant),
            ScriptAnswer::Granted(Grant { granted: 5, reset_ms: 250, window: 145, ..grant }),
            ScriptAnswer::OtherWindow(clock),
            ScriptAnswer::OverrideElsewhere,
        ];
        let call = ScriptCall { operations: &operations, now: Duration::from_secs(7 * 60) };
        assert_eq!(call.read(&reply), (answers, Some(clock)));
    }

    #[test]
    fn unexpected_reply_grants_nothing_and_may_have_taken_units() {
        let reservation = &reservation();
        let now = Duration::from_secs(7 * 60);
        let read = |operation, reply: &Value| {
            ScriptCall { operations: &[operation], now }.read(reply).0.pop().unwrap()
        };
        let numbers = |numbers: &[f64]| packed(&[&[1_000.0], numbers]);
        for reply in [
            Value::Okay,
            Value::Array(vec![]),
            Value::BulkString(vec![]),
            Value::Array(vec![Value::Okay, Value::Int(3), Value::Int(3), Value::Int(3)]),
            numbers(&[]),
            numbers(&[5.0]),
            numbers(&[3.0, 57.0]),
            numbers(&[-3.0, 57.0, 100.0]),
            numbers(&[3.0, -57.0, 100.0]),
            numbers(&[3.0, 57.0, f64::INFINITY]),
            numbers(&[f64::NAN, 57.0, 100.0]),
            numbers(&[-4.0, 0.0, 0.0]),
            packed(&[&[-1.0], &[3.0, 57.0, 100.0]]),
        ] {
            let answer = read(Operation::Reserve { index: 0, reservation }, &reply);
            assert!(matches!(answer, ScriptAnswer::Failed(StoreError::NoAnswer(_))), "{reply:?}");
        }
        let (kind, window_s, offset_s) = (Kind::Fixed, 60, 0);
        let refund =
            Adjustment { key: "test:p:{*}".into(), kind, window_s, offset_s, window: 6, units: 1 };
        let granted = numbers(&[3.0, 57.0, 100.0]);
        assert!(matches!(read(Operation::Refund(&refund), &granted), ScriptAnswer::Failed(_)));
    }

    #[test]
    fn grant_of_slots_has_the_serial_and_what_others_miss() {
        let holding = Holding { worker: "w".into(), serial: 7, ..Holding::default() };
        let of = Reservation { kind: Kind::InFlight, window_s: 0, ..(*reservation()).clone() };
        let slots = CheckedReservation::new(Reservation { holding: Some(holding), ..of });
        let reservation = &slots.unwrap();
        let read = |numbers: &[f64]| {
            let operation = Operation::Reserve { index: 0, reservation };
            let call = ScriptCall { operations: &[operation], now: Duration::from_secs(7) };
            call.read(&packed(&[&[7_000.0], numbers])).0.pop().unwrap()
        };
        let grant = Grant {
            granted: 3,
            used: 5,
            quota: 9,
            reset_ms: 9_000,
            window: 7,
            window_s: 0,
            waiting: 2,
            expired: 4,
        };
        assert_eq!(read(&[3.0, 5.0, 9.0, 9_000.0, 2.0, 4.0]), ScriptAnswer::Granted(grant));
        for wrong in [&[3.0, 5.0, 9.0, 9_000.0, 2.0][..], &[3.0, 5.0, 9.0, 9_000.0, f64::NAN, 0.0]]
        {
            assert!(matches!(read(wrong), ScriptAnswer::Failed(StoreError::NoAnswer(_))));
        }
        assert_eq!(read(&[-2.0, 0.0, 0.0]), ScriptAnswer::OverrideElsewhere);
    }

    #[test]
    fn operation_that_failed_fails_alone() {
        let reservation = &reservation();
        let operations = [0, 1].map(|index| Operation::Reserve { index, reservation });
        let numbers = packed(&[&[7e3], &[-4.0, 0.0, 0.0], &[3.0, 57.0, 100.0]]);
        let error = redis::parse_redis_value(b"-WRONGTYPE of a list\r\n").unwrap();
        let reply = Value::Array(vec![numbers, error, Value::Nil]);
        let call = ScriptCall { operations: &operations, now: Duration::from_secs(7) };
        let (answers, _) = call.read(&reply);
        let failed = StoreError::Refused("WRONGTYPE of a list".to_owned());
        assert_eq!(answers.first(), Some(&ScriptAnswer::Failed(failed)));
        assert!(matches!(answers.last(), Some(ScriptAnswer::Granted(grant)) if grant.used == 57));
    }

    /// A reply of the script.
    fn packed(numbers: &[&[f64]]) -> Value {
        let numbers = numbers.iter().copied().flatten();
        Value::BulkString(numbers.flat_map(|number| number.to_le_bytes()).collect())
    }
}
