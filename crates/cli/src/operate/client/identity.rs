//! The name of the operator who makes a change, for the history.

use std::{env, fs};

use quotagate_operate::api::MAX_BY;

/// `user@host`, as far as the system knows them.
pub(crate) fn user_at_host() -> String {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let passwd = || fs::read_to_string("/etc/passwd").ok();
    let system = rustix::system::uname();
    let mut by = format!("{}@{}", user(variable, passwd, uid), system.nodename().to_string_lossy());
    while by.len() > MAX_BY {
        by.pop();
    }
    by
}

/// The name of the user. `sudo` sets `USER` to root, and the person is in `SUDO_USER`. Containers
/// often set neither.
fn user(
    variable: impl Fn(&str) -> Option<String>,
    passwd: impl Fn() -> Option<String>,
    uid: u32,
) -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(variable);
    named.or_else(|| name_of(uid, &passwd()?)).unwrap_or_else(|| format!("uid-{uid}"))
}

/// The name of a user in the text of `/etc/passwd`.
fn name_of(uid: u32, passwd: &str) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let is_it = fields.nth(1)?.parse() == Ok(uid);
        is_it.then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_a_user_and_a_host() {
        let by = user_at_host();
        assert!(by.contains('@') && by.len() <= MAX_BY, "{by}");
    }

    #[test]
    fn user_without_variables_is_named_by_the_password_file() {
        let passwd = "# users\nroot:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        let of = |variables: &[(&str, &str)], uid| {
            let variable = |name: &str| {
                variables.iter().find(|(of, _)| *of == name).map(|(_, value)| (*value).to_owned())
            };
            user(variable, || Some(passwd.to_owned()), uid)
        };
        assert_eq!(of(&[("USER", "root"), ("SUDO_USER", "ann")], 0), "ann");
        assert_eq!(of(&[("LOGNAME", "bob")], 0), "bob");
        assert_eq!(
            (of(&[], 0), of(&[], 1000), of(&[], 7)),
            ("root".into(), "ann".into(), "uid-7".into())
        );
    }
}
