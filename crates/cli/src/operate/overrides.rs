//! `quotagate override`: what one partition of one policy is granted.

use clap::ArgGroup;
use hyper::Method;
use quotagate_control::api::{self, Allow, Changed, ClearOverride, OverrideEntry, SetOverride};

use super::failure::Failure;
use super::output::say;
use super::partition::PartitionArgs;
use super::table::{Table, Weight};
use super::undo::{Before, note, until};
use super::words::{duration, number};
use super::{Common, Session, for_ms, units};

/// The flags of `quotagate override`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Set the override of a partition, in place of one that is there
    Set(Set),
    /// Clear it: the policy holds again
    Clear(Clear),
    /// Show those that are set
    List(List),
}

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("allowed").args(["quota", "unlimited", "blocked"]).required(true)))]
struct Set {
    /// The name of a policy
    policy: String,
    #[command(flatten)]
    partition: PartitionArgs,
    /// Units a window
    #[arg(long, value_name = "N", value_parser = units)]
    quota: Option<u64>,
    /// As many as are asked for
    #[arg(long)]
    unlimited: bool,
    /// None
    #[arg(long)]
    blocked: bool,
    /// After this time it ends by itself: 30m, 1h, 7d [default: it stays until it is cleared]
    #[arg(long = "for", value_name = "TIME", value_parser = for_ms)]
    for_ms: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct Clear {
    /// The name of a policy
    policy: String,
    #[command(flatten)]
    partition: PartitionArgs,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Of this policy only
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

/// Runs one of them.
///
/// # Errors
/// When the store refuses it, or does not answer.
pub(crate) async fn run(args: &Args, session: Session) -> Result<(), Failure> {
    match &args.command {
        Command::Set(args) => set(args, &session).await,
        Command::Clear(args) => clear(args, &session).await,
        Command::List(args) => list(args, &session).await,
    }
}

async fn set(args: &Set, session: &Session) -> Result<(), Failure> {
    let allow = match args.quota {
        Some(quota) => Allow::Quota(quota),
        None if args.unlimited => Allow::Unlimited,
        None => Allow::Blocked,
    };
    let partition = args.partition.encode(session, &args.policy).await?;
    let change = SetOverride {
        domain: session.client.domain.clone(),
        policy: args.policy.clone(),
        partition: partition.clone(),
        allow,
        for_ms: args.for_ms,
        by: session.by.clone(),
    };
    if session.output.json {
        let answer = session.client.change(Method::PUT, api::OVERRIDES, &change).await?;
        return session.changed(&answer);
    }
    let parameters = [("policy", Some(args.policy.as_str()))];
    // Whatever is wrong with asking, the change itself tells of it.
    let listed = session.client.get::<Vec<OverrideEntry>>(api::OVERRIDES, &parameters).await.ok();
    let answer = session.client.change::<Changed>(Method::PUT, api::OVERRIDES, &change).await?;
    session.changed(&answer)?;
    let domain = &answer.value.domain;
    // The store puts the entries into the order of the policy.
    let partition = answer.value.partition.clone().unwrap_or(partition);
    let before = Before::found(listed.map(|answer| answer.value), |was: &OverrideEntry| {
        was.domain == *domain && was.policy == args.policy && was.partition == partition
    });
    say(match allow {
        Allow::Quota(_) => {
            "It holds with the next call for this partition; what is used already in this window counts."
        }
        Allow::Unlimited => "It holds with the next call for this partition.",
        Allow::Blocked => {
            "It holds with the next call for this partition; units that a proxy holds ahead may still be spent."
        }
    });
    match args.for_ms {
        Some(ms) => say(&format!("It ends by itself in {}.", duration(ms))),
        None => say("It stays until it is cleared."),
    }
    session.durability(&answer.value);
    undo(args, &partition, &before, session);
    Ok(())
}

/// Says what the partition was granted before, and the command that restores it.
fn undo(args: &Set, partition: &str, before: &Before<OverrideEntry>, session: &Session) {
    let flags = args.partition.flags();
    let clear = session.command(&[&["override", "clear", &args.policy, partition], flags].concat());
    match before {
        Before::Nothing => say(&format!("Undo it: {clear}")),
        Before::Unknown => say(&format!(
            "What it was granted before is not known: see `quotagate history`. Clear the override: {clear}"
        )),
        Before::Was(was) => {
            let allowed = match was.allow {
                Allow::Quota(quota) => format!("a quota of {}", number(quota)),
                Allow::Unlimited => "no limit".to_owned(),
                Allow::Blocked => "nothing".to_owned(),
            };
            let until = until(was.remaining_ms);
            say(&format!("Before, {} had granted it {allowed}, {until}.", was.by));
            say(&format!("Undo it{}: {}", note(was.remaining_ms), session.override_again(was, flags)));
        }
    }
}

async fn clear(args: &Clear, session: &Session) -> Result<(), Failure> {
    let change = ClearOverride {
        domain: session.client.domain.clone(),
        policy: args.policy.clone(),
        partition: args.partition.encode(session, &args.policy).await?,
        by: session.by.clone(),
    };
    let answer = session.client.change::<Changed>(Method::DELETE, api::OVERRIDES, &change).await?;
    session.changed(&answer)
}

async fn list(args: &List, session: &Session) -> Result<(), Failure> {
    let parameters = [("policy", args.policy.as_deref())];
    let answer = session.client.get::<Vec<OverrideEntry>>(api::OVERRIDES, &parameters).await?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    if answer.value.is_empty() {
        say(
            "Nobody has an override: `quotagate override set POLICY PARTITION --quota N --for 1h` would set one.",
        );
        return Ok(());
    }
    let mut table = Table::new(&["domain", "policy", "allows", "ends", "by", "partition"], &[2]);
    let mut unmatched = Vec::new();
    for entry in answer.value {
        unmatched.extend(without_effect(&entry));
        let (allows, weight) = match entry.allow {
            Allow::Quota(quota) => (number(quota), Weight::Plain),
            Allow::Unlimited => ("unlimited".to_owned(), Weight::Notable),
            Allow::Blocked => ("blocked".to_owned(), Weight::Alarming),
        };
        let ends =
            entry.remaining_ms.map_or_else(|| "when cleared".to_owned(), |ms| format!("in {}", duration(ms)));
        table.row(weight, [entry.domain, entry.policy, allows, ends, entry.by, entry.partition]);
    }
    session.output.print(&table.render(session.output.colour))?;
    unmatched.iter().for_each(|text| say(text));
    Ok(())
}

/// Says that no request can match an override, and why.
pub(crate) fn without_effect(entry: &OverrideEntry) -> Option<String> {
    let why = entry.unmatched.as_ref()?;
    Some(format!("The override of {} in {} matches no request: {why}.", entry.partition, entry.policy))
}
