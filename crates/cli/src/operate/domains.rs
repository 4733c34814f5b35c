//! `quotagate domains`: what proxies have reported, and when last.

use hyper::Method;
use quotagate_control::api::{self, Changed, DomainInfo, ForgetDomain};

use super::client::Client;
use super::failure::Failure;
use super::output::say;
use super::table::{Table, Weight};
use super::words::{duration, number};
use super::{Common, Session};

/// The flags of `quotagate domains`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Remove what is remembered of a domain that is gone: its policies and its name, not its counters
    Forget(Forget),
}

#[derive(Debug, clap::Args)]
struct Forget {
    /// The domain
    name: String,
}

/// Shows them, or forgets one.
///
/// # Errors
/// When the store refuses it, or does not answer.
pub(crate) async fn run(args: &Args, session: Session) -> Result<(), Failure> {
    match &args.command {
        None => list(&session).await,
        Some(Command::Forget(args)) => {
            // A name with a typing error is answered with the domain that could be meant.
            let client = Client { domain: Some(args.name.clone()), ..session.client };
            forget(&args.name, &Session { client, ..session }).await
        }
    }
}

async fn list(session: &Session) -> Result<(), Failure> {
    let answer = session.client.get::<Vec<DomainInfo>>(api::DOMAINS, &[]).await?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    if answer.value.is_empty() {
        say("No proxy has reported a domain yet: each does with its first requests, and then every 5 s.");
        return Ok(());
    }
    let headings = ["domain", "policies", "dials", "overrides", "last report"];
    let mut table = Table::new(&headings, &[1, 2, 3]);
    for info in answer.value {
        let DomainInfo { domain, policies, dials, overrides, silent_ms } = info;
        let last = format!("{} ago", duration(silent_ms));
        table.row(Weight::Plain, [domain, number(policies), number(dials), number(overrides), last]);
    }
    session.output.print(&table.render(session.output.colour))
}

async fn forget(name: &str, session: &Session) -> Result<(), Failure> {
    let change = ForgetDomain { domain: name.to_owned(), by: session.by.clone() };
    let answer = session.client.change::<Changed>(Method::DELETE, api::DOMAINS, &change).await?;
    session.changed(&answer)?;
    if !session.output.json {
        say("Its counters end with their windows. It is known again when a proxy reports it.");
    }
    Ok(())
}
