//! `quotagate override`: runtime overrides of single partitions.

use clap::ArgGroup;
use hyper::Method;
use quotagate_operate::api::{self, Allow, Changed, ClearOverride, OverrideEntry, SetOverride};

use super::undo::{self, Before, remark, until};
use crate::operate::display::{Table, Weight, ends, say, without_effect};
use crate::operate::failure::Failure;
use crate::operate::partition::PartitionArgs;
use crate::operate::session::{Common, Session};
use crate::text::{duration, number};
use crate::values::{for_ms, units};

/// The flags of `quotagate override`.
#[derive(Debug, clap::Args)]
pub(crate) struct OverrideArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: OverrideCommand,
}

#[derive(Debug, clap::Subcommand)]
enum OverrideCommand {
    /// Set the override of a partition, in place of an earlier one
    Set(Set),
    /// Clear an override, so that the policy applies again
    Clear(ClearOverrideArgs),
    /// Show the overrides in force
    List(List),
}

#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("allowed").args(["quota", "unlimited", "blocked"]).required(true)))]
struct Set {
    /// The name of a policy
    policy: String,
    #[command(flatten)]
    partition: PartitionArgs,
    /// Units per window
    #[arg(long, value_name = "N", value_parser = units)]
    quota: Option<u64>,
    /// Admit every request
    #[arg(long)]
    unlimited: bool,
    /// Refuse every request
    #[arg(long)]
    blocked: bool,
    /// The override ends after this time: 30m, 1h, 7d [default: when it is cleared]
    #[arg(long = "for", value_name = "TIME", value_parser = for_ms)]
    for_ms: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct ClearOverrideArgs {
    /// The name of a policy
    policy: String,
    #[command(flatten)]
    partition: PartitionArgs,
}

#[derive(Debug, clap::Args)]
struct List {
    /// Show overrides of this policy only
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
}

/// Runs one of these commands.
///
/// # Errors
/// When the store refuses it, or does not answer.
pub(crate) async fn run(args: &OverrideArgs, session: Session) -> Result<(), Failure> {
    match &args.command {
        OverrideCommand::Set(args) => set(args, &session).await,
        OverrideCommand::Clear(args) => clear(args, &session).await,
        OverrideCommand::List(args) => list(args, &session).await,
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
    // An error here is reported by the change, which meets it too.
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
            "It applies from the next call for this partition; units already used in this window count."
        }
        Allow::Unlimited => "It applies from the next call for this partition.",
        Allow::Blocked => {
            "It applies from the next call for this partition; units that proxies have leased may still be spent."
        }
    });
    if let Some(remark) = &answer.value.remark {
        say(remark);
    }
    match args.for_ms {
        Some(ms) => say(&format!("The override ends in {}.", duration(ms))),
        None => say("The override stays until it is cleared."),
    }
    session.warn_unless_durable(&answer.value);
    say_undo(args, &partition, &before, session);
    Ok(())
}

/// Says what the override was before, and the command that restores it.
fn say_undo(args: &Set, partition: &str, before: &Before<OverrideEntry>, session: &Session) {
    let flags = args.partition.flags();
    let clear = session.command(&[&["override", "clear", &args.policy, partition], flags].concat());
    match before {
        Before::Nothing => say(&format!("Undo it: {clear}")),
        Before::Unknown => say(&format!(
            "The override before this change is not known: see `quotagate history`. Clear it: {clear}"
        )),
        Before::Was(was) => {
            let allowed = match was.allow {
                Allow::Quota(quota) => format!("quota {}", number(quota)),
                Allow::Unlimited => "unlimited".to_owned(),
                Allow::Blocked => "blocked".to_owned(),
            };
            let until = until(was.remaining_ms);
            say(&format!("Before, {} had set {allowed}, {until}.", was.by));
            say(&format!(
                "Undo it{}: {}",
                remark(was.remaining_ms),
                undo::set_override(session, was, flags)
            ));
        }
    }
}

async fn clear(args: &ClearOverrideArgs, session: &Session) -> Result<(), Failure> {
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
            "No override is set. To set one: `quotagate override set POLICY PARTITION --quota N --for 1h`",
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
        let ends = ends(entry.remaining_ms);
        table.row(weight, [entry.domain, entry.policy, allows, ends, entry.by, entry.partition]);
    }
    session.output.print(&table.render(session.output.colour))?;
    unmatched.iter().for_each(|text| say(text));
    Ok(())
}
