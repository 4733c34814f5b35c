//! `quotagate top`: the partitions closest to their quotas, and those refused most.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use console::truncate_str;
use quotagate_operate::api::{self, Publisher, PublisherKind, Refused, Top, Uncounted};
use tokio::time::{Instant, sleep_until};

use crate::operate::client::Answer;
use crate::operate::display::{
    Output, Table, Weight, at_most, debt, full, quota, say, size, weight,
};
use crate::operate::failure::Failure;
use crate::operate::session::{Common, Session};
use crate::text::{clean, count, duration, moment, number};

/// How often the screen is drawn.
const EVERY: Duration = Duration::from_secs(2);

/// Moves the cursor to the upper left corner, and clears everything below.
const HOME_AND_CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// Most stores and proxies that are named.
const NAMED: usize = 4;

/// The flags of `quotagate top`.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Show partitions of this policy only
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Rows of each table
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    limit: u64,
    /// Draw it every 2 s until Ctrl-C; with --json, print a line each time
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Shows the tables, once or until Ctrl-C.
///
/// # Errors
/// When the store refuses, or does not answer at first.
pub(crate) async fn run(args: &TopArgs, session: Session) -> Result<(), Failure> {
    if !args.watch {
        let answer = ask(args, &session).await?;
        return show(&answer, session.output);
    }
    if !session.output.terminal && !session.output.json {
        return Err(Failure::Usage(
            "--watch draws on a terminal: elsewhere, add --json or leave it out".to_owned(),
        ));
    }
    tokio::select! {
        ended = watch(args, &session) => ended,
        // If no handler can be installed, Ctrl-C ends the process as usual.
        Ok(()) = tokio::signal::ctrl_c() => Ok(()),
    }
}

async fn watch(args: &TopArgs, session: &Session) -> Result<(), Failure> {
    let mut answer = ask(args, session).await?;
    loop {
        let next = Instant::now() + EVERY;
        if session.output.json {
            // One line, for programs.
            Output { terminal: false, ..session.output }.json(&answer.raw)?;
        } else {
            let at = moment(now_ms());
            let heading = format!("{}, {at} UTC, every 2 s until Ctrl-C", session.client.address);
            let screen = screen(&heading, &answer.value, session.output.colour, size());
            session.output.print(&format!("{HOME_AND_CLEAR}{screen}"))?;
        }
        sleep_until(next).await;
        // While a store restarts, the last tables stay on the screen.
        answer = loop {
            match ask(args, session).await {
                Ok(answer) => break answer,
                Err(Failure::Unreachable(why)) => {
                    say(why.lines().next().unwrap_or_default());
                    sleep_until(Instant::now() + EVERY).await;
                }
                Err(failure) => return Err(failure),
            }
        };
    }
}

async fn ask(args: &TopArgs, session: &Session) -> Result<Answer<Top>, Failure> {
    let limit = args.limit.to_string();
    session
        .client
        .get(api::TOP, &[("policy", args.policy.as_deref()), ("limit", Some(&limit))])
        .await
}

fn show(answer: &Answer<Top>, output: Output) -> Result<(), Failure> {
    if output.json {
        return output.json(&answer.raw);
    }
    let top = &answer.value;
    if top.is_empty() {
        say(&format!(
            "Stores and proxies have counted no requests lately. {}",
            publishers(&top.publishers, now_ms())
        ));
        if let Some(why) = &top.incomplete {
            say(why);
        }
        return Ok(());
    }
    output.print(&text(top, output.colour))
}

/// The screen of a terminal with `size` rows and columns. Each table is cut to leave room for the
/// others.
fn screen(heading: &str, top: &Top, colour: bool, size: Option<(usize, usize)>) -> String {
    let draw = |top: &Top| format!("{}\n\n{}", clean(heading), text(top, colour));
    let Some((rows, columns)) = size else { return draw(top) };
    let mut top = top.clone();
    let mut drawn = draw(&top);
    let lists = [top.fullest.len(), top.refused.len(), top.would_refuse.len(), top.uncounted.len()];
    let longest = lists.into_iter().max().unwrap_or_default();
    let mut kept = longest.min(rows);
    while drawn.lines().count() > rows && kept > 0 {
        top.fullest.truncate(kept);
        top.refused.truncate(kept);
        top.would_refuse.truncate(kept);
        top.uncounted.truncate(kept);
        drawn = draw(&top);
        kept -= 1;
    }
    clip(&drawn, rows, columns)
}

