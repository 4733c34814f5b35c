//! `quotagate top`: the partitions that are refused most, and those closest to their quotas.

mod rows;
mod screen;
mod tables;
mod view;

use std::time::Duration;

use quotagate_operate::api::{self, Top};
use tokio::time::{Instant, sleep_until};

use self::rows::TopFilter;
use crate::operate::client::Answer;
use crate::operate::display::{Output, say};
use crate::operate::failure::{Failure, whole};
use crate::operate::session::{Common, Session};
use crate::values;

/// Most rows of each table that a store answers with.
const MOST: u64 = 100;

/// The flags of `quotagate top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Show partitions of this policy only
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// What comes first: the most refused partitions, or the fullest
    #[arg(long, value_enum, default_value_t)]
    sort: TopSort,
    /// Show only rows whose domain, policy or partition contains this text, in any case
    #[arg(long, value_name = "TEXT")]
    filter: Option<TopFilter>,
    /// Fill the terminal with a view that renews itself, until q; with --json, print a line each
    /// time, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// How often --watch asks the store
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval, requires = "watch")]
    interval: Duration,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum TopSort {
    /// The most refused partitions
    #[default]
    Refused,
    /// The fullest partitions
    Full,
}

fn interval(text: &str) -> Result<Duration, String> {
    values::duration(text, Duration::from_secs(1), Duration::from_secs(3600))
}

/// Shows the tables once, or again and again.
///
/// # Errors
/// When the store refuses, or does not answer at first, or if what is shown once is not complete.
pub(crate) async fn run(args: &TopArgs, session: Session) -> Result<(), Failure> {
    let Output { json, terminal, able, .. } = session.output;
    if json && args.filter.is_some() {
        return Err(Failure::Usage(
            "--filter: --json prints the store's JSON unchanged, so leave out one of them"
                .to_owned(),
        ));
    }
    if !args.watch {
        let answer = ask(args, &session).await?;
        return show(args, answer, session.output);
    }
    if json {
        return tokio::select! {
            ended = lines(args, &session) => ended,
            // If no handler can be installed, Ctrl-C ends the process as usual.
            Ok(()) = tokio::signal::ctrl_c() => Ok(()),
        };
    }
    if !terminal || !able {
        return Err(Failure::Usage(
            "--watch draws on a terminal: elsewhere, add --json or leave it out".to_owned(),
        ));
    }
    screen::run(args, &session).await
}

/// Prints the store's JSON, one line each time, for programs.
async fn lines(args: &TopArgs, session: &Session) -> Result<(), Failure> {
    let mut answer = ask(args, session).await?;
    loop {
        let next = Instant::now() + args.interval;
        Output { terminal: false, ..session.output }.json(&answer.raw)?;
        sleep_until(next).await;
        answer = loop {
            match ask(args, session).await {
                Ok(answer) => break answer,
                // The store may be restarting.
                Err(Failure::Unreachable(why)) => {
                    say(why.lines().next().unwrap_or_default());
                    sleep_until(Instant::now() + args.interval).await;
                }
                Err(failure) => return Err(failure),
            }
        };
    }
}

async fn ask(args: &TopArgs, session: &Session) -> Result<Answer<Top>, Failure> {
    // What is filtered out makes room for other rows.
    let limit = if args.filter.is_some() || args.watch && !session.output.json {
        args.limit.max(MOST)
    } else {
        args.limit
    };
    let limit = limit.to_string();
    session
        .client
        .get(api::TOP, &[("policy", args.policy.as_deref()), ("limit", Some(&limit))])
        .await
}

fn show(args: &TopArgs, answer: Answer<Top>, output: Output) -> Result<(), Failure> {
    let mut top = answer.value;
    if output.json {
        output.json(&answer.raw)?;
        return whole(top.incomplete.as_deref());
    }
    // `whole` says it on standard error.
    let incomplete = top.incomplete.take();
    if top.is_empty() {
        say(&format!(
            "Stores and proxies have counted no requests lately. {}",
            tables::publishers(&top.publishers, tables::now_ms())
        ));
        tables::notices(&top).iter().for_each(|sentence| say(sentence));
        return whole(incomplete.as_deref());
    }
    if let Some(filter) = &args.filter {
        filter.apply(&mut top);
    }
    let rows = usize::try_from(args.limit).unwrap_or(usize::MAX);
    top.fullest.truncate(rows);
    top.slots.truncate(rows);
    top.refused.truncate(rows);
    top.would_refuse.truncate(rows);
    top.uncounted.truncate(rows);
    output.print(&tables::tables(&top, args.sort, output.colour))?;
    whole(incomplete.as_deref())
}
