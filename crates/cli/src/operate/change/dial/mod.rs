//! `quotagate dial`: changes of a policy on the running fleet.

mod list;
mod set;

use hyper::Method;
use quotagate_operate::api::{self, Changed, ClearDial};

use crate::operate::display::say;
use crate::operate::failure::Failure;
use crate::operate::session::{Common, Session};

/// The flags of `quotagate dial`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show all policies that filters have reported, and their dials
    List,
    /// Set a dial; fields that are not given keep their values
    Set(set::Args),
    /// Clear a dial, so that the configuration applies again
    Clear(Clear),
}

#[derive(Debug, clap::Args)]
struct Clear {
    /// The name of a policy, or *
    policy: String,
}

/// Runs one of these commands.
///
/// # Errors
/// When the store refuses it, or does not answer.
pub(crate) async fn run(args: &Args, session: Session) -> Result<(), Failure> {
    match &args.command {
        Command::List => list::run(&session).await,
        Command::Set(args) => set::run(args, &session).await,
        Command::Clear(args) => clear(&args.policy, &session).await,
    }
}

async fn clear(policy: &str, session: &Session) -> Result<(), Failure> {
    let change = ClearDial {
        domain: session.client.domain.clone(),
        policy: policy.to_owned(),
        by: session.by.clone(),
    };
    let answer = session.client.change::<Changed>(Method::DELETE, api::DIALS, &change).await?;
    session.changed(&answer)?;
    if !session.output.json {
        say("Every proxy with traffic applies its configuration again within 10 s.");
    }
    Ok(())
}
