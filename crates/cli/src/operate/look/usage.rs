//! `quotagate usage`: the units that a partition, and each partition that contains it, has used of
//! its current window.

use std::collections::{BTreeMap, BTreeSet};

use quotagate_operate::api::{
    self, PartiesPage, PartyUsage, QuotaFrom, Usage, UsageReply, WindowSpan,
};
use quotagate_protocol::Kind;

use crate::operate::client::Answer;
use crate::operate::display::{
    Table, Weight, at_most, covered, debt, full, holders, mode as mode_word, quota, say, used,
    weight, window, without_effect,
};
use crate::operate::failure::{Failure, whole};
use crate::operate::partition::PartitionArgs;
use crate::operate::session::{Common, Session};
use crate::text::{clean, count, duration, moment};

/// The shortest window of a budget.
const LEAST_BUDGET_MS: u64 = 60 * 60 * 1000;

/// The flags of `quotagate usage`.
#[derive(Debug, clap::Args)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    partition: PartitionArgs,
    /// All partitions of --policy that have a counter now, in place of PARTITION
    #[arg(long, requires = "policy")]
    all: bool,
    /// With --all: the policy
    #[arg(long, requires = "all")]
    policy: Option<String>,
    /// The last calendar window that has ended, instead of the current one
    #[arg(long)]
    last: bool,
    /// With --all: comma-separated values, with raw numbers
    #[arg(long, requires = "all", conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Shows the usage.
///
/// # Errors
/// When no policy has a counter for the partition now, or the store does not answer.
pub(crate) async fn run(args: &UsageArgs, session: Session) -> Result<(), Failure> {
    if let Some(policy) = &args.policy {
        if args.partition.is_given() {
            return Err(Failure::Usage("--all lists every partition: name none".to_owned()));
        }
        return all(policy, args.csv, args.last, &session).await;
    }
    let partition = args.partition.encode(&session, "").await?;
    let answer = ask(&session, &partition, args.last).await?;
    let UsageReply { found, overrides, unmatched, incomplete } = &answer.value;
    if session.output.json {
        session.output.json(&answer.raw)?;
    } else {
        let which = if args.last { "last finished" } else { "current" };
        say(&format!("{partition} in the {which} window of each policy:"));
        session.output.print(&table(found).render(session.output.colour))?;
        found.iter().filter_map(holders).for_each(|text| say(&text));
        overrides.iter().for_each(|entry| say(&covered(entry)));
        unmatched.iter().filter_map(without_effect).for_each(|text| say(&text));
    }
    whole(incomplete.as_deref())
}

