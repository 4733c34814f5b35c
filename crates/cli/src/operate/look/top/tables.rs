//! The tables of `quotagate top`.

use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use quotagate_operate::api::{Publisher, PublisherKind, Refused, Top, Uncounted, Usage};

use quotagate_protocol::Kind;

use super::TopSort;
use crate::operate::display::{Table, Weight, at_most, debt, full, quota, weight};
use crate::text::{clean, count, duration, number};

/// Most stores, proxies and partitions that are named.
const NAMED: usize = 4;

/// All tables, the one that is sorted by first. Policies are shown with their domains if there are
/// several.
pub(super) fn tables(top: &Top, sort: TopSort, colour: bool) -> String {
    let beyond = top.refused.iter().chain(&top.would_refuse).map(|r| &r.domain);
    let listed = top.fullest.iter().map(|u| &u.domain).chain(beyond);
    let mut domains = listed.chain(top.uncounted.iter().map(|u| &u.domain));
    let first = domains.next();
    let several = domains.any(|domain| Some(domain) != first);
    let name = |domain: &str, policy: &str| {
        if several { format!("{domain}:{policy}") } else { policy.to_owned() }
    };
    let (fullest, refused) = (fullest(top, colour, name), refused(top, colour, name));
    let mut out = match sort {
        TopSort::Refused => format!("{refused}\n{fullest}"),
        TopSort::Full => format!("{fullest}\n{refused}"),
    };
    if !top.slots.is_empty() {
        out.push_str("\nSlots of concurrency limits\n");
        let mut table = Table::new(
            &["held", "limit", "waiting", "longest", "policy", "partition"],
            &[0, 1, 2, 3],
        );
        for of in &top.slots {
            let weight = if of.waiting > 0 { Weight::Notable } else { Weight::Plain };
            let row = [
                if of.left_out > 0 { format!("{}+", number(of.held)) } else { number(of.held) },
                of.limit.map_or_else(|| "-".to_owned(), number),
                number(of.waiting),
                if of.held > 0 { duration(of.longest_ms) } else { String::new() },
                name(&of.domain, &of.policy),
                of.partition.clone(),
            ];
            table.row(weight, row);
        }
        out.push_str(&table.render(colour));
        for of in top.slots.iter().filter(|of| of.left_out > 0).take(NAMED) {
            let workers = count(of.left_out, "worker", "workers");
            let (policy, partition) = (name(&of.domain, &of.policy), clean(&of.partition));
            let _ =
                writeln!(out, "{workers} with slots of {partition} in {policy} cannot be shown");
        }
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
    for sentence in notices(top) {
        out.push_str(&format!("{sentence}\n"));
    }
    out
}

fn fullest(top: &Top, colour: bool, name: impl Fn(&str, &str) -> String) -> String {
    let mut out = "Fullest in their current window\n".to_owned();
    if top.fullest.is_empty() {
        return out + " (none)\n";
    }
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
            ends_in(usage),
            name(&usage.domain, &usage.policy),
            usage.partition.clone(),
        ];
        if in_debt {
            row.insert(2, debt(usage));
        }
        table.row(weight(usage), row);
    }
    out.push_str(&table.render(colour));
    out
}

fn refused(top: &Top, colour: bool, name: impl Fn(&str, &str) -> String) -> String {
    let mut out = "Most refused in the last five minutes\n".to_owned();
    if top.refused.is_empty() {
        out.push_str(" (none)\n");
    } else {
        out.push_str(&refusals(&top.refused, colour, &name));
    }
    if !top.would_refuse.is_empty() {
        out.push_str(
            "\nWould be refused most, but for mode shadow or mark, in the last five minutes\n",
        );
        out.push_str(&refusals(&top.would_refuse, colour, &name));
    }
    out
}

/// When the window of a counter ends; nothing for slots, which have none.
pub(super) fn ends_in(usage: &Usage) -> String {
    if usage.kind == Kind::InFlight { String::new() } else { duration(usage.reset_ms) }
}

/// What is missing, in sentences.
pub(super) fn notices(top: &Top) -> Vec<String> {
    let silent = top.silent.iter().take(NAMED);
    let silent = silent.map(|of| format!("{} for {}", clean(&of.host), duration(of.silent_ms)));
    let silent: Vec<_> = silent.collect();
    let mut sentences = Vec::new();
    if !silent.is_empty() {
        let more = match top.silent.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        sentences.push(format!("Silent native modules: {}{more}.", silent.join(", ")));
    }
    sentences.extend(top.incomplete.iter().map(|why| format!("Incomplete: {}", clean(why))));
    sentences
}

/// Whose calls the tables show, in a sentence.
pub(super) fn publishers(publishers: &[Publisher], now_ms: u64) -> String {
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

pub(super) fn now_ms() -> u64 {
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

#[cfg(test)]
mod tests {
    use quotagate_operate::api::{PartitionSlots, SilentProxy};

    use super::*;
    use crate::operate::look::top::rows::tests::usage;

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
    fn slots_of_concurrency_limits_have_a_table_and_no_end() {
        let usage = Usage { kind: Kind::InFlight, ..usage("exports", "jwt.sub=alice", 4) };
        let slots = PartitionSlots {
            domain: usage.domain.clone(),
            policy: usage.policy.clone(),
            partition: usage.partition.clone(),
            held: 4,
            limit: Some(10),
            waiting: 2,
            longest_ms: 9_000,
            left_out: 0,
        };
        let unknown = PartitionSlots { left_out: 1, held: 0, ..slots.clone() };
        let top = Top { fullest: vec![usage], slots: vec![slots, unknown], ..Top::default() };
        let shown = tables(&top, TopSort::Full, false);
        let rows: Vec<_> =
            shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        let sentence = "\n1 worker with slots of jwt.sub=alice in exports cannot be shown\n";
        assert!(shown.contains(sentence), "{shown}");
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        for row in [
            "40 % 4 10 exports jwt.sub=alice",
            "4 10 2 9 s exports jwt.sub=alice",
            "0+ 10 2 exports jwt.sub=alice",
        ] {
            assert!(rows.iter().any(|shown| *shown == words(row)), "{row}\n{shown}");
        }
    }

    #[test]
    fn silent_hosts_are_named_and_the_order_of_tables_is_chosen() {
        let silent = |n: u64| SilentProxy { host: format!("gw-{n}"), silent_ms: 60_000 * n };
        let top = Top { silent: (3..9).map(silent).collect(), ..Top::default() };
        assert_eq!(
            notices(&top),
            [
                "Silent native modules: gw-3 for 3 min, gw-4 for 4 min, gw-5 for 5 min, gw-6 for 6 min, and 2 more."
            ]
        );
        let first = |sort| tables(&top, sort, false).lines().next().map(str::to_owned);
        assert_eq!(first(TopSort::Refused).unwrap(), "Most refused in the last five minutes");
        assert_eq!(first(TopSort::Full).unwrap(), "Fullest in their current window");
    }
}
