//! `quotagate usage`: the units that a partition, and each partition that contains it, has used of
//! its current window.

use quotagate_operate::api::{self, QuotaFrom, Usage, UsageReply};

use crate::operate::display::{Table, debt, full, quota, say, weight, window, without_effect};
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
    let answer =
        session.client.get::<UsageReply>(api::USAGE, &[("partition", Some(&partition))]).await;
    let answer = answer.map_err(|failure| match failure {
        Failure::Absent(text) => Failure::Absent(format!("{text}{}", help(&session, &partition))),
        other => other,
    })?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    say(&format!("{partition} in the current window of each policy:"));
    session.output.print(&table(&answer.value.found).render(session.output.colour))?;
    answer.value.unmatched.iter().filter_map(without_effect).for_each(|text| say(&text));
    if let Some(why) = &answer.value.incomplete {
        say(&format!("There may be more partitions that contain it: {why}."));
    }
    Ok(())
}

/// One row for each counter. Debt has a column if there is any.
fn table(found: &[Usage]) -> Table {
    let mut headings = vec![
        "domain",
        "policy",
        "used",
        "quota",
        "full",
        "quota from",
        "window",
        "ends in",
        "partition",
    ];
    let in_debt = found.iter().any(|usage| usage.debt > 0);
    let numbers: &[usize] = if in_debt { &[2, 3, 4, 5, 7, 8] } else { &[2, 3, 4, 6, 7] };
    if in_debt {
        headings.insert(3, "debt");
    }
    let mut table = Table::new(&headings, numbers);
    for usage in found {
        let mut row = vec![
            usage.domain.clone(),
            usage.policy.clone(),
            number(usage.used),
            quota(usage),
            full(usage),
            source(usage.quota_from).to_owned(),
            window(&usage.kind, usage.window_s),
            duration(usage.reset_ms),
            usage.partition.clone(),
        ];
        if in_debt {
            row.insert(3, debt(usage));
        }
        table.row(weight(usage), row);
    }
    table
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
    }
}
