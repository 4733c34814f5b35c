//! `quotagate why`: the policies that refuse a party now, or would in another mode, and what helps.

use quotagate_operate::api::{OverrideEntry, PartyUsage, PatternName, QuotaFrom, UsageReply};
use quotagate_protocol::dials::ALL_POLICIES;
use quotagate_protocol::{Kind, MAX_UNITS, Mode};
use quotagate_quota::request::naming::Name;

use super::usage::ask;
use crate::operate::display::{
    MAX_PROXIES, at_most, capital, covered, end, full, holders, mode as mode_word, quota, say,
    used, without_effect,
};
use crate::operate::failure::{Failure, whole};
use crate::operate::partition::PartitionArgs;
use crate::operate::session::{Common, Session};
use crate::text::{duration, number};

/// The flags of `quotagate why`.
#[derive(Debug, clap::Args)]
pub(crate) struct WhyArgs {
    #[command(flatten)]
    partition: PartitionArgs,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Says who refuses the party, since when, how often and at which quota, and which command helps.
///
/// # Errors
/// When no policy has a counter for the partition now, or the store does not answer.
pub(crate) async fn run(args: &WhyArgs, session: Session) -> Result<(), Failure> {
    let partition = args.partition.encode(&session, "").await?;
    let answer = ask(&session, &partition, false).await?;
    let incomplete = answer.value.incomplete.as_deref();
    if session.output.json {
        session.output.json(&answer.raw)?;
        return whole(incomplete);
    }
    if !answer.value.found.iter().any(PartyUsage::is_over) {
        let of = if incomplete.is_some() { " of those that were found" } else { "" };
        session.output.sentence(&format!("No policy{of} refuses {partition} now."))?;
        let usage = [&["usage", &partition], plain(&partition)].concat();
        say(&format!("See its counters: {}", session.command(&usage)));
    }
    for line in lines(&answer.value, &session) {
        session.output.sentence(&line)?;
    }
    whole(incomplete)
}

/// Who refuses the party, and the commands that help, indented.
pub(super) fn lines(reply: &UsageReply, session: &Session) -> Vec<String> {
    let UsageReply { found, overrides, unmatched, .. } = reply;
    let over: Vec<_> = found.iter().filter(|found| found.is_over()).collect();
    let mut lines = Vec::new();
    for found in &over {
        lines.push(explained(found));
        lines.extend(who_holds(found));
        lines.extend(remedies(found, session).iter().map(|command| format!("  {command}")));
    }
    let is_explained = |entry: &OverrideEntry| {
        over.iter().any(|found| {
            found
                .pattern
                .as_ref()
                .is_some_and(|of| (&of.policy, &of.partition) == (&entry.policy, &entry.partition))
        })
    };
    let covering = overrides.iter().filter(|entry| !is_explained(entry));
    let covering = covering.map(|entry| (covered(entry), entry));
    let useless = unmatched.iter().filter_map(|entry| Some((without_effect(entry)?, entry)));
    for (text, entry) in covering.chain(useless) {
        lines.push(text);
        let clear = clear(&entry.domain, &entry.policy, &entry.partition, session);
        lines.push(format!("  {clear}"));
    }
    lines
}

/// Why a policy refuses a partition, in sentences.
fn explained(found: &PartyUsage) -> String {
    let PartyUsage {
        usage,
        mode,
        refused,
        would_refuse,
        refused_error,
        refused_for_ms,
        settled_if_missing,
        ..
    } = found;
    let policy = format!("{} in {}", usage.policy, usage.domain);
    let verb = match mode {
        Mode::Enforce if passes(found) || usage.quota.is_none() => "refused",
        Mode::Enforce => "refuses",
        Mode::Mark | Mode::Shadow | Mode::Off if passes(found) => "would have refused",
        Mode::Mark | Mode::Shadow | Mode::Off => "would refuse",
    };
    let mut text = format!("{policy} {verb} {}", usage.partition);
    if *mode != Mode::Enforce {
        text.push_str(&format!(", but is in mode {}", mode_word(*mode)));
    }
    let share = match full(usage) {
        share if share.is_empty() || found.has_unread_slots() => String::new(),
        share => format!(" ({share})"),
    };
    let counted = if usage.kind == Kind::InFlight { "slots are held" } else { "units are used" };
    text.push_str(&format!(
        ": {} of {} {counted}{share}. {} {}.",
        used(found),
        quota(usage),
        source(found),
        capital(&end(usage)),
    ));
    text.push_str(&decided_by(&found.documents));
    let happened = [
        (*refused, "refusal", "refusals", "it has been refused"),
        (
            *would_refuse,
            "request let through",
            "requests let through",
            "it would have been refused",
        ),
    ];
    let happened = happened.into_iter().find(|(requests, ..)| *requests > 0);
    if let (Some(for_ms), Some((requests, one, many, verb))) = (refused_for_ms, happened) {
        let word = if requests == 1 { one } else { many };
        text.push_str(&format!(
            " {} {word} in the last five minutes; {verb} for {}, without a long pause.",
            at_most(requests, *refused_error),
            duration(*for_ms)
        ));
    }
    if *settled_if_missing > 0 {
        let (requests, whose) = match settled_if_missing {
            1 => ("request", "its response"),
            _ => ("requests", "their responses"),
        };
        text.push_str(&format!(
            " {} {requests} of all parties cost if_missing in the last five minutes, because \
             {whose} did not say the cost or broke off.",
            number(*settled_if_missing),
        ));
    }
    text
}

/// Who holds the slots of a concurrency limit, and why `release` does not help while their proxies
/// live.
fn who_holds(found: &PartyUsage) -> Option<String> {
    let mut text = holders(found)?;
    let is_full = !passes(found) && found.usage.used > 0 && found.usage.quota != Some(0);
    if is_full && !found.has_unread_slots() && silent(found).next().is_none() {
        text.push_str(
            " They said so within the last 4 s. A proxy that lives takes released slots again \
             within 3 s, and what is admitted meanwhile exceeds the limit.",
        );
    }
    Some(text)
}

/// The proxies that hold slots and say nothing.
fn silent(found: &PartyUsage) -> impl Iterator<Item = &str> {
    let proxies = found.slots.iter().flat_map(|slots| &slots.proxies);
    let silent = proxies.filter(|of| of.silent_ms > 0 && of.held > 0);
    silent.take(MAX_PROXIES).map(|of| &*of.proxy)
}

/// Which documents decide, in a sentence.
fn decided_by(documents: &[u64]) -> String {
    let name = |number: &u64| match number {
        0 => "embedded".to_owned(),
        number => format!("number {number}"),
    };
    let names: Vec<String> = documents.iter().map(name).collect();
    match names.as_slice() {
        [] => String::new(),
        [only] => format!(" The document that decides: {only}."),
        several => {
            format!(" The documents of different proxies that decide: {}.", several.join(", "))
        }
    }
}

/// Whether the partition has units left, so that requests of one unit pass again.
fn passes(found: &PartyUsage) -> bool {
    !found.has_unread_slots() && found.usage.quota.is_some_and(|quota| found.usage.used < quota)
}

/// The flag that a command needs if this partition has the value of a header, a cookie or a query
/// parameter, which may be secret.
fn plain(partition: &str) -> &'static [&'static str] {
    let name = Name::parse(partition, Vec::new());
    if name.is_ok_and(|name| name.written_out().is_some()) { &["--plain"] } else { &[] }
}

