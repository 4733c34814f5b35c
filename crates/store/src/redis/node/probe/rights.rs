//! Which rights in Redis the store's user lacks.
//!
//! Every command is tried on a key of the store's own. A command that writes gets an argument that
//! is no number: Redis checks the rights first, then refuses the argument, and changes nothing.

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, Value};

const KEY: &str = "{key}";
const NO_DIGEST: &str = "0000000000000000000000000000000000000000";

/// Without one of these the store counts nothing, or not everything.
const NEEDED: [&[&str]; 9] = [
    &["TIME"],
    &["EVALSHA", NO_DIGEST, "1", KEY],
    &["EVAL", "return 0", "1", KEY],
    &["GET", KEY],
    &["SET", KEY, "0", "PX", "-"],
    &["INCRBY", KEY, "-"],
    &["DECRBY", KEY, "-"],
    &["PTTL", KEY],
    &["PEXPIRE", KEY, "-"],
];
/// Without these counting takes longer, or misses warnings, or fails for concurrency limits alone:
/// they need the last three.
const USEFUL: [&[&str]; 5] = [
    &["SCRIPT", "LOAD", "return 0"],
    &["INFO", "none"],
    &["HGETALL", KEY],
    // One value too few, and a field that is not there: nothing is changed.
    &["HSET", KEY, "-", "0", "-"],
    &["HDEL", KEY, "-"],
];
/// Useful on a server that is no node of a cluster.
const SINGLE: [&[&str]; 1] = [&["ROLE"]];
/// Useful on a node of a cluster. `ASKING` changes the meaning of the next command, so it comes
/// last.
const CLUSTERED: [&[&str]; 1] = [&["ASKING"]];

/// The rules of `ACL SETUSER` that are missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    needed: Vec<String>,
    useful: Vec<String>,
}

impl Missing {
    /// Why the store cannot count as `user`, and the command that grants every missing right.
    pub fn needed(&self, user: &str) -> Option<String> {
        let rules = [self.needed.as_slice(), &self.useful].concat().join(" ");
        (!self.needed.is_empty()).then(|| {
            format!("does not let the user {user} count (NOPERM): run ACL SETUSER {user} {rules}")
        })
    }

    /// Which rights are missing although the store can count, and the command that grants them.
    pub fn useful(&self, user: &str) -> Option<String> {
        let rules = self.useful.join(" ");
        (self.needed.is_empty() && !rules.is_empty()).then(|| {
            format!("does not grant all that helps counting: run ACL SETUSER {user} {rules}")
        })
    }
}

/// Tries every command that the store uses, on `key`.
///
/// # Errors
/// When no answer came.
pub async fn check(
    connection: &mut MultiplexedConnection,
    prefix: &str,
    key: &str,
    clustered: bool,
) -> Result<Missing, RedisError> {
    let more: &[&[&str]] = if clustered { &CLUSTERED } else { &SINGLE };
    let tried = [NEEDED.as_slice(), &USEFUL, more].concat();
    let mut commands = Pipeline::new();
    for words in &tried {
        for (index, word) in words.iter().enumerate() {
            let word = if *word == KEY { key } else { word };
            if index == 0 {
                commands.cmd(word)
            } else {
                commands.arg(word)
            };
        }
    }
    let replies = connection.send_packed_commands(&commands, 0, commands.len()).await?;
    let mut missing = Missing::default();
    for (index, (words, reply)) in tried.iter().zip(&replies).enumerate() {
        let Value::ServerError(error) = reply else { continue };
        if error.code() != "NOPERM" {
            continue;
        }
        let rule = rule(words, error.details().unwrap_or_default(), prefix);
        if missing.needed.contains(&rule) || missing.useful.contains(&rule) {
            continue;
        }
        let list = if index < NEEDED.len() { &mut missing.needed } else { &mut missing.useful };
        list.push(rule);
    }
    Ok(missing)
}

/// The rule that would have allowed the command.
fn rule(words: &[&str], refusal: &str, prefix: &str) -> String {
    // "... no permissions to run the 'get' command", "... to access one of the keys", "No
    // permissions to access a key".
    if refusal.contains("to access") {
        return format!("~{prefix}:*");
    }
    match words {
        [name, part, ..] if *name == "SCRIPT" => format!("+{name}|{part}").to_lowercase(),
        [name, ..] => format!("+{name}").to_lowercase(),
        [] => String::new(),
    }
}
