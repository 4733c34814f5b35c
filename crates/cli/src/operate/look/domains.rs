//! `quotagate domains`: the domains that filters have reported.

use hyper::Method;
use quotagate_operate::api::{self, Changed, DomainInfo, ForgetDomain};

use crate::operate::display::{Table, Weight, say};
use crate::operate::failure::{Failure, whole};
use crate::operate::session::{Common, Session};
use crate::text::{count, duration, number};

/// The flags of `quotagate domains`.
#[derive(Debug, clap::Args)]
pub(crate) struct DomainsArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: Option<DomainsCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum DomainsCommand {
    /// Forget a domain that no filter reports any more: its policies and its name, not its counters
    Forget(Forget),
}

#[derive(Debug, clap::Args)]
struct Forget {
    /// The domain
    name: String,
}

/// Shows the domains, or forgets one.
///
/// # Errors
/// When the store refuses it, or does not answer.
pub(crate) async fn run(args: &DomainsArgs, mut session: Session) -> Result<(), Failure> {
    match &args.command {
        None => list(&session).await,
        Some(DomainsCommand::Forget(args)) => {
            // The client suggests a domain if this name has a typing error.
            session.client.domain = Some(args.name.clone());
            forget(&args.name, &session).await
        }
    }
}

async fn list(session: &Session) -> Result<(), Failure> {
    let answer = session.client.domains().await?;
    let incomplete = answer.value.iter().filter_map(|info| info.incomplete.as_deref());
    if session.output.json {
        session.output.json(&answer.raw)?;
        return whole(incomplete);
    }
    if answer.value.is_empty() {
        say(
            "No filter has reported a domain yet: each does so with its first requests, and then every 5 s.",
        );
        return Ok(());
    }
    let headings =
        ["domain", "policies", "dials", "overrides", "proxies", "document", "last report"];
    let mut table = Table::new(&headings, &[1, 2, 3, 4]);
    for info in &answer.value {
        let DomainInfo { domain, policies, dials, overrides, silent_ms, in_force, .. } = info;
        let document = match in_force.documents.as_slice() {
            [] => String::new(),
            [only] => only.digest.clone(),
            several => count(several.len() as u64, "document", "documents"),
        };
        let weight = if in_force.differs() { Weight::Notable } else { Weight::Plain };
        let row = [
            domain.clone(),
            number(*policies),
            number(*dials),
            number(*overrides),
            number(in_force.proxies),
            document,
            format!("{} ago", duration(*silent_ms)),
        ];
        table.row(weight, row);
    }
    session.output.print(&table.render(session.output.colour))?;
    for info in &answer.value {
        if let Some(sentence) = info.in_force.sentence(&info.domain) {
            session.output.sentence(&format!("{sentence}."))?;
        }
        for fault in &info.faults {
            session.output.sentence(&format!("{fault}."))?;
        }
    }
    whole(incomplete)
}

async fn forget(name: &str, session: &Session) -> Result<(), Failure> {
    let change = ForgetDomain { domain: name.to_owned(), by: session.by.clone() };
    let answer = session.client.change::<Changed>(Method::DELETE, api::DOMAINS, &change).await?;
    session.changed(&answer)?;
    if !session.output.json {
        say(
            "Its counters end with their windows. The domain is known again as soon as a filter reports it.",
        );
    }
    Ok(())
}
