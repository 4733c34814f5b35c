//! The rights of a Redis user, and the commands that Redis denied it.

use quotagate_support::resp;
use quotagate_support::rights::{refused, refused_in_scripts};

pub fn names(rules: &[String]) -> impl Iterator<Item = &str> {
    rules.iter().filter_map(|rule| rule.strip_prefix('+'))
}

pub fn without(rules: &[String], name: &str) -> Vec<String> {
    rules.iter().filter(|rule| rule.strip_prefix('+') != Some(name)).cloned().collect()
}

pub fn nothing_is_refused(port: u16) {
    assert_eq!(refused(port).unwrap(), [""; 0]);
}

/// Asserts that Redis denied this command, and empties the log. For a command of the counters'
/// script, it expects the denial within a script.
pub fn is_refused(port: u16, name: &str) {
    let in_script =
        ["get", "set", "incrby", "decrby", "pttl", "pexpire", "hgetall", "hset", "hdel"]
            .contains(&name);
    let refused = if in_script { refused_in_scripts(port) } else { refused(port) }.unwrap();
    assert!(
        refused.iter().any(|object| object == name),
        "{name} is not needed; refused: {refused:?}"
    );
    resp::command(port, &["ACL", "LOG", "RESET"]).unwrap();
}
