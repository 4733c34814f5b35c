//! `quotagate usage`: the units that a partition, and each partition that contains it, has used of
//! its current window.

use quotagate_operate::api::{self, PartyUsage, QuotaFrom, UsageReply};

use crate::operate::client::Answer;
use crate::operate::display::{
    Table, at_most, covered, debt, full, mode as mode_word, quota, say, weight, window,
    without_effect,
};
use crate::operate::failure::Failure;
use crate::operate::partition::PartitionArgs;
use crate::operate::session::{Common, Session};
use crate::text::{duration, number};

/// The flags of `quotagate usage`.
#[derive(Debug, clap::Args)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    partition: PartitionArgs,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Shows the usage.
///
/// # Errors
/// When no policy has a counter for the partition now, or the store does not answer.
pub(crate) async fn run(args: &UsageArgs, session: Session) -> Result<(), Failure> {
    let partition = args.partition.encode(&session, "").await?;
    let answer = ask(&session, &partition).await?;
    let UsageReply { found, overrides, unmatched, incomplete } = &answer.value;
    if session.output.json {
        session.output.json(&answer.raw)?;
    } else {
        say(&format!("{partition} in the current window of each policy:"));
        session.output.print(&table(found).render(session.output.colour))?;
        overrides.iter().for_each(|entry| say(&covered(entry)));
        unmatched.iter().filter_map(without_effect).for_each(|text| say(&text));
    }
    whole(incomplete.as_deref())
}

/// What the store knows of a party.
pub(super) async fn ask(session: &Session, partition: &str) -> Result<Answer<UsageReply>, Failure> {
    let answer = session.client.get(api::USAGE, &[("partition", Some(partition))]).await;
    answer.map_err(|failure| match failure {
        Failure::Absent(text) => Failure::Absent(format!("{text}{}", help(session, partition))),
        other => other,
    })
}

/// Fails when the search was not complete, so that a script does not take a part for the whole.
pub(super) fn whole(incomplete: Option<&str>) -> Result<(), Failure> {
    match incomplete {
        None => Ok(()),
        Some(why) => {
            Err(Failure::Incomplete(format!("there may be more partitions that contain it: {why}")))
        }
    }
}

/// One row for each counter. Debt has a column if there is any.
fn table(found: &[PartyUsage]) -> Table {
    let mut headings = vec![
        "domain",
        "policy",
        "mode",
        "used",
        "quota",
        "full",
        "quota from",
        "refused",
        "since",
        "window",
        "ends in",
        "partition",
    ];
    let in_debt = found.iter().any(|found| found.usage.debt > 0);
    let numbers: &[usize] =
        if in_debt { &[3, 4, 5, 6, 8, 9, 10, 11] } else { &[3, 4, 5, 7, 8, 9, 10] };
    if in_debt {
        headings.insert(4, "debt");
    }
    let mut table = Table::new(&headings, numbers);
    for found in found {
        let PartyUsage { usage, mode, refused_for_ms, .. } = found;
        let mut row = vec![
            usage.domain.clone(),
            usage.policy.clone(),
            mode_word(*mode).to_owned(),
            number(usage.used),
            quota(usage),
            full(usage),
            source(usage.quota_from).to_owned(),
            beyond(found),
            refused_for_ms.map(duration).unwrap_or_default(),
            window(&usage.kind, usage.window_s),
            duration(usage.reset_ms),
            usage.partition.clone(),
        ];
        if in_debt {
            row.insert(4, debt(usage));
        }
        table.row(weight(usage), row);
    }
    table
}

/// The requests beyond the quota; empty without any. `would be` says that they were let through.
fn beyond(found: &PartyUsage) -> String {
    let PartyUsage { refused, would_refuse, refused_error, .. } = *found;
    match (refused, would_refuse) {
        (0, 0) => String::new(),
        (0, let_through) => format!("{} would be", at_most(let_through, refused_error)),
        (refused, _) => at_most(refused, refused_error),
    }
}

/// Why a partition may not be found.
fn help(session: &Session, partition: &str) -> String {
    let mut text = format!(
        "\nA counter ends with its window. `{}` shows the partitions with counters now.",
        session.command(&["top"])
    );
    let secret = ["header.", "cookie.", "query."].iter().any(|kind| partition.starts_with(kind));
    if secret && !partition.contains("=~") {
        let label = partition.split('=').next().unwrap_or_default();
        text.push_str(&format!(
            "\nIf the policy marks it `secret`, use `quotagate usage --secret {label}`."
        ));
    }
    text
}

/// The source of a quota.
const fn source(from: QuotaFrom) -> &'static str {
    match from {
        QuotaFrom::Override => "override",
        QuotaFrom::Reservation => "last call",
        QuotaFrom::Dial => "dial",
        QuotaFrom::Policy => "policy",
        QuotaFrom::Unknown => "",
    }
}
