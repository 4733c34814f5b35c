//! The script of the counters: how it is called, and what its replies say.

use std::sync::LazyLock;
use std::time::Duration;

use quotagate_quota::protocol::{Grant, Refund};
use redis::{Cmd, RedisWrite, ServerErrorKind, Value};

use crate::store::{CheckedReservation, StoreError};

/// The source of the script.
pub const SOURCE: &str = include_str!("counter.lua");

/// The source of the other one, by which operators change and see things: `control` calls it.
pub const CONTROL: &str = include_str!("control.lua");

static DIGEST: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SOURCE).digest().to_string());

/// Numbers that say what a reservation wants.
const NUMBERS: usize = 9;

/// How the script is named in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By its digest.
    Digest,
    /// By its whole text, which also loads it.
    Text,
}

/// Most counters of one call of the script: Redis serves nobody else meanwhile, for some 0.3 ms.
pub const TOGETHER: usize = 32;

/// Where the script finds the override of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Override {
    /// In its key, beside the counter.
    InItsKey,
    /// The same, and the command declares this key: some servers let a script read no other. While a slot
    /// migrates, Redis refuses a command that declares a key which is missing.
    Declared,
    /// It was read already.
    Known(Option<Vec<u8>>),
}

/// What one answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A reservation was carried out.
    Granted(Grant),
    /// A return was carried out.
    Returned,
    /// The window is not the current one; nothing was changed.
    OtherWindow,
    /// The override cannot be read on this node; nothing was changed.
    OverrideElsewhere,
    /// The slot belongs to the node of this address; nothing was changed.
    Moved(String),
    /// This key is on its way to the node of this address; nothing was changed.
    Elsewhere(String),
    /// The node does not know the script; nothing was changed.
    NoScript,
    /// Behind this address the keys of one command are on several servers; nothing was changed.
    Apart,
    /// The node cannot serve it now; nothing was changed.
    NotNow(String),
    /// It failed.
    Failed(StoreError),
}

/// The key of the override of a partition.
pub fn override_key(prefix: &str, key: &str) -> String {
    format!("{prefix}:{key}:override")
}

/// What is done with one counter.
#[derive(Clone, Copy, Debug)]
pub enum Deed<'a> {
    /// Units are asked for, in the window of this number.
    Reserve(&'a CheckedReservation, u64),
    /// Units go back.
    Refund(&'a Refund),
}

impl Deed<'_> {
    fn key(&self) -> (&str, u64) {
        match self {
            Self::Reserve(ask, number) => (&ask.key, *number),
            Self::Refund(back) => (&back.key, back.window),
        }
    }

    /// The key whose override it reads.
    fn overridden(&self) -> Option<&str> {
        match self {
            Self::Reserve(ask, _) => Some(&ask.key),
            Self::Refund(_) => None,
        }
    }
}

