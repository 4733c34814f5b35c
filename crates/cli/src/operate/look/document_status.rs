//! `quotagate document status`: which proxies have the published document, and which refuse it.

use std::collections::BTreeSet;

use quotagate_operate::api::{
    self, DocumentInfo, DocumentKind, DocumentRecord, DocumentState, PublishedDocuments,
    ServiceRules, TakenUp, WorkerDocument,
};

use crate::operate::display::{Table, Weight, say};
use crate::operate::failure::Failure;
use crate::operate::session::Session;
use crate::text::{count, moment, number};

/// Most rows of each kind in the table of proxies.
const MAX_ROWS: usize = 30;

/// Shows what was published last, and what proxies made of it.
///
/// # Errors
/// When the store refuses, or does not answer.
pub(crate) async fn show(session: &Session) -> Result<(), Failure> {
    let answer = session.client.get::<PublishedDocuments>(api::DOCUMENTS, &[]).await?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    let status = answer.value;
    status.incomplete.iter().for_each(|why| say(why));
    let PublishedDocuments { domain, documents, in_force, taken_up, .. } = &status;
    let last = documents.first();
    let rules = last.filter(|last| !last.is_withdrawal() && last.kind == DocumentKind::Rules);
    let published = last.filter(|last| !last.is_withdrawal() && rules.is_none());
    let share = published.filter(|last| last.percent.is_some());
    let others = share.and(documents.get(1)).filter(|others| !others.is_withdrawal());
    session.output.sentence(&match last {
        None if status.lost => format!("{domain}: nobody knows what is published"),
        None => format!("{domain}: no document was published; the proxies' own decide"),
        Some(last) => format!("{domain}: {}", sentence(last)),
    })?;
    if share.is_some() {
        session.output.sentence(&match others {
            Some(others) => format!("The other proxies: {}", sentence(others)),
            None => "The other proxies: their own documents".to_owned(),
        })?;
    }
    if published.is_some() && taken_up.live > 0 {
        session.output.sentence(&followers(taken_up))?;
    }
    if !in_force.documents.is_empty() {
        let mut table = Table::new(&["proxies", "document", "number", ""], &[0, 2]);
        for of in &in_force.documents {
            let is = |record: &DocumentRecord| {
                (record.number, &record.digest) == (of.number, &of.digest)
            };
            let is_published = published.is_some_and(is);
            let is_of_others = share.is_some() && others.map_or(of.number == 0, is);
            let for_share = share.and_then(|last| last.percent);
            let for_share = for_share.map(|percent| format!("published for {percent} %"));
            let (what, weight) = match (of.number, is_published, published) {
                (_, true, _) => (for_share.as_deref().unwrap_or("published"), Weight::Plain),
                _ if is_of_others => ("the others", Weight::Plain),
                (0, _, None) => ("their own", Weight::Plain),
                (0, ..) => ("their own: not live, or not taken up yet", Weight::Notable),
                _ => ("behind", Weight::Notable),
            };
            let row = [number(of.proxies), of.digest.clone(), or_dash(of.number), what.to_owned()];
            table.row(weight, row);
        }
        session.output.print(&table.render(session.output.colour))?;
    }
    if let Some(share) = share {
        let number = others.map_or(0, |others| others.number);
        session.output.sentence(&format!(
            "Refused in the last five minutes: {} with number {}, {} of the other proxies",
            refused_share(&in_force.documents, share.number),
            share.number,
            refused_share(&in_force.documents, number)
        ))?;
    }
    by_proxy(&status, session)?;
    for sentence in &status.refused {
        session.output.sentence(sentence)?;
    }
    by_service(&status.services, session)?;
    if rules.is_some() && !status.services.iter().any(|service| service.follows) {
        say(
            "No rate limit service is known to follow it. Services that run with --published take \
             it up within 10 s.",
        );
    }
    if published.is_some() && in_force.documents.iter().all(|of| of.number == 0) {
        say(
            "No proxy has taken a published document up: each does whose own document says live: true, within 10 s.",
        );
    }
    if !status.durable && (published.is_some() || rules.is_some()) {
        say("This store keeps it in memory: it is gone when the process ends.");
    }
    Ok(())
}