/// Lists the partitions of a policy, the fullest first.
async fn all(policy: &str, csv: bool, last: bool, session: &Session) -> Result<(), Failure> {
    let (mut found, mut incomplete) = (BTreeMap::new(), BTreeSet::new());
    let mut from = None;
    loop {
        let last = last.then_some("true");
        let parameters = [("policy", Some(policy)), ("from", from.as_deref()), ("last", last)];
        let page: PartiesPage = session.client.get(api::PARTIES, &parameters).await?.value;
        incomplete.extend(page.incomplete);
        for party in page.found {
            let name = window(&party.usage.kind, party.usage.window_s);
            found.insert((party.usage.partition.clone(), name), party);
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    let mut found: Vec<PartyUsage> = found.into_values().collect();
    let share = |party: &PartyUsage| match party.usage.quota {
        Some(quota) => party.usage.used as f64 / quota.max(1) as f64,
        None => 0.0,
    };
    found.sort_by(|one, other| share(other).total_cmp(&share(one)));
    if session.output.json {
        let why = incomplete.iter().cloned().collect::<Vec<_>>().join("; ");
        let why = (!incomplete.is_empty()).then_some(why);
        let reply = UsageReply { found, incomplete: why, ..UsageReply::default() };
        let raw = serde_json::to_vec(&reply).map_err(|error| Failure::Usage(error.to_string()))?;
        session.output.json(&raw.into())?;
    } else if csv {
        session.output.print(&comma_separated(&found))?;
    } else {
        let parties = count(found.len() as u64, "partition", "partitions");
        say(&if last {
            format!("{policy} counted {parties} in the last finished window:")
        } else {
            format!("{policy} counts {parties} in the current window:")
        });
        if !found.is_empty() {
            session.output.print(&table(&found).render(session.output.colour))?;
        }
    }
    whole(incomplete.iter().map(String::as_str))
}

/// One line for each counter, below the names of the columns.
fn comma_separated(found: &[PartyUsage]) -> String {
    let mut lines =
        "domain,policy,partition,mode,used,debt,quota,quota_from,refused,window_s,reset_ms,start_s,end_s\n"
            .to_owned();
    for PartyUsage { usage, mode, refused, span, .. } in found {
        let quota = usage.quota.map_or_else(|| quota(usage), |quota| quota.to_string());
        let cells = [
            usage.domain.clone(),
            usage.policy.clone(),
            usage.partition.clone(),
            mode_word(*mode).to_owned(),
            usage.used.to_string(),
            usage.debt.to_string(),
            quota,
            source(usage.quota_from).to_owned(),
            refused.to_string(),
            usage.window_s.to_string(),
            usage.reset_ms.to_string(),
            span.map(|span| span.start_s.to_string()).unwrap_or_default(),
            span.map(|span| span.end_s.to_string()).unwrap_or_default(),
        ];
        // A partition has commas between its entries.
        let quoted = cells.map(|cell| {
            let cell = clean(&cell);
            if cell.contains([',', '"']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell
            }
        });
        lines.push_str(&quoted.join(","));
        lines.push('\n');
    }
    lines
}

/// What the store knows of a party.
pub(super) async fn ask(
    session: &Session,
    partition: &str,
    last: bool,
) -> Result<Answer<UsageReply>, Failure> {
    let parameters = [("partition", Some(partition)), ("last", last.then_some("true"))];
    let answer = session.client.get(api::USAGE, &parameters).await;
    answer.map_err(|failure| match failure {
        Failure::Absent(text) if !last => {
            Failure::Absent(format!("{text}{}", help(session, partition)))
        }
        other => other,
    })
}

/// One row for each counter. Debt, and when a quota runs out, have a column if there is any.
fn table(found: &[PartyUsage]) -> Table {
    let any = |of: fn(&Usage) -> bool| found.iter().any(|found| of(&found.usage));
    let in_debt = any(|usage| usage.debt > 0);
    let has_ended = found.iter().any(|found| found.span.is_some());
    let runs_out = !has_ended && any(|usage| runs_out_ms(usage).is_some());
    // The headings, whether a column holds numbers, and whether it is there.
    let columns = [
        ("domain", false, true),
        ("policy", false, true),
        ("mode", false, true),
        ("used", true, true),
        ("debt", true, in_debt),
        ("quota", true, true),
        ("full", true, true),
        ("quota from", false, true),
        ("refused", true, !has_ended),
        ("since", true, !has_ended),
        ("window", true, true),
        ("ends in", true, !has_ended),
        ("began (UTC)", false, has_ended),
        ("ended (UTC)", false, has_ended),
        ("runs out in", true, runs_out),
        ("partition", false, true),
    ];
    let shown: Vec<_> = columns.iter().filter(|(.., is_there)| *is_there).collect();
    let headings: Vec<&str> = shown.iter().map(|(heading, ..)| *heading).collect();
    let numbers = shown.iter().enumerate().filter(|(_, (_, is_number, _))| *is_number);
    let numbers: Vec<usize> = numbers.map(|(index, _)| index).collect();
    let mut table = Table::new(&headings, &numbers);
    for found in found {
        let PartyUsage { usage, mode, gone, refused_for_ms, span, .. } = found;
        let at = |second: fn(&WindowSpan) -> u64| {
            span.as_ref().map(|span| moment(second(span).saturating_mul(1000))).unwrap_or_default()
        };
        let (full_cell, weight) = if found.has_unread_slots() {
            (String::new(), Weight::Alarming)
        } else {
            (full(usage), weight(usage))
        };
        let row = [
            usage.domain.clone(),
            usage.policy.clone(),
            if *gone { "gone".to_owned() } else { mode_word(*mode).to_owned() },
            used(found),
            debt(usage),
            quota(usage),
            full_cell,
            source(usage.quota_from).to_owned(),
            beyond(found),
            refused_for_ms.map(duration).unwrap_or_default(),
            window(&usage.kind, usage.window_s),
            if usage.kind == Kind::InFlight { String::new() } else { duration(usage.reset_ms) },
            at(|span| span.start_s),
            at(|span| span.end_s),
            runs_out_ms(usage).map(duration).unwrap_or_default(),
            usage.partition.clone(),
        ];
        let row = row.into_iter().zip(&columns).filter(|(_, (.., is_there))| *is_there);
        table.row(weight, row.map(|(cell, _)| cell));
    }
    table
}

/// In how many milliseconds a budget is used up, if it goes on as in its window until now, and if
/// that is before the end of the window. Of windows of an hour or more.
fn runs_out_ms(usage: &Usage) -> Option<u64> {
    let window_ms = u64::from(usage.window_s).saturating_mul(1000);
    if usage.kind == Kind::Sliding || window_ms < LEAST_BUDGET_MS {
        return None;
    }
    let left = usage.quota?.checked_sub(usage.used).filter(|left| *left > 0)?;
    let elapsed = window_ms.checked_sub(usage.reset_ms)?;
    let ms = (u128::from(left) * u128::from(elapsed)).checked_div(u128::from(usage.used))?;
    u64::try_from(ms).ok().filter(|ms| *ms < usage.reset_ms)
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
        QuotaFrom::Tier => "tier or claim",
        QuotaFrom::Document => "document",
        QuotaFrom::Dial => "dial",
        QuotaFrom::Policy => "policy",
        QuotaFrom::Unknown => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_runs_out_at_the_rate_of_its_window_until_now() {
        const HOUR: u64 = 60 * 60 * 1000;
        let usage = |used, quota, kind, window_s, reset_ms| Usage {
            domain: "shop".into(),
            policy: "p".into(),
            partition: "*".into(),
            used,
            debt: 0,
            quota,
            quota_from: QuotaFrom::Policy,
            kind,
            window_s,
            reset_ms,
        };
        let fixed = |used, quota, reset_ms| usage(used, quota, Kind::Fixed, 10 * 3600, reset_ms);
        for (usage, runs_out) in [
            (fixed(50, Some(100), 8 * HOUR), Some(2 * HOUR)),
            (fixed(75, Some(100), 4 * HOUR), Some(2 * HOUR)),
            (fixed(50, Some(100), 5 * HOUR), None),
            (fixed(100, Some(100), 8 * HOUR), None),
            (fixed(0, Some(100), 8 * HOUR), None),
            (fixed(50, None, 8 * HOUR), None),
            (usage(50, Some(100), Kind::Sliding, 36_000, 8 * HOUR), None),
            (usage(50, Some(100), Kind::Fixed, 60, 50_000), None),
        ] {
            assert_eq!(runs_out_ms(&usage), runs_out, "{usage:?}");
        }
    }
}