/// The commands that let the partition through again, quoted for a shell.
fn remedies(found: &PartyUsage, session: &Session) -> Vec<String> {
    let usage = &found.usage;
    if passes(found) {
        return Vec::new();
    }
    let flags = plain(&usage.partition);
    let domain: &[&str] =
        if session.client.domain.is_some() { &[] } else { &["--domain", &usage.domain] };
    let command = |words: &[&str]| session.command(&[words, flags, domain].concat());
    let (policy, partition) = (usage.policy.as_str(), usage.partition.as_str());
    let raised = usage.quota.filter(|quota| *quota > 0).map(|quota| quota.saturating_mul(2));
    let raised =
        raised.map(|quota| quota.max(usage.used.saturating_add(1)).min(MAX_UNITS).to_string());
    let allow: &[&str] = match &raised {
        Some(quota) => &["--quota", quota],
        None => &["--unlimited"],
    };
    let set = [&["override", "set", policy, partition], allow, &["--for", "1h"]].concat();
    let mut commands = Vec::new();
    match usage.quota_from {
        // Without a raised override, the party would get less.
        QuotaFrom::Override if usage.quota == Some(0) || found.without_override > usage.quota => {
            let own = PatternName { policy: policy.to_owned(), partition: partition.to_owned() };
            let PatternName { policy, partition } = found.pattern.as_ref().unwrap_or(&own);
            commands.push(clear(&usage.domain, policy, partition, session));
        }
        QuotaFrom::Override => {}
        // A dial belongs to a policy, so a partition's flags mean nothing to it.
        QuotaFrom::Dial => {
            commands.push(session.command(&[&["dial", "clear", policy], domain].concat()))
        }
        QuotaFrom::Reservation
        | QuotaFrom::Tier
        | QuotaFrom::Document
        | QuotaFrom::Policy
        | QuotaFrom::Unknown => {}
    }
    let release = ["release", partition, "--policy", policy];
    if found.has_unread_slots() {
        // Until then or until the entry expires, no slot is granted, whatever the quota.
        commands.push(command(&release));
        return commands;
    }
    commands.push(command(&set));
    if usage.quota == Some(0) {
        return commands;
    }
    if usage.kind == Kind::InFlight {
        let of_proxy = |proxy| command(&[&release[..], &["--proxy", proxy]].concat());
        commands.extend(silent(found).map(of_proxy));
    } else if usage.used > 0 {
        commands.push(command(&["reset", policy, partition]));
    }
    commands
}