/// How many live proxies have what is published.
fn followers(TakenUp { have, live, since_ms }: &TakenUp) -> String {
    let verb = if *live == 1 { "has" } else { "have" };
    let since = since_ms.map_or_else(String::new, |ms| {
        format!(", the last worker of them since {} UTC", moment(ms))
    });
    format!(
        "{have} of {} {verb} it in all workers{since}",
        count(*live, "live proxy", "live proxies")
    )
}

/// The documents by proxy and worker, and the proxies that are silent.
fn by_proxy(status: &PublishedDocuments, session: &Session) -> Result<(), Failure> {
    let headings = ["proxy", "workers", "document", "number", "since (UTC)", ""];
    let mut table = Table::new(&headings, &[3]);
    let shown = status.proxies.iter().take(MAX_ROWS);
    for of in shown.clone() {
        let state = match of.state {
            DocumentState::Behind if of.refuses > 0 => format!("refuses number {}", of.refuses),
            DocumentState::Behind => "behind".to_owned(),
            DocumentState::Unknown => "-".to_owned(),
            DocumentState::Published => "published".to_owned(),
            DocumentState::Own if of.live => "its own".to_owned(),
            DocumentState::Own => "its own, not live".to_owned(),
        };
        let since = of.workers.iter().map(|worker| worker.since_ms).max();
        let weight =
            if of.state == DocumentState::Behind { Weight::Notable } else { Weight::Plain };
        let row = [
            of.proxy.clone(),
            ranges(&of.workers),
            of.digest.clone(),
            or_dash(of.number),
            since.map_or_else(String::new, moment),
            state,
        ];
        table.row(weight, row);
    }
    for of in status.silent.iter().take(MAX_ROWS) {
        let row = [
            of.proxy.clone(),
            "-".to_owned(),
            of.digest.clone(),
            or_dash(of.number),
            moment(of.last_ms),
            "silent since then".to_owned(),
        ];
        table.row(Weight::Notable, row);
    }
    if shown.len() == 0 && status.silent.is_empty() {
        return Ok(());
    }
    session.output.print(&table.render(session.output.colour))?;
    let silent = u64::try_from(status.silent.len()).unwrap_or(u64::MAX);
    if silent > 0 {
        session.output.sentence(&format!(
            "{} silent for a minute",
            count(silent, "proxy has been", "proxies have been")
        ))?;
    }
    let beyond = |rows: usize| u64::try_from(rows.saturating_sub(MAX_ROWS)).unwrap_or(u64::MAX);
    let more = beyond(status.proxies.len()).saturating_add(beyond(status.silent.len()));
    let more = more.saturating_add(status.left_out);
    if more > 0 {
        say(&format!(
            "{} left out; --json has 1,024 of each kind",
            count(more, "row is", "rows are")
        ));
    }
    Ok(())
}

