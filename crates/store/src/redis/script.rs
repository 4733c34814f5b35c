//! The one script: how it is called, and what its replies say.

use std::sync::LazyLock;

use quotagate_quota::wire::{Grant, Return};
use redis::{Cmd, ServerErrorKind, Value};

use crate::store::{Ask, StoreError};

/// The source of the script.
pub const SOURCE: &str = include_str!("counter.lua");

static DIGEST: LazyLock<String> = LazyLock::new(|| sha1_smol::Sha1::from(SOURCE).digest().to_string());

/// How the script is named in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By its digest.
    Digest,
    /// By its whole text, which also loads it.
    Text,
}

/// Where the script finds the override of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Override {
    /// In its key, beside the counter.
    InItsKey,
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
    /// The node cannot serve it now; nothing was changed.
    NotNow(String),
    /// It failed.
    Failed(StoreError),
}

/// The key of a counter.
pub fn counter_key(prefix: &str, key: &str, number: u64) -> String {
    format!("{prefix}:{key}:{number}")
}

/// The key of the override of a partition.
pub fn override_key(prefix: &str, key: &str) -> String {
    format!("{prefix}:{key}:override")
}

/// The command for `ask` in the window of this number.
pub fn reserve(prefix: &str, ask: &Ask, number: u64, form: Form, over: &Override) -> Cmd {
    let mut cmd = call(form);
    cmd.arg(counter_key(prefix, &ask.key, number))
        .arg("reserve")
        .arg(number)
        .arg(ask.window_s)
        .arg(ask.offset_s)
        .arg(ask.quota)
        .arg(ask.want)
        .arg(ask.min)
        .arg(ask.spare)
        .arg(u8::from(ask.count_denied));
    match over {
        Override::InItsKey => cmd.arg("?"),
        Override::Known(value) => cmd.arg(value.as_deref().unwrap_or_default()),
    };
    cmd
}

/// The command for `back`.
pub fn give_back(prefix: &str, back: &Return) -> Cmd {
    let mut cmd = call(Form::Digest);
    cmd.arg(counter_key(prefix, &back.key, back.window)).arg("return").arg(back.units);
    cmd
}

fn call(form: Form) -> Cmd {
    let mut cmd = Cmd::new();
    match form {
        Form::Digest => cmd.arg("EVALSHA").arg(DIGEST.as_str()),
        Form::Text => cmd.arg("EVAL").arg(SOURCE),
    };
    cmd.arg(1);
    cmd
}

/// Reads a reply; `number` is the window asked for. The node's clock in ms comes along where the script ran.
pub fn read(reply: &Value, number: u64) -> (Answer, Option<u64>) {
    match reply {
        Value::ServerError(error) => (refusal(error), None),
        Value::Array(fields) => {
            let field = |at: usize| {
                fields.get(at).and_then(|v| if let Value::Int(n) = v { u64::try_from(*n).ok() } else { None })
            };
            let grant = || {
                let (granted, used) = (field(2)?, field(3)?);
                Some(Grant { granted, used, quota: field(4)?, reset_ms: field(5)?, window: number })
            };
            let answer = match field(0) {
                Some(0) => Some(Answer::OtherWindow),
                Some(1) => grant().map(Answer::Granted),
                Some(2) => Some(Answer::OverrideElsewhere),
                Some(3) => Some(Answer::Returned),
                _ => None,
            };
            (answer.unwrap_or_else(nonsense), field(1))
        }
        _ => (nonsense(), None),
    }
}

fn nonsense() -> Answer {
    Answer::Failed(StoreError::Refused("an answer that is none of the script's".to_owned()))
}

fn refusal(error: &redis::ServerError) -> Answer {
    let detail = error.details().unwrap_or_default();
    let address = || detail.rsplit(' ').next().unwrap_or_default().to_owned();
    match error.kind() {
        Some(ServerErrorKind::Moved) => Answer::Moved(address()),
        Some(ServerErrorKind::Ask) => Answer::Elsewhere(address()),
        Some(ServerErrorKind::NoScript) => Answer::NoScript,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_is_read_with_its_clock() {
        let reply = Value::Array([1, 1_000, 3, 57, 100, 42_137].map(Value::Int).to_vec());
        let grant = Grant { granted: 3, used: 57, quota: 100, reset_ms: 42_137, window: 7 };
        assert_eq!(read(&reply, 7), (Answer::Granted(grant), Some(1_000)));
    }

    #[test]
    fn nonsense_is_no_grant() {
        for reply in [
            Value::Okay,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1), Value::Int(5)]),
            Value::Array(vec![Value::Int(9), Value::Int(5)]),
            Value::Array([1, 1_000, -3, 57, 100, 42].map(Value::Int).to_vec()),
        ] {
            assert!(matches!(read(&reply, 7).0, Answer::Failed(StoreError::Refused(_))), "{reply:?}");
        }
    }
}
