//! `quotagate history`: the changes of a domain, or of all domains.

use std::cmp::Reverse;

use quotagate_operate::api::{self, Event};
use serde::Serialize;

use crate::operate::client::Client;
use crate::operate::display::{Table, Weight, say};
use crate::operate::failure::Failure;
use crate::operate::session::{Common, Session};
use crate::text::moment;

/// The flags of `quotagate history`.
#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Changes to show
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=api::MAX_HISTORY as u64))]
    limit: u64,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A change and its domain.
#[derive(Debug, Serialize)]
struct Change {
    domain: String,
    #[serde(flatten)]
    event: Event,
}

/// Shows the changes, newest first: those of `--domain`, or of all domains that the store knows.
///
/// # Errors
/// When the store refuses, or does not answer.
pub(crate) async fn run(args: &HistoryArgs, session: Session) -> Result<(), Failure> {
    let client = &session.client;
    // A domain may have a history though no filter reports it any more.
    let domains = match &client.domain {
        Some(domain) => vec![domain.clone()],
        None => client.domains().await?.value.into_iter().map(|info| info.domain).collect(),
    };
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut changes = changes(client, domains, args.limit).await?;
    changes.sort_by_key(|change| Reverse(change.event.at_ms));
    changes.truncate(limit);
    if session.output.json {
        let raw =
            serde_json::to_vec(&changes).map_err(|error| Failure::Usage(error.to_string()))?;
        return session.output.json(&raw.into());
    }
    if changes.is_empty() {
        say("There are no changes yet.");
        return Ok(());
    }
    let mut table = Table::new(&["at (UTC)", "domain", "by", "change"], &[]);
    for Change { domain, event } in changes {
        table.row(Weight::Plain, [moment(event.at_ms), domain, event.by, event.done]);
    }
    session.output.print(&table.render(session.output.colour))
}

async fn changes(
    client: &Client,
    domains: Vec<String>,
    limit: u64,
) -> Result<Vec<Change>, Failure> {
    let limit = limit.to_string();
    let mut changes = Vec::new();
    for domain in domains {
        let parameters = [("limit", Some(limit.as_str()))];
        let of_domain = Client { domain: Some(domain.clone()), ..client.clone() };
        let events = of_domain.get::<Vec<Event>>(api::HISTORY, &parameters).await?.value;
        changes.extend(events.into_iter().map(|event| Change { domain: domain.clone(), event }));
    }
    Ok(changes)
}