/// All tables. Policies are shown with their domains if there are several.
fn text(top: &Top, colour: bool) -> String {
    let beyond = top.refused.iter().chain(&top.would_refuse).map(|r| &r.domain);
    let listed = top.fullest.iter().map(|u| &u.domain).chain(beyond);
    let mut domains = listed.chain(top.uncounted.iter().map(|u| &u.domain));
    let first = domains.next();
    let several = domains.any(|domain| Some(domain) != first);
    let name = |domain: &str, policy: &str| {
        if several { format!("{domain}:{policy}") } else { policy.to_owned() }
    };
    let mut out = "Fullest in their current window\n".to_owned();
    if top.fullest.is_empty() {
        out.push_str(" (none)\n");
    } else {
        let mut headings = vec!["full", "used", "quota", "ends in", "policy", "partition"];
        let in_debt = top.fullest.iter().any(|usage| usage.debt > 0);
        let numbers: &[usize] = if in_debt { &[0, 1, 2, 3, 4] } else { &[0, 1, 2, 3] };
        if in_debt {
            headings.insert(2, "debt");
        }
        let mut table = Table::new(&headings, numbers);
        for usage in &top.fullest {
            let mut row = vec![
                full(usage),
                number(usage.used),
                quota(usage),
                duration(usage.reset_ms),
                name(&usage.domain, &usage.policy),
                usage.partition.clone(),
            ];
            if in_debt {
                row.insert(2, debt(usage));
            }
            table.row(weight(usage), row);
        }
        out.push_str(&table.render(colour));
    }
    out.push_str("\nMost refused in the last five minutes\n");
    if top.refused.is_empty() {
        out.push_str(" (none)\n");
    } else {
        out.push_str(&refusals(&top.refused, colour, name));
    }
    if !top.would_refuse.is_empty() {
        out.push_str(
            "\nWould be refused most, but for mode shadow or mark, in the last five minutes\n",
        );
        out.push_str(&refusals(&top.would_refuse, colour, name));
    }
    if !top.uncounted.is_empty() {
        out.push_str("\nNot counted, or without an identity, in the last five minutes\n");
        let mut table = Table::new(&["requests", "policy", "reason"], &[0]);
        for Uncounted { domain, policy, store_error, missing_identity } in &top.uncounted {
            let reasons = [
                (store_error, "the store failed: on_failure decided", Weight::Alarming),
                (missing_identity, "they had no identity: on_missing decided", Weight::Notable),
            ];
            for (count, why, weight) in reasons.into_iter().filter(|(count, ..)| **count > 0) {
                table.row(weight, [number(*count), name(domain, policy), why.to_owned()]);
            }
        }
        out.push_str(&table.render(colour));
    }
    out.push_str(&format!("\n{}\n", publishers(&top.publishers, now_ms())));
    if let Some(why) = &top.incomplete {
        out.push_str(&format!("Incomplete: {}\n", clean(why)));
    }
    out
}

/// Whose calls the tables show, in a sentence.
fn publishers(publishers: &[Publisher], now_ms: u64) -> String {
    let of = |kind| publishers.iter().filter(|of| of.kind == kind).count();
    let counts =
        [(PublisherKind::Store, "store", "stores"), (PublisherKind::Proxy, "proxy", "proxies")]
            .map(|(kind, one, many)| (u64::try_from(of(kind)).unwrap_or(u64::MAX), one, many));
    let counts = counts.into_iter().filter(|(number, ..)| *number > 0);
    let counts: Vec<_> = counts.map(|(number, one, many)| count(number, one, many)).collect();
    let age = |of: &Publisher| duration(now_ms.saturating_sub(of.since_ms));
    let details = if publishers.len() <= NAMED {
        let each = publishers.iter().map(|of| format!("{} for {}", clean(&of.host), age(of)));
        format!(": {}", each.collect::<Vec<_>>().join(", "))
    } else {
        let youngest = publishers.iter().max_by_key(|of| of.since_ms);
        youngest.map_or_else(String::new, |of| format!("; the youngest runs for {}", age(of)))
    };
    format!("Seen by {}{details}.", counts.join(" and "))
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn refusals(list: &[Refused], colour: bool, name: impl Fn(&str, &str) -> String) -> String {
    let mut table = Table::new(&["requests", "policy", "partition"], &[0]);
    for refused in list {
        let requests = at_most(refused.requests, refused.error);
        table.row(
            Weight::Plain,
            [requests, name(&refused.domain, &refused.policy), refused.partition.clone()],
        );
    }
    table.render(colour)
}

/// The first rows of a text, each cut to the width of the terminal: a longer line would wrap and
/// scroll the first ones away.
fn clip(text: &str, rows: usize, columns: usize) -> String {
    let lines: Vec<_> =
        text.lines().take(rows).map(|line| truncate_str(line, columns, "…")).collect();
    // A line feed after the last row would scroll.
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentence_names_a_few_publishers_and_counts_many() {
        let publisher = |kind, host: &str, since_ms| {
            let (id, host) = (String::new(), host.to_owned());
            Publisher { id, kind, host, since_ms }
        };
        let mut all = vec![publisher(PublisherKind::Store, "web-1", 10_000)];
        assert_eq!(publishers(&all, 70_000), "Seen by 1 store: web-1 for 1 min.");
        all.push(publisher(PublisherKind::Proxy, "gw\u{1b}[2J", 65_000));
        let few = publishers(&all, 70_000);
        assert!(few.starts_with("Seen by 1 store and 1 proxy: web-1 for 1 min, gw"), "{few}");
        assert!(few.ends_with("for 5 s.") && !few.contains('\u{1b}'), "{few}");
        all.extend((0..9).map(|_| publisher(PublisherKind::Proxy, "gw", 60_000)));
        let many = "Seen by 1 store and 10 proxies; the youngest runs for 5 s.";
        assert_eq!(publishers(&all, 70_000), many);
    }

    #[test]
    fn lines_are_cut_at_the_edge_and_colours_end() {
        assert_eq!(clip("abcdef\nabc\nlast\n", 2, 4), "abc…\nabc");
        assert_eq!(clip("\u{1b}[31mabcdef\u{1b}[0m\n", 9, 4), "\u{1b}[31mabc…\u{1b}[0m");
        assert_eq!(clip("\u{1b}[31mabcd\u{1b}[0m", 9, 4), "\u{1b}[31mabcd\u{1b}[0m");
        assert_eq!(
            (clip("", 3, 3), clip("ab", 0, 3), clip("äöü", 1, 2)),
            ("".into(), "".into(), "ä…".into())
        );
        assert_eq!(clip("ab", 1, 1), "…");
    }
}
