//! What a user of Redis may do, and what was refused.

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

/// Asserts that this command was refused, and empties the log. Commands of the counters' script are
/// refused to the script.
pub fn is_refused(port: u16, name: &str) {
    let in_script = ["get", "set", "incrby", "decrby", "pttl", "pexpire"].contains(&name);
    let refused = if in_script { refused_in_scripts(port) } else { refused(port) }.unwrap();
    assert!(
        refused.iter().any(|object| object == name),
        "{name} is not needed; refused: {refused:?}"
    );
    resp::command(port, &["ACL", "LOG", "RESET"]).unwrap();
}
