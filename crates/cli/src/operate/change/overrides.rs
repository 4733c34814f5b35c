//! `quotagate override`: runtime overrides of single partitions.

use clap::ArgGroup;
use hyper::Method;
use quotagate_operate::api::{self, Allow, Changed, ClearOverride, OverrideEntry, SetOverride};
use quotagate_protocol::dials::ALL_POLICIES;

use super::undo::{self, Before, remark, until};
use crate::operate::display::{Table, Weight, allows, ends, say, without_effect};
use crate::operate::failure::{Failure, whole};
use crate::operate::partition::PartitionArgs;
use crate::operate::session::{Common, Session};
use crate::text::{duration, number};
use crate::values::{for_ms, units};

/// What stands for any further entries of a partition.
const REST: &str = ",*";

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
    #[command(flatten)]
    whom: Whom,
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
    #[command(flatten)]
    whom: Whom,
}

/// Whom an override is for: a partition of a policy, or every partition that contains a party.
#[derive(Clone, Debug, clap::Args)]
struct Whom {
    /// The name of a policy; left out with --all-policies
    policy: Option<String>,
    #[command(flatten)]
    partition: PartitionArgs,
    /// In all policies of the domain, every partition that contains PARTITION. In one policy, that
    /// is written PARTITION,*
    #[arg(long)]
    all_policies: bool,
}

/// The policy and the partition of an override, as the store writes them.
struct Subject {
    policy: String,
    partition: String,
}

impl Whom {
    async fn encode(&self, session: &Session) -> Result<Subject, Failure> {
        let Self { policy, mut partition, all_policies } = self.clone();
        let (policy, mut partition) = match (all_policies, policy, partition.partition.is_some()) {
            (false, Some(policy), _) => (policy, partition),
            (false, None, _) => {
                return Err(Failure::Usage("POLICY and PARTITION are missing".to_owned()));
            }
            (true, Some(_), true) => {
                let why = "--all-policies stands for the name of a policy: leave POLICY out";
                return Err(Failure::Usage(why.to_owned()));
            }
            // The only word is the partition.
            (true, only, _) => {
                partition.partition = only;
                (ALL_POLICIES.to_owned(), partition)
            }
        };
        let party = partition.partition.as_deref().and_then(|text| text.strip_suffix(REST));
        let party = party.map(str::to_owned);
        let is_pattern = all_policies || party.is_some();
        partition.partition = party.or(partition.partition);
        let mut encoded = partition.encode(session, &policy).await?;
        if is_pattern {
            encoded.push_str(REST);
        }
        Ok(Subject { policy, partition: encoded })
    }

    /// The words that name the same on the command line.
    fn words<'a>(&self, policy: &'a str, partition: &'a str) -> Vec<&'a str> {
        let name = match policy {
            ALL_POLICIES => {
                vec!["--all-policies", partition.strip_suffix(REST).unwrap_or(partition)]
            }
            policy => vec![policy, partition],
        };
        [&name[..], self.partition.flags()].concat()
    }
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
    let Subject { policy, partition } = args.whom.encode(session).await?;
    let change = SetOverride {
        domain: session.client.domain.clone(),
        policy: policy.clone(),
        partition: partition.clone(),
        allow,
        for_ms: args.for_ms,
        by: session.by.clone(),
    };
    if session.output.json {
        let answer = session.client.change(Method::PUT, api::OVERRIDES, &change).await?;
        return session.changed(&answer);
    }
    let parameters = [("policy", Some(policy.as_str()).filter(|policy| *policy != ALL_POLICIES))];
    // An error here is reported by the change, which meets it too.
    let listed = session.client.get::<Vec<OverrideEntry>>(api::OVERRIDES, &parameters).await.ok();
    let answer = session.client.change::<Changed>(Method::PUT, api::OVERRIDES, &change).await?;
    session.changed(&answer)?;
    let domain = &answer.value.domain;
    // The store puts the entries into the order of the policy.
    let partition = answer.value.partition.clone().unwrap_or(partition);
    let before = Before::found(listed.map(|answer| answer.value), |was: &OverrideEntry| {
        was.domain == *domain && was.policy == policy && was.partition == partition
    });
    let is_pattern = partition.ends_with(REST);
    if is_pattern {
        say(
            "It applies within 10 s to each partition that contains the party, and each has this quota for itself.",
        );
    }
    say(match allow {
        _ if is_pattern => "Units that proxies have leased may still be spent.",
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
    say_undo(args.for_ms, &args.whom.words(&policy, &partition), &before, session);
    Ok(())
}

/// Says what the override was before, and the command that restores it.
fn say_undo(for_ms: Option<u64>, whom: &[&str], before: &Before<OverrideEntry>, session: &Session) {
    let clear = session.command(&[&["override", "clear"], whom].concat());
    match before {
        Before::Nothing => say(&format!("Undo it: {clear}")),
        Before::Unknown => say(&format!(
            "The override before this change is not known: see `quotagate history`. Clear it: {clear}"
        )),
        Before::Was(was) => {
            let allowed = allows(was.allow);
            let until = until(was.remaining_ms);
            say(&format!("Before, {} had set {allowed}, {until}.", was.by));
            let again = undo::set_override(session, was, whom);
            // One without a time takes the place of no timed one.
            let stays = was.remaining_ms.is_none() && for_ms.is_some();
            let whole = if stays { format!("{clear} && {again}") } else { again };
            say(&format!("Undo it{}: {whole}", remark(was.remaining_ms)));
        }
    }
}

async fn clear(args: &ClearOverrideArgs, session: &Session) -> Result<(), Failure> {
    let Subject { policy, partition } = args.whom.encode(session).await?;
    let change = ClearOverride {
        domain: session.client.domain.clone(),
        policy,
        partition,
        by: session.by.clone(),
    };
    let answer = session.client.change::<Changed>(Method::DELETE, api::OVERRIDES, &change).await?;
    session.changed(&answer)
}

async fn list(args: &List, session: &Session) -> Result<(), Failure> {
    let parameters = [("policy", args.policy.as_deref())];
    let answer = session.client.get::<Vec<OverrideEntry>>(api::OVERRIDES, &parameters).await?;
    let incomplete: Vec<String> =
        answer.value.iter().filter_map(|entry| entry.incomplete.clone()).collect();
    let incomplete = incomplete.iter().map(String::as_str);
    if session.output.json {
        session.output.json(&answer.raw)?;
        return whole(incomplete);
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
    whole(incomplete)
}
