//! Reads the replies of Redis.

use std::time::Duration;

use quotagate_protocol::{Grant, Window};
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

/// The server's clock and the three values of each operation, in a reply of the counter script.
pub(super) fn fields(reply: &Value) -> Option<(Duration, impl Iterator<Item = &[Value]>)> {
    let Value::Array(values) = reply else { return None };
    let (now, rest) = values.split_first()?;
    Some((Duration::from_millis(whole(now)?), rest.chunks_exact(3)))
}

/// The answer to every operation of a command that the script did not answer.
pub(super) fn of_all(reply: &Value) -> ScriptAnswer {
    if let Value::ServerError(error) = reply { refused(error) } else { unexpected() }
}

/// The answer to `operation`, sent when the server's clock was predicted to be at `sent` and was at
/// `now`. `None` for values that the script never returns.
pub(super) fn read(
    fields: &[Value],
    operation: &Operation<'_>,
    sent: Duration,
    now: Duration,
) -> Option<ScriptAnswer> {
    let [first, used, quota] = fields else { return None };
    match (first, operation) {
        (Value::ServerError(error), _) => Some(refused(error)),
        (Value::Int(-1), Operation::Reserve { .. }) => Some(ScriptAnswer::OtherWindow(now)),
        (Value::Int(-2), Operation::Reserve { .. }) => Some(ScriptAnswer::OverrideElsewhere),
        (Value::Int(-3), Operation::Refund(_) | Operation::Charge(_)) => {
            Some(ScriptAnswer::Adjusted)
        }
        (granted, Operation::Reserve { reservation, .. }) => {
            let (position, granted, reset_ms) = match (reservation.window(), granted) {
                (window @ Window::Sliding(_), Value::Array(of_slices)) => {
                    let [granted, reset_ms] = of_slices.as_slice() else { return None };
                    // The slice of the moment at which the script ran.
                    (Position::at(window, now), granted, whole(reset_ms)?)
                }
                (Window::Sliding(_), _) => return None,
                (Window::Fixed(_) | Window::Calendar(_), granted) => {
                    let position = operation.position(sent);
                    let left = Duration::from_secs(position.span.end).saturating_sub(now);
                    (position, granted, u64::try_from(left.as_millis()).ok()?)
                }
            };
            Some(ScriptAnswer::Granted(Grant {
                granted: whole(granted)?,
                used: whole(used)?,
                quota: whole(quota)?,
                reset_ms,
                window: position.number,
                window_s: position.window_s(),
            }))
        }
        _ => None,
    }
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
    use quotagate_protocol::{Adjustment, Kind, Reservation};

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
        let reservation = &reservation();
        let reserve = Operation::Reserve { index: 0, reservation };
        let operations = [Operation::Refund(&refund), reserve, reserve, reserve];
        let now_ms = 7 * 60_000 + 17_863;
        let reply = [now_ms, -3, 1, 0, 3, 57, 100, -1, 0, 0, -2, 0, 0].map(Value::Int).to_vec();
        let grant =
            Grant { granted: 3, used: 57, quota: 100, reset_ms: 42_137, window: 7, window_s: 0 };
        let clock = Duration::from_millis(now_ms.unsigned_abs());
        let answers = vec![
            ScriptAnswer::Adjusted,
            ScriptAnswer::Granted(grant),
            ScriptAnswer::OtherWindow(clock),
            ScriptAnswer::OverrideElsewhere,
        ];
        let call = ScriptCall { operations: &operations, now: Duration::from_secs(7 * 60) };
        assert_eq!(call.read(&Value::Array(reply)), (answers, Some(clock)));
    }

    #[test]
    fn unexpected_reply_grants_nothing() {
        let reservation = &reservation();
        let now = Duration::from_secs(7 * 60);
        let read = |operation, reply: &Value| {
            ScriptCall { operations: &[operation], now }.read(reply).0.pop().unwrap()
        };
        for reply in [
            Value::Okay,
            Value::Array(vec![]),
            Value::Array(vec![Value::Okay, Value::Int(3), Value::Int(3), Value::Int(3)]),
            Value::Array(vec![Value::Int(1), Value::Int(5)]),
            Value::Array([1_000, -3, 57, 100].map(Value::Int).to_vec()),
            Value::Array([1_000, 3, -57, 100].map(Value::Int).to_vec()),
            Value::Array([1_000, -4, 0, 0].map(Value::Int).to_vec()),
        ] {
            let answer = read(Operation::Reserve { index: 0, reservation }, &reply);
            assert!(matches!(answer, ScriptAnswer::Failed(StoreError::Refused(_))), "{reply:?}");
        }
        let (kind, window_s, offset_s) = (Kind::Fixed, 60, 0);
        let refund =
            Adjustment { key: "test:p:{*}".into(), kind, window_s, offset_s, window: 6, units: 1 };
        let granted = Value::Array([1_000, 3, 57, 100].map(Value::Int).to_vec());
        assert!(matches!(read(Operation::Refund(&refund), &granted), ScriptAnswer::Failed(_)));
    }
}