/// The command that does `deeds`, whose counters are all on one server.
pub fn command(prefix: &str, deeds: &[Deed<'_>], form: Form, over: &Override) -> Cmd {
    let keys: usize = deeds.iter().map(|deed| deed.key().0.len()).sum();
    let room = keys + deeds.len() * (prefix.len() + NUMBERS * 8 + 24) + 64;
    let mut cmd = Cmd::with_capacity(3 + 2 * deeds.len(), room);
    let declared: Vec<_> = match over {
        Override::Declared => deeds.iter().filter_map(Deed::overridden).collect(),
        Override::InItsKey | Override::Known(_) => Vec::new(),
    };
    match form {
        Form::Digest => cmd.arg("EVALSHA").arg(DIGEST.as_str()),
        Form::Text => cmd.arg("EVAL").arg(SOURCE),
    };
    cmd.arg(deeds.len() + declared.len());
    for deed in deeds {
        let (key, number) = deed.key();
        cmd.write_arg_fmt(format_args!("{prefix}:{key}:{number}"));
    }
    for key in declared {
        cmd.arg(override_key(prefix, key));
    }
    for deed in deeds {
        match deed {
            Deed::Reserve(ask, number) => write_reserve(&mut cmd, prefix, ask, *number, over),
            Deed::Refund(back) => cmd.write_arg(&double(back.units)),
        }
    }
    cmd
}

fn write_reserve(cmd: &mut Cmd, prefix: &str, ask: &CheckedReservation, number: u64, over: &Override) {
    let (stem, behind) = match over {
        Override::InItsKey | Override::Declared => (prefix.len() + ask.key.len() + 2, &[][..]),
        Override::Known(value) => (0, value.as_deref().unwrap_or_default()),
    };
    let stem = u64::try_from(stem).unwrap_or_default();
    let numbers: [u64; NUMBERS] = [
        number,
        ask.window_s.into(),
        ask.offset_s.into(),
        ask.quota,
        ask.want,
        ask.min,
        ask.spare,
        ask.count_denied.into(),
        stem,
    ];
    let numbers = numbers.map(double);
    if behind.is_empty() {
        cmd.write_arg(numbers.as_flattened());
    } else {
        cmd.write_arg(&[numbers.as_flattened(), behind].concat());
    }
}

/// How the script reads a number: exact, since none is above 2^53 - 1.
const fn double(number: u64) -> [u8; 8] {
    (number as f64).to_le_bytes()
}

/// Reads the reply to the command that did `deeds`: one answer each, in their order. The node's clock comes along
/// where the script ran.
pub fn read(reply: &Value, deeds: &[Deed<'_>]) -> (Vec<Answer>, Option<Duration>) {
    match reply {
        Value::ServerError(error) => (vec![refusal(error); deeds.len()], None),
        Value::Array(values) => {
            let Some((Some(now_ms), rest)) = values.split_first().map(|(now, rest)| (whole(now), rest))
            else {
                return (vec![nonsense(); deeds.len()], None);
            };
            let now = Duration::from_millis(now_ms);
            let mut rest = rest.chunks_exact(3);
            let answer = |deed: &Deed<'_>| {
                let fields = rest.next().unwrap_or_default();
                read_one(fields, deed, now).unwrap_or_else(nonsense)
            };
            (deeds.iter().map(answer).collect(), Some(now))
        }
        _ => (vec![nonsense(); deeds.len()], None),
    }
}

fn read_one(fields: &[Value], deed: &Deed<'_>, now: Duration) -> Option<Answer> {
    let [first, used, quota] = fields else { return None };
    match (first, deed) {
        (Value::ServerError(error), _) => Some(refusal(error)),
        (Value::Int(-1), Deed::Reserve(..)) => Some(Answer::OtherWindow),
        (Value::Int(-2), Deed::Reserve(..)) => Some(Answer::OverrideElsewhere),
        (Value::Int(-3), Deed::Refund(_)) => Some(Answer::Returned),
        (granted, Deed::Reserve(ask, number)) => {
            let reset = ask.window().remaining_at(now);
            Some(Answer::Granted(Grant {
                granted: whole(granted)?,
                used: whole(used)?,
                quota: whole(quota)?,
                reset_ms: u64::try_from(reset.as_millis()).ok()?,
                window: *number,
            }))
        }
        _ => None,
    }
}

fn whole(value: &Value) -> Option<u64> {
    if let Value::Int(number) = value { u64::try_from(*number).ok() } else { None }
}

/// What an answer that the script never gives is read as.
pub fn nonsense() -> Answer {
    Answer::Failed(StoreError::Refused("an answer that is none of the script's".to_owned()))
}

/// What an error of the server says.
pub fn refusal(error: &redis::ServerError) -> Answer {
    let detail = error.details().unwrap_or_default();
    let address = || detail.rsplit(' ').next().unwrap_or_default().to_owned();
    match error.kind() {
        Some(ServerErrorKind::Moved) => Answer::Moved(address()),
        Some(ServerErrorKind::Ask) => Answer::Elsewhere(address()),
        Some(ServerErrorKind::NoScript) => Answer::NoScript,
        Some(ServerErrorKind::CrossSlot) => Answer::Apart,
        Some(
            ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::MasterDown
            | ServerErrorKind::ReadOnly,
        ) => Answer::NotNow(error.code().to_owned()),
        _ => Answer::Failed(StoreError::Refused(format!("{} {detail}", error.code()))),
    }
}

/// The code of an error that Redis would answer to every other counter as well, if it is one.
pub fn refuses_all(reason: &str) -> Option<&'static str> {
    // Redis 6 writes "ERR @user_script: 42: -OOM command not allowed ...".
    let mut words = reason.split_whitespace().take(5);
    words.find_map(|word| {
        ["OOM", "MISCONF", "NOREPLICAS"].into_iter().find(|code| word.trim_start_matches('-') == *code)
    })
}

