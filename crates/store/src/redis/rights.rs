//! Which rights in Redis the store's user lacks.
//!
//! Every command is tried on a key of the store's own, with an argument that is no number where it would change
//! something: Redis looks at the rights first, and then changes nothing.

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, Value};

const KEY: &str = "{key}";
const NO_DIGEST: &str = "0000000000000000000000000000000000000000";

/// Without one of these nothing is counted, or not everything.
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
/// Without these counting takes longer, or goes on where it should warn.
const USEFUL: [&[&str]; 2] = [&["SCRIPT", "LOAD", "return 0"], &["INFO", "none"]];
/// The same of a server that is no node of a cluster.
const ALONE: [&[&str]; 1] = [&["ROLE"]];
/// The same of a node of a cluster. The answer to the next command means nothing.
const CLUSTERED: [&[&str]; 1] = [&["ASKING"]];

/// The rules of `ACL SETUSER` that are missing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    needed: Vec<String>,
    useful: Vec<String>,
}

impl Missing {
    /// What keeps the store from counting as `user`, and the command that grants all that is missing.
    pub fn needed(&self, user: &str) -> Option<String> {
        let rules = [self.needed.as_slice(), &self.useful].concat().join(" ");
        (!self.needed.is_empty())
            .then(|| format!("does not let the user {user} count (NOPERM): run ACL SETUSER {user} {rules}"))
    }

    /// What is missing without keeping the store from counting, and the command that grants it.
    pub fn useful(&self, user: &str) -> Option<String> {
        let rules = self.useful.join(" ");
        (self.needed.is_empty() && !rules.is_empty())
            .then(|| format!("does not grant all that helps counting: run ACL SETUSER {user} {rules}"))
    }
}

/// Tries what the store needs, on `key`.
///
/// # Errors
/// When no answer came.
pub async fn ask(
    connection: &mut MultiplexedConnection,
    prefix: &str,
    key: &str,
    clustered: bool,
) -> Result<Missing, RedisError> {
    let more = if clustered { CLUSTERED } else { ALONE };
    let tried = [NEEDED.as_slice(), &USEFUL, &more].concat();
    let mut commands = Pipeline::new();
    for words in &tried {
        for (at, word) in words.iter().enumerate() {
            let word = if *word == KEY { key } else { word };
            if at == 0 {
                commands.cmd(word)
            } else {
                commands.arg(word)
            };
        }
    }
    let replies = connection.send_packed_commands(&commands, 0, commands.len()).await?;
    let mut missing = Missing::default();
    for (at, (words, reply)) in tried.iter().zip(&replies).enumerate() {
        let Value::ServerError(error) = reply else { continue };
        if error.code() != "NOPERM" {
            continue;
        }
        let rule = rule(words, error.details().unwrap_or_default(), prefix);
        let list = if at < NEEDED.len() { &mut missing.needed } else { &mut missing.useful };
        if !list.contains(&rule) {
            list.push(rule);
        }
    }
    Ok(missing)
}

/// The rule that would have allowed the command.
fn rule(words: &[&str], refusal: &str, prefix: &str) -> String {
    // "... no permissions to run the 'get' command", "... to access one of the keys", "No permissions to access a key".
    if refusal.contains("to access") {
        return format!("~{prefix}:*");
    }
    match words {
        [name, part, ..] if *name == "SCRIPT" => format!("+{name}|{part}").to_lowercase(),
        [name, ..] => format!("+{name}").to_lowercase(),
        [] => String::new(),
    }
}
