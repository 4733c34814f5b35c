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
pub(crate) struct DialArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: DialCommand,
}

#[derive(Debug, clap::Subcommand)]
enum DialCommand {
    /// Show all policies that filters have reported, and their dials
    List,
    /// Set a dial; fields that are not given keep their values
    Set(set::SetDialArgs),
    /// Clear a dial, so that the configuration applies again
    Clear(ClearDialArgs),
}

#[derive(Debug, clap::Args)]
struct ClearDialArgs {
    /// The name of a policy, or *
    policy: String,
}

/// Runs one of these commands.
///
/// # Errors
/// When the store refuses it, or does not answer.
pub(crate) async fn run(args: &DialArgs, session: Session) -> Result<(), Failure> {
    match &args.command {
        DialCommand::List => list::run(&session).await,
        DialCommand::Set(args) => set::run(args, &session).await,
        DialCommand::Clear(args) => clear(&args.policy, &session).await,
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
