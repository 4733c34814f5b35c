//! `quotagate reset`: a partition gets its whole quota once more.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};

use hyper::Method;
use quotagate_control::api::{self, Changed, Reset, Usage, UsageReply};

use super::failure::Failure;
use super::output::say;
use super::partition::PartitionArgs;
use super::usage::quota;
use super::words::{duration, number};
use super::{Common, Session};
use crate::standard::tell;

/// The flags of `quotagate reset`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The name of a policy
    policy: String,
    #[command(flatten)]
    partition: PartitionArgs,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Asks, unless told not to, and does it.
///
/// # Errors
/// When nobody can be asked or the answer is no, when there is no such counter, or the store does not answer.
pub(crate) async fn run(args: &Args, session: Session) -> Result<(), Failure> {
    if !args.yes && !io::stdin().is_terminal() {
        return Err(Failure::Usage(
            "reset asks before it deletes a counter: without a terminal, say --yes".to_owned(),
        ));
    }
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
        say("Proxies that refused it by themselves ask again within a second.");
    }
    Ok(())
}

/// Says what will be done, and waits for a yes.
async fn confirm(args: &Args, partition: &str, session: &Session) -> Result<(), Failure> {
    let found = session.client.get::<UsageReply>(api::USAGE, &[("partition", Some(partition))]).await;
    let found = match found {
        Ok(found) => found.value.found,
        Err(Failure::Absent(_)) => Vec::new(),
        Err(failure) => return Err(failure),
    };
    // Its entries may stand in another order, and other partitions may contain it.
    let entries = |partition: &str| partition.split(',').map(str::to_owned).collect::<BTreeSet<_>>();
    let is_meant =
        |usage: &&Usage| usage.policy == args.policy && entries(&usage.partition) == entries(partition);
    let Some(usage) = found.iter().find(is_meant) else {
        let boards = session.client.boards().await?.value;
        if boards.iter().all(|board| board.policies.iter().all(|policy| policy.name != args.policy)) {
            // The store refuses that, and says which names could have been meant.
            return Ok(());
        }
        return Err(Failure::Refused(format!(
            "{} does not count {partition} now: there is nothing to reset",
            args.policy
        )));
    };
    say(&format!(
        "{partition} has used {} of {} units of {}; its window ends in {}.",
        number(usage.used),
        quota(usage),
        args.policy,
        duration(usage.reset_ms)
    ));
    say(
        "Reset deletes that counter: it has its whole quota once more until then. Its next window is no other.",
    );
    let mut answer = String::new();
    let read = tell("Reset it? [y/N] ").and_then(|()| io::stdin().read_line(&mut answer));
    match (read, answer.trim()) {
        (Ok(_), "y" | "Y" | "yes" | "Yes") => Ok(()),
        _ => Err(Failure::Refused("nothing was changed".to_owned())),
    }
}