/// Whether an error says that the store's user may not do something, in a command or within a script.
pub fn lacks_rights(reason: &str) -> bool {
    let within = ["The user executing the script", "ACL failure in script", "can't run this command"];
    reason.starts_with("NOPERM") || within.iter().any(|words| reason.contains(words))
}

#[cfg(test)]
mod tests {
    use quotagate_quota::protocol::Reservation;

    use super::*;

    fn ask() -> CheckedReservation {
        let reservation = Reservation {
            key: "test:p:{*}".to_owned(),
            window_s: 60,
            offset_s: 0,
            quota: 100,
            want: 3,
            min: 1,
            spare: 0,
            count_denied: false,
            shadow: false,
        };
        CheckedReservation::new(reservation).unwrap()
    }

    #[test]
    fn several_counters_are_asked_for_in_one_command() {
        let back = Refund { key: "test:q:{a}".to_owned(), window_s: 60, window: 6, units: 1 };
        let ask = ask();
        let deeds = [Deed::Refund(&back), Deed::Reserve(&ask, 7)];
        let text = |over| {
            String::from_utf8_lossy(&command("qg", &deeds, Form::Digest, &over).get_packed_command())
                .into_owned()
        };
        let plain = text(Override::InItsKey);
        let head = format!("*7\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n2\r\n", *DIGEST);
        assert!(plain.starts_with(&head), "{plain}");
        assert!(plain.contains("$15\r\nqg:test:q:{a}:6\r\n$15\r\nqg:test:p:{*}:7\r\n$8\r\n"), "{plain}");
        assert!(plain.contains("$72\r\n"), "{plain}");
        let known = text(Override::Known(Some(b"blocked".to_vec())));
        assert!(known.contains("$79\r\n") && known.ends_with("blocked\r\n"), "{known}");
    }

    #[test]
    fn answers_are_read_in_order_with_their_clock() {
        let back = Refund { key: "test:p:{*}".to_owned(), window_s: 60, window: 6, units: 1 };
        let ask = ask();
        let deeds =
            [Deed::Refund(&back), Deed::Reserve(&ask, 7), Deed::Reserve(&ask, 6), Deed::Reserve(&ask, 7)];
        let now_ms = 7 * 60_000 + 17_863;
        let reply = [now_ms, -3, 1, 0, 3, 57, 100, -1, 0, 0, -2, 0, 0].map(Value::Int).to_vec();
        let grant = Grant { granted: 3, used: 57, quota: 100, reset_ms: 42_137, window: 7 };
        let answers =
            vec![Answer::Returned, Answer::Granted(grant), Answer::OtherWindow, Answer::OverrideElsewhere];
        let clock = Duration::from_millis(now_ms.unsigned_abs());
        assert_eq!(read(&Value::Array(reply), &deeds), (answers, Some(clock)));
    }

    #[test]
    fn nonsense_is_no_grant() {
        let ask = ask();
        for reply in [
            Value::Okay,
            Value::Array(vec![]),
            Value::Array(vec![Value::Okay, Value::Int(3), Value::Int(3), Value::Int(3)]),
            Value::Array(vec![Value::Int(1), Value::Int(5)]),
            Value::Array([1_000, -3, 57, 100].map(Value::Int).to_vec()),
            Value::Array([1_000, 3, -57, 100].map(Value::Int).to_vec()),
            Value::Array([1_000, -4, 0, 0].map(Value::Int).to_vec()),
        ] {
            let (answers, _) = read(&reply, &[Deed::Reserve(&ask, 7)]);
            assert!(matches!(answers.as_slice(), [Answer::Failed(StoreError::Refused(_))]), "{reply:?}");
        }
        let back = Refund { key: "test:p:{*}".to_owned(), window_s: 60, window: 6, units: 1 };
        let granted = Value::Array([1_000, 3, 57, 100].map(Value::Int).to_vec());
        assert!(matches!(read(&granted, &[Deed::Refund(&back)]).0.as_slice(), [Answer::Failed(_)]));
    }
}