/// The command that clears an override.
fn clear(domain: &str, policy: &str, partition: &str, session: &Session) -> String {
    let name = match policy {
        ALL_POLICIES => ["--all-policies", party(partition)],
        policy => [policy, partition],
    };
    let domain: &[&str] = if session.client.domain.is_some() { &[] } else { &["--domain", domain] };
    session.command(&[&["override", "clear"], &name[..], plain(party(partition)), domain].concat())
}

/// The party of an override of every partition that contains it; else the partition.
fn party(partition: &str) -> &str {
    partition.strip_suffix(",*").unwrap_or(partition)
}

/// Where the quota comes from, in a sentence.
fn source(found: &PartyUsage) -> String {
    let text = match (found.usage.quota_from, &found.pattern) {
        (QuotaFrom::Override, Some(PatternName { policy, partition })) => {
            let policies = if policy == ALL_POLICIES { "all policies" } else { policy };
            return format!("The quota is a runtime override of {partition} in {policies}.");
        }
        (QuotaFrom::Override, None) => "The quota is a runtime override.",
        (QuotaFrom::Reservation, _) => {
            "The last call named this quota, and the documents of the proxies do not say whose it is: an \
             override of the document, a tier's, a claim's, or the policy's of an earlier document."
        }
        (QuotaFrom::Tier, _) => "The quota is a tier's or a claim's (`tiers`, `quota_from`).",
        (QuotaFrom::Document, _) => "The quota is an override of the document (`overrides`).",
        (QuotaFrom::Dial, _) => "The quota is a dial.",
        (QuotaFrom::Policy, _) => "The quota is the policy's.",
        (QuotaFrom::Unknown, _) => {
            "A tier, a claim or an override of the document decides the quota, and this store has not seen it."
        }
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use quotagate_operate::api::{ProxySlots, SlotsHeld, Usage};

    use super::*;

    fn over() -> PartyUsage {
        let usage = Usage {
            domain: "shop".into(),
            policy: "tiered".into(),
            partition: "jwt.sub=a".into(),
            used: 3,
            debt: 0,
            quota: None,
            quota_from: QuotaFrom::Unknown,
            kind: Kind::Fixed,
            window_s: 60,
            reset_ms: 12_000,
        };
        PartyUsage {
            usage,
            mode: Mode::Enforce,
            gone: false,
            documents: vec![0, 7],
            refused: 5,
            would_refuse: 0,
            refused_error: 3,
            refused_for_ms: Some(120_000),
            settled_if_missing: 0,
            without_override: None,
            pattern: None,
            span: None,
            slots: None,
        }
    }

    #[test]
    fn unknown_quota_is_called_so() {
        let found = over();
        let expected = "tiered in shop refused jwt.sub=a: 3 of unknown units are used. A tier, a claim or an \
                        override of the document decides the quota, and this store has not seen it. Its \
                        window ends in 12 s. The documents of different proxies that decide: embedded, \
                        number 7. 2 to 5 refusals in the last five minutes; it has been refused \
                        for 2 min, without a long pause.";
        assert_eq!(explained(&found), expected);
    }

    #[test]
    fn holders_of_slots_are_named_and_live_ones_take_them_again() {
        let found = over();
        let in_flight = Usage {
            kind: Kind::InFlight,
            window_s: 0,
            used: 4,
            quota: Some(4),
            quota_from: QuotaFrom::Policy,
            ..found.usage.clone()
        };
        let held = PartyUsage { usage: in_flight, documents: vec![], refused: 0, ..found };
        let expected = "tiered in shop refuses jwt.sub=a: 4 of 4 slots are held (100 %). The quota is the \
                        policy's. Its slots are free when the requests end.";
        assert_eq!(explained(&held), expected);
        assert_eq!(who_holds(&held), None);

        let proxy = |name: &str, held, silent_ms| ProxySlots {
            proxy: name.to_owned(),
            held,
            longest_ms: 9_000,
            silent_ms,
            ..ProxySlots::default()
        };
        let of = |waiting, proxies, left_out| PartyUsage {
            slots: Some(SlotsHeld { waiting, proxies, left_out }),
            ..held.clone()
        };
        let live = of(2, vec![proxy("a", 3, 0), proxy("b", 1, 0)], 0);
        let expected = "jwt.sub=a holds 4 slots of tiered, and 2 more are waited for. Proxy a holds 3, the \
                        longest for 9 s; proxy b holds 1, the longest for 9 s. They said so within the last \
                        4 s. A proxy that lives takes released slots again within 3 s, and what is admitted \
                        meanwhile exceeds the limit.";
        assert_eq!(who_holds(&live).unwrap(), expected);
        let silent = of(1, vec![proxy("a", 4, 5_500), proxy("b", 0, 0)], 0);
        let expected = "jwt.sub=a holds 4 slots of tiered, and 1 more is waited for. Proxy a holds 4, the \
                        longest for 9 s, and has been silent for 6 s; proxy b holds 0.";
        assert_eq!(who_holds(&silent).unwrap(), expected);

        let mut unread = of(0, vec![proxy("a", 1, 0)], 1);
        unread.usage.used = 1;
        let expected = "tiered in shop refuses jwt.sub=a: 1+ of 4 slots are held. The quota is the policy's. \
                        Its slots are free when the requests end.";
        assert_eq!(explained(&unread), expected);
        let expected = "jwt.sub=a holds 1+ slots of tiered. Proxy a holds 1, the longest for 9 s; 1 worker \
                        cannot be shown, and no slot is granted while that is so.";
        assert_eq!(who_holds(&unread).unwrap(), expected);
    }

    #[test]
    fn written_out_header_needs_the_flag_that_says_it_is_no_secret() {
        assert_eq!(plain("jwt.sub=a,header.x-tenant=b"), ["--plain"]);
        let digest = "header.x-key=~0123456789abcdef0123456789abcdef";
        assert!(plain("jwt.sub=a").is_empty() && plain(digest).is_empty());
    }
}
