//! `quotagate history`: the changes of a domain.

use quotagate_control::api::{self, Event};

use super::failure::Failure;
use super::output::say;
use super::table::{Table, Weight};
use super::words::moment;
use super::{Common, Session};

/// The flags of `quotagate history`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How many
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u64).range(1..=api::MAX_HISTORY as u64))]
    limit: u64,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Shows it.
///
/// # Errors
/// When the store refuses, or does not answer.
pub(crate) async fn run(args: &Args, session: Session) -> Result<(), Failure> {
    let limit = args.limit.to_string();
    let parameters = [("limit", Some(limit.as_str()))];
    let answer = session.client.get::<Vec<Event>>(api::HISTORY, &parameters).await?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    if answer.value.is_empty() {
        say("Nothing was ever changed here.");
        return Ok(());
    }
    let mut table = Table::new(&["at (UTC)", "by", "done"], &[]);
    for event in answer.value {
        table.row(Weight::Plain, [moment(event.at_ms), event.by, event.done]);
    }
    session.output.print(&table.render(session.output.colour))
}
