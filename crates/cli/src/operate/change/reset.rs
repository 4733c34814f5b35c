//! `quotagate reset`: deletes a counter.

use std::collections::BTreeSet;

use hyper::Method;
use quotagate_operate::api::{self, Changed, PolicyInfo, Reset, Usage, UsageReply};
use quotagate_protocol::Kind;

use crate::operate::display::{end, quota, say};
use crate::operate::failure::{Failure, whole};
use crate::operate::partition::PartitionArgs;
use crate::operate::session::{Common, Session};
use crate::text::number;

/// The flags of `quotagate reset`.
#[derive(Debug, clap::Args)]
pub(crate) struct ResetArgs {
    /// The name of a policy
    policy: String,
    #[command(flatten)]
    partition: PartitionArgs,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Asks for confirmation and resets the counter.
///
/// # Errors
/// When the operator declines or cannot be asked, when there is no such counter, or the store does
/// not answer.
pub(crate) async fn run(args: &ResetArgs, session: Session) -> Result<(), Failure> {
    super::check_consent(args.yes, "reset asks before it deletes a counter")?;
    let partition = args.partition.encode(&session, &args.policy).await?;
    if !args.yes {
        confirm(args, &partition, &session).await?;
    }
    let change = Reset {
        domain: session.client.domain.clone(),
        policy: args.policy.clone(),
        partition,
        by: session.by.clone(),
    };
    let answer = session.client.change::<Changed>(Method::POST, api::RESET, &change).await?;
    session.changed(&answer)?;
    if !session.output.json {
        say("Proxies that know the counter as used up recheck it within a second.");
    }
    Ok(())
}

/// Says what will be deleted, and waits for a yes.
async fn confirm(args: &ResetArgs, partition: &str, session: &Session) -> Result<(), Failure> {
    let found =
        session.client.get::<UsageReply>(api::USAGE, &[("partition", Some(partition))]).await;
    let (found, incomplete) = match found {
        Ok(found) => (found.value.found, found.value.incomplete),
        Err(Failure::Absent(_)) => (Vec::new(), None),
        Err(failure) => return Err(failure),
    };
    // The store may list the entries in another order, and other partitions that contain this one.
    let entries =
        |partition: &str| partition.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
    let is_meant = |usage: &&Usage| {
        usage.policy == args.policy
            && usage.kind != Kind::InFlight
            && entries(&usage.partition) == entries(partition)
    };
    let Some(usage) = found.iter().map(|found| &found.usage).find(is_meant) else {
        whole(incomplete.as_deref())?;
        let boards = session.client.boards().await?.value;
        let counts = |policy: &PolicyInfo| {
            policy.name == args.policy && policy.forms().any(|form| form.kind != Kind::InFlight)
        };
        if !boards.iter().flat_map(|board| &board.policies).any(counts) {
            // The store refuses an unknown policy and suggests names, and it refuses a policy that
            // has no counter and names `release`.
            return Ok(());
        }
        return Err(Failure::Refused(format!(
            "{} has no counter for {partition} now: there is nothing to reset",
            args.policy
        )));
    };
    say(&format!(
        "{partition} has used {} of {} units of {}{}; {}.",
        number(usage.used),
        quota(usage),
        args.policy,
        match usage.debt {
            0 => String::new(),
            debt => format!(", {} of them debt", number(debt)),
        },
        end(usage)
    ));
    say(match usage.kind {
        Kind::Sliding => "Reset deletes this counter, so that the whole quota is available again.",
        Kind::Fixed | Kind::Calendar(_) | Kind::InFlight | Kind::Unknown => {
            "Reset deletes this counter, so that the whole quota is available again until then. Later windows are not affected."
        }
    });
    super::confirm("Reset it?")
}
