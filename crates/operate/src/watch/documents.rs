//! Policy documents that filters refused, as their workers report them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use quotagate_protocol::dials::{MAX_FAULT, RefusedDocument, Report};
use quotagate_protocol::is_domain;
use serde::{Deserialize, Serialize};

use crate::millis;

/// Most domains whose refused document is shown.
pub const MAX_REFUSED_DOCUMENTS: usize = 4;
/// How long one is shown after the last report of it. Workers with traffic report every 5 s, each
/// time to one of several stores.
const SHOWN: Duration = Duration::from_secs(60);

/// A domain whose document filters refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedDocumentSighting {
    /// The domain.
    pub domain: String,
    /// What is wrong with its document.
    pub document: RefusedDocument,
    /// Milliseconds since the last report of it.
    pub age_ms: u64,
}

/// The documents that filters refused.
#[derive(Default)]
pub struct RefusedDocuments {
    /// The reports of them.
    pub reports: Counter,
    latest: Mutex<BTreeMap<String, (RefusedDocument, Instant)>>,
}

impl RefusedDocuments {
    /// Records a report, if its document was refused.
    pub fn reported(&self, domain: &str, report: &Report, now: Instant) {
        let Some(document) = &report.wrong_document else { return };
        self.reports.inc();
        if !is_sound(domain, document) {
            return;
        }
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.retain(|_, (_, at)| now.saturating_duration_since(*at) < SHOWN);
        let known = latest.get(domain);
        // A proxy without any document is the graver case. Others do not hide it.
        if known.is_some_and(|(known, _)| !known.keeps_last_good) && document.keeps_last_good {
            return;
        }
        if known.is_some() || latest.len() < MAX_REFUSED_DOCUMENTS {
            latest.insert(domain.to_owned(), (document.clone(), now));
        }
    }

    /// The refused documents of the last minute, by their domains.
    pub fn seen(&self, now: Instant) -> Vec<RefusedDocumentSighting> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = latest.iter().map(|(domain, (document, at))| RefusedDocumentSighting {
            domain: domain.clone(),
            document: document.clone(),
            age_ms: millis(now.saturating_duration_since(*at)),
        });
        seen.filter(RefusedDocumentSighting::is_sound).collect()
    }
}

impl RefusedDocumentSighting {
    /// Whether it may be shown: anything may have written it.
    pub fn is_sound(&self) -> bool {
        is_sound(&self.domain, &self.document) && self.age_ms < millis(SHOWN)
    }

    /// What is wrong, in a sentence for operators.
    pub fn sentence(&self) -> String {
        let RefusedDocument { fault, faults, keeps_last_good, number } = &self.document;
        let published =
            if *number == 0 { String::new() } else { format!(", published as number {number}") };
        let in_force = if *keeps_last_good {
            "the last good document stays in force there"
        } else {
            "no document is in force there, and store.on_failure decides every request"
        };
        format!(
            "filters refuse the policy document of {}{published}: {in_force}; faults: {faults}, \
             the first: {fault}",
            self.domain
        )
    }
}

fn is_sound(domain: &str, document: &RefusedDocument) -> bool {
    let printable = |b: u8| (b' '..=b'~').contains(&b);
    is_domain(domain) && document.fault.len() <= MAX_FAULT && document.fault.bytes().all(printable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(fault: &str) -> Report {
        let document = RefusedDocument {
            fault: fault.to_owned(),
            faults: 2,
            keeps_last_good: true,
            number: 0,
        };
        Report { wrong_document: Some(document), ..Report::default() }
    }

    #[test]
    fn refused_document_is_shown_for_a_minute_after_its_last_report() {
        let (documents, start) = (RefusedDocuments::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        documents.reported("shop", &Report::default(), at(0));
        assert_eq!((documents.reports.get(), documents.seen(at(0))), (0, Vec::new()));
        documents.reported("shop", &report("policies: is required"), at(0));
        documents.reported("shop", &report("store: is required"), at(5));
        let seen = documents.seen(at(64));
        assert_eq!(seen.len(), 1);
        assert_eq!(
            seen[0].sentence(),
            "filters refuse the policy document of shop: the last good document stays in force \
             there; faults: 2, the first: store: is required"
        );
        assert_eq!((documents.reports.get(), documents.seen(at(65))), (2, Vec::new()));
    }

    #[test]
    fn proxy_without_any_document_is_not_hidden_by_others() {
        let (documents, start) = (RefusedDocuments::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let mut without = report("policies: is required");
        without.wrong_document.as_mut().unwrap().keeps_last_good = false;
        documents.reported("shop", &report("policies: is required"), at(0));
        documents.reported("shop", &without, at(1));
        documents.reported("shop", &report("policies: is required"), at(2));
        let keeps = |now| documents.seen(now).first().map(|seen| seen.document.keeps_last_good);
        assert_eq!(keeps(at(2)), Some(false));
        documents.reported("shop", &report("policies: is required"), at(62));
        assert_eq!(keeps(at(62)), Some(true), "none for a minute");
    }

    #[test]
    fn hostile_reports_are_counted_and_not_shown() {
        let (documents, now) = (RefusedDocuments::default(), Instant::now());
        for fault in ["\u{1b}[2J", "ä", &"x".repeat(MAX_FAULT + 1)] {
            documents.reported("shop", &report(fault), now);
        }
        documents.reported("No domain", &report(""), now);
        assert_eq!((documents.reports.get(), documents.seen(now)), (4, Vec::new()));
        for domain in ["a", "b", "c", "d", "e", "a"] {
            documents.reported(domain, &report(""), now);
        }
        assert_eq!(documents.seen(now).len(), MAX_REFUSED_DOCUMENTS);
    }
}
