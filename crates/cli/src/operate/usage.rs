//! `quotagate usage`: what a party has used in the current window of each policy, in every partition that contains it.

use quotagate_control::api::{self, QuotaFrom, Usage, UsageReply};

use super::failure::Failure;
use super::output::say;
use super::overrides::without_effect;
use super::partition::PartitionArgs;
use super::table::{Table, Weight};
use super::words::{duration, number};
use super::{Common, Session};

/// The flags of `quotagate usage`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    partition: PartitionArgs,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Shows it.
///
/// # Errors
/// When no policy counts that partition now, or the store does not answer.
pub(crate) async fn run(args: &Args, session: Session) -> Result<(), Failure> {
    let partition = args.partition.encode(&session, "").await?;
    let answer = session.client.get::<UsageReply>(api::USAGE, &[("partition", Some(&partition))]).await;
    let answer = answer.map_err(|failure| match failure {
        Failure::Absent(text) => Failure::Absent(format!("{text}{}", help(&session, &partition))),
        other => other,
    })?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    say(&format!("{partition} in the current window of each policy:"));
    let headings =
        ["domain", "policy", "used", "quota", "full", "quota is of", "window", "ends in", "partition"];
    let mut table = Table::new(&headings, &[2, 3, 4, 6, 7]);
    for usage in &answer.value.found {
        let row = [
            usage.domain.clone(),
            usage.policy.clone(),
            number(usage.used),
            quota(usage),
            full(usage),
            source(usage.quota_from).to_owned(),
            duration(u64::from(usage.window_s) * 1000),
            duration(usage.reset_ms),
            usage.partition.clone(),
        ];
        table.row(weight(usage), row);
    }
    session.output.print(&table.render(session.output.colour))?;
    answer.value.unmatched.iter().filter_map(without_effect).for_each(|text| say(&text));
    if let Some(why) = &answer.value.incomplete {
        say(&format!("There may be more partitions of this party: {why}."));
    }
    Ok(())
}

/// Why somebody may not be found.
fn help(session: &Session, partition: &str) -> String {
    let mut text = format!(
        "\nCounters live as long as their window, and `{}` shows who is counted now.",
        session.command(&["top"])
    );
    let secret = ["header.", "cookie.", "query."].iter().any(|kind| partition.starts_with(kind));
    if secret && !partition.contains("=~") {
        let label = partition.split('=').next().unwrap_or_default();
        text.push_str(&format!(
            "\nWhere the policy file marks it `secret`, name it by `quotagate usage --secret {label}`."
        ));
    }
    text
}

/// The quota in force, or the word for none.
pub(crate) fn quota(usage: &Usage) -> String {
    usage.quota.map_or_else(|| "unlimited".to_owned(), number)
}

/// The part of it that is used.
pub(crate) fn full(usage: &Usage) -> String {
    match usage.quota {
        Some(0) => "100 %".to_owned(),
        Some(quota) => format!("{} %", u128::from(usage.used) * 100 / u128::from(quota)),
        None => String::new(),
    }
}

/// Full is alarming, nearly so is notable.
pub(crate) fn weight(usage: &Usage) -> Weight {
    match usage.quota {
        Some(quota) if usage.used >= quota => Weight::Alarming,
        Some(quota) if usage.used >= quota - quota / 10 => Weight::Notable,
        Some(_) | None => Weight::Plain,
    }
}

/// Where a quota comes from, in a word or two.
const fn source(from: QuotaFrom) -> &'static str {
    match from {
        QuotaFrom::Override => "an override",
        QuotaFrom::Reservation => "the last call",
        QuotaFrom::Dial => "a dial",
        QuotaFrom::Policy => "the policy",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_full_a_window_is() {
        for (used, quota, text, stands_out) in [
            (0, Some(100), "0 %", Weight::Plain),
            (89, Some(100), "89 %", Weight::Plain),
            (90, Some(100), "90 %", Weight::Notable),
            (100, Some(100), "100 %", Weight::Alarming),
            (130, Some(100), "130 %", Weight::Alarming),
            (0, Some(0), "100 %", Weight::Alarming),
            (u64::MAX, Some(1), "1844674407370955161500 %", Weight::Alarming),
            (7, None, "", Weight::Plain),
        ] {
            let usage = Usage {
                domain: "shop".into(),
                policy: "p".into(),
                partition: "*".into(),
                used,
                quota,
                quota_from: QuotaFrom::Policy,
                window_s: 60,
                reset_ms: 1,
            };
            assert_eq!((full(&usage).as_str(), weight(&usage)), (text, stands_out), "{used} of {quota:?}");
        }
    }
}