/// The rules of each rate limit service, and why it lacks what is published.
fn by_service(services: &[ServiceRules], session: &Session) -> Result<(), Failure> {
    if services.is_empty() {
        return Ok(());
    }
    let headings = ["service", "host", "rules", "number", "since (UTC)", ""];
    let mut table = Table::new(&headings, &[3]);
    for of in services.iter().take(MAX_ROWS) {
        let (state, weight) = match of.state {
            DocumentState::Behind if of.refuses > 0 => {
                (format!("refuses number {}", of.refuses), Weight::Notable)
            }
            DocumentState::Behind => ("behind".to_owned(), Weight::Notable),
            DocumentState::Unknown => ("-".to_owned(), Weight::Plain),
            DocumentState::Published => ("published".to_owned(), Weight::Plain),
            DocumentState::Own if of.follows => ("its own".to_owned(), Weight::Plain),
            DocumentState::Own if of.complaint.is_empty() => {
                ("its own, without --published".to_owned(), Weight::Plain)
            }
            DocumentState::Own => ("its own, does not follow".to_owned(), Weight::Notable),
        };
        let digest = if of.number == 0 { "-".to_owned() } else { of.digest.clone() };
        let (service, host) = (of.service.clone(), of.host.clone());
        let row = [service, host, digest, or_dash(of.number), moment(of.since_ms), state];
        table.row(weight, row);
    }
    session.output.print(&table.render(session.output.colour))?;
    let more = u64::try_from(services.len().saturating_sub(MAX_ROWS)).unwrap_or(u64::MAX);
    if more > 0 {
        say(&format!("{} left out; --json has all", count(more, "service is", "services are")));
    }
    // Several services have the same complaint.
    let complaints = services.iter().map(|of| &*of.complaint).filter(|text| !text.is_empty());
    for complaint in complaints.collect::<BTreeSet<_>>() {
        session.output.sentence(complaint)?;
    }
    Ok(())
}

/// The indexes of workers, as ranges: `0-3, 7`.
fn ranges(workers: &[WorkerDocument]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for WorkerDocument { worker, .. } in workers {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*worker) => *last = *worker,
            _ => ranges.push((*worker, *worker)),
        }
    }
    let range = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// The number of a document, which its own one has not.
fn or_dash(number: u64) -> String {
    if number == 0 { "-".to_owned() } else { number.to_string() }
}

/// How many of the requests of the proxies with this number were refused.
fn refused_share(documents: &[DocumentInfo], number: u64) -> String {
    let of_number = documents.iter().filter(|of| of.number == number);
    let (requests, refused) = of_number.fold((0_u64, 0_u64), |(requests, refused), of| {
        (requests.saturating_add(of.requests), refused.saturating_add(of.refused))
    });
    match requests {
        0 => "no requests".to_owned(),
        _ => format!(
            "{:.1} % of {}",
            100.0 * refused as f64 / requests as f64,
            count(requests, "request", "requests")
        ),
    }
}

/// For whom and until when a document is published.
pub(crate) fn limits(record: &DocumentRecord) -> Option<String> {
    let share = record.percent.map(|percent| format!("for {percent} % of the proxies"));
    let until = record.until_ms.map(|until| format!("until {} UTC", moment(until)));
    let limits: Vec<String> = share.into_iter().chain(until).collect();
    (!limits.is_empty()).then(|| limits.join(" "))
}

/// The digest of a document, and its kind if that is not the common one.
pub(crate) fn called(record: &DocumentRecord) -> String {
    match record.kind {
        DocumentKind::Policies => record.digest.clone(),
        DocumentKind::Rules => format!("rules {}", record.digest),
    }
}

/// What was published, by whom, when.
pub(crate) fn sentence(record: &DocumentRecord) -> String {
    let DocumentRecord { number, by, at_ms, .. } = record;
    let note = record.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
    let back =
        record.rollback_to.map_or_else(String::new, |to| format!(", the content of number {to}"));
    let what = if record.is_withdrawal() {
        "withdrawn".to_owned()
    } else {
        format!("{}{back}, published", called(record))
    };
    let limits = limits(record).map_or_else(String::new, |limits| format!(" {limits}"));
    format!("number {number} ({what} at {} UTC by {by}){limits}{note}", moment(*at_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_shown_as_ranges() {
        let of = |workers: &[u32]| {
            let since = |worker: &u32| WorkerDocument { worker: *worker, since_ms: 0 };
            ranges(&workers.iter().map(since).collect::<Vec<_>>())
        };
        assert_eq!(of(&[0, 1, 2, 3, 7, 9, 10]), "0-3, 7, 9-10");
        assert_eq!(of(&[u32::MAX]), u32::MAX.to_string());
        assert_eq!(of(&[]), "");
    }
}
