//! `quotagate history`: the changes of a domain, or of all domains.

use std::cmp::Reverse;
use std::time::{SystemTime, UNIX_EPOCH};

use quotagate_operate::api::{self, Event};
use quotagate_quota::request::naming::{DigestKey, Name};
use serde::Serialize;

use crate::operate::client::Client;
use crate::operate::display::{Table, Weight, say};
use crate::operate::failure::{Failure, whole};
use crate::operate::session::{Common, Session};
use crate::text::moment;
use crate::values::for_ms;

/// The flags of `quotagate history`.
#[derive(Debug, clap::Args)]
pub(crate) struct HistoryArgs {
    /// Changes to show
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=api::MAX_HISTORY as u64))]
    limit: u64,
    /// Only changes of this policy
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Only changes of partitions that contain this party: jwt.sub=alice
    #[arg(long, value_name = "PARTY", value_parser = party)]
    party: Option<String>,
    /// Only changes by this operator
    #[arg(long, value_name = "NAME")]
    person: Option<String>,
    /// Only changes of this time until now: 30m, 1h, 7d
    #[arg(long, value_name = "TIME", value_parser = for_ms)]
    since: Option<u64>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// A party as keys contain it. The pattern of its partitions names it, too.
fn party(text: &str) -> Result<String, String> {
    let text = text.strip_suffix(",*").unwrap_or(text);
    let name = Name::parse(text, Vec::new()).map_err(|error| error.to_string())?;
    Ok(name.encode(&DigestKey::derived(""), "", ""))
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
    let (domains, mut missing) = match &client.domain {
        Some(domain) => (vec![domain.clone()], Vec::new()),
        None => {
            let infos = client.domains().await?.value;
            infos.into_iter().map(|info| (info.domain, info.incomplete)).unzip()
        }
    };
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut changes = changes(client, domains, args, &mut missing).await?;
    let incomplete = missing.iter().filter_map(Option::as_deref);
    changes.sort_by_key(|change| Reverse(change.event.at_ms));
    changes.truncate(limit);
    if session.output.json {
        let raw =
            serde_json::to_vec(&changes).map_err(|error| Failure::Usage(error.to_string()))?;
        session.output.json(&raw.into())?;
        return whole(incomplete);
    }
    if changes.is_empty() {
        say(match args {
            HistoryArgs { policy: None, party: None, person: None, since: None, .. } => {
                "There are no changes yet."
            }
            _ => "There are no such changes among the last 1,000 of each domain.",
        });
        return whole(incomplete);
    }
    let headings = ["at (UTC)", "domain", "by", "role", "document", "change"];
    let mut table = Table::new(&headings, &[]);
    for Change { domain, event } in changes {
        // Without a role, `by` is only what the caller said.
        let role = event.author.role.map_or_else(|| "-".to_owned(), |role| role.to_string());
        let said = event.author.remark.filter(|said| *said != event.by);
        let notes = event.author.reason.into_iter().chain(said.map(|said| format!("by {said}")));
        let change = std::iter::once(event.done).chain(notes).collect::<Vec<_>>().join("; ");
        let document = match event.document {
            None => "-".to_owned(),
            Some(0) => "embedded".to_owned(),
            Some(number) => number.to_string(),
        };
        table.row(Weight::Plain, [moment(event.at_ms), domain, event.by, role, document, change]);
    }
    session.output.print(&table.render(session.output.colour))?;
    whole(incomplete)
}

/// The changes of these domains. Of several, one that cannot be read hides no other: `missing` says
/// so.
async fn changes(
    client: &Client,
    domains: Vec<String>,
    args: &HistoryArgs,
    missing: &mut Vec<Option<String>>,
) -> Result<Vec<Change>, Failure> {
    let several = domains.len() > 1;
    let limit = args.limit.to_string();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let since = args.since.map(|since| now.saturating_sub(since).to_string());
    let mut changes = Vec::new();
    for domain in domains {
        let parameters = [
            ("limit", Some(limit.as_str())),
            ("policy", args.policy.as_deref()),
            ("partition", args.party.as_deref()),
            ("by", args.person.as_deref()),
            ("since_ms", since.as_deref()),
        ];
        let of_domain = Client { domain: Some(domain.clone()), ..client.clone() };
        let events = match of_domain.get::<Vec<Event>>(api::HISTORY, &parameters).await {
            Err(Failure::Unreachable(why)) if several => {
                missing.push(Some(format!("{domain}: {why}")));
                continue;
            }
            answer => answer?.value,
        };
        changes.extend(events.into_iter().map(|event| Change { domain: domain.clone(), event }));
    }
    Ok(changes)
}
