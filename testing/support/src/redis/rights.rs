//! The rights in Redis that `docs/reference/store.md` lists, and the commands that a server has
//! refused.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::{paths, resp, resp::Reply};

/// The page that lists them.
const DOCUMENT: &str = "docs/reference/store.md";

/// The rules of the page's commands `ACL SETUSER quotagate`, without the password.
#[derive(Debug)]
pub struct Rights {
    /// For one server.
    pub one: Vec<String>,
    /// In addition, to operate a fleet.
    pub operate: Vec<String>,
    /// In addition, for a cluster.
    pub cluster: Vec<String>,
    /// In addition, for another database than 0.
    pub database: Vec<String>,
    /// For a sentinel that asks for a password.
    pub sentinel: Vec<String>,
}

/// Reads them.
///
/// # Errors
/// When the page does not list exactly these five.
pub fn documented() -> Result<Rights> {
    let text = fs::read_to_string(paths::root().join(DOCUMENT))?;
    let rules = |line: &str| {
        let rules = line.strip_prefix("ACL SETUSER quotagate ")?.split(" #").next()?;
        let without_password = |rule: &&str| !rule.starts_with('>');
        Some(rules.split_whitespace().filter(without_password).map(str::to_owned).collect())
    };
    let mut found = text.lines().filter_map(rules);
    let mut next = || found.next().with_context(|| format!("{DOCUMENT} lists five sets of rights"));
    let rights = Rights {
        one: next()?,
        operate: next()?,
        cluster: next()?,
        database: next()?,
        sentinel: next()?,
    };
    ensure!(found.next().is_none(), "{DOCUMENT} lists more than five sets of rights");
    Ok(rights)
}

/// Gives the user `quotagate`, whose password is `s3cret`, these rights and no others.
///
/// # Errors
/// When the server does not answer or refuses.
pub fn allow(port: u16, rules: &[String]) -> Result<()> {
    let rules = rules.iter().map(String::as_str);
    let command: Vec<&str> = ["ACL", "SETUSER", "quotagate", "reset", "on", ">s3cret"]
        .into_iter()
        .chain(rules)
        .collect();
    resp::command(port, &command).map(drop)
}

/// The names of commands, in lower case, that the server refused because a user lacks a right.
///
/// # Errors
/// When it does not answer, or in another form.
pub fn refused(port: u16) -> Result<Vec<String>> {
    Ok(refusals(port)?.into_iter().map(|(object, _)| object).collect())
}

/// The same, within scripts only.
///
/// # Errors
/// When it does not answer, or in another form.
pub fn refused_in_scripts(port: u16) -> Result<Vec<String>> {
    Ok(refusals(port)?
        .into_iter()
        .filter(|(_, context)| context == "lua")
        .map(|(object, _)| object)
        .collect())
}

/// What was refused, and in which context.
fn refusals(port: u16) -> Result<Vec<(String, String)>> {
    let Reply::List(entries) = resp::command(port, &["ACL", "LOG"])? else {
        anyhow::bail!("the log is no list")
    };
    let field = |fields: &[Reply], name: &str| {
        let at = fields.iter().position(|field| *field == Reply::Text(name.to_owned()))?;
        Some(fields.get(at + 1)?.lines().to_lowercase())
    };
    let refusal = |entry: Reply| {
        let Reply::List(fields) = entry else { return None };
        Some((field(&fields, "object")?, field(&fields, "context")?))
    };
    entries.into_iter().map(|entry| refusal(entry).context("an entry without an object")).collect()
}
