//! The policy documents that proxies have in force, as their workers report them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::dials::Report;
use quotagate_protocol::is_domain;
use serde::{Deserialize, Serialize};

use crate::record::{is_document_digest, is_process_id};

/// Most documents over all domains.
const MAX_DOCUMENTS: usize = 256;
/// Most proxies of a document.
const MAX_PROXIES: usize = 4096;
/// Most proxies of a document that a process publishes.
pub const MAX_SHOWN_PROXIES: usize = 128;
/// How long one counts after the last report of it. Workers with traffic report every 5 s, each
/// time to one of several stores.
const SHOWN: Duration = Duration::from_secs(60);

/// A document, and the proxies that report it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentSighting {
    /// The domain.
    pub domain: String,
    /// The digest of the document.
    pub digest: String,
    /// The names of the processes.
    pub proxies: Vec<String>,
}

/// When each proxy last reported a document.
type Proxies = HashMap<Box<str>, Instant>;

/// Documents by domain and digest.
type ProxiesOfDocuments = BTreeMap<(Box<str>, Box<str>), Proxies>;

/// The documents in force.
#[derive(Default)]
pub struct ReportedDocuments(Mutex<ProxiesOfDocuments>);

impl ReportedDocuments {
    /// Records a report, if it names its proxy and its document.
    pub fn reported(&self, domain: &str, report: &Report, now: Instant) {
        if !is_domain(domain)
            || !is_document_digest(&report.digest)
            || !is_process_id(&report.proxy)
        {
            return;
        }
        let mut documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (Box::from(domain), Box::from(&*report.digest));
        if documents.len() >= MAX_DOCUMENTS && !documents.contains_key(&name) {
            documents.retain(|_, proxies| proxies.values().any(|at| is_recent(*at, now)));
            if documents.len() >= MAX_DOCUMENTS {
                return;
            }
        }
        let proxies = documents.entry(name).or_default();
        if proxies.len() >= MAX_PROXIES && !proxies.contains_key(&*report.proxy) {
            proxies.retain(|_, at| is_recent(*at, now));
            if proxies.len() >= MAX_PROXIES {
                return;
            }
        }
        proxies.insert(Box::from(&*report.proxy), now);
    }

    /// The documents that proxies reported within the last minute.
    pub fn seen(&self, now: Instant) -> Vec<DocumentSighting> {
        let documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sightings = documents.iter().map(|((domain, digest), proxies)| {
            let recent = proxies.iter().filter(|(_, at)| is_recent(**at, now));
            let mut proxies: Vec<_> = recent.map(|(proxy, _)| proxy.to_string()).collect();
            proxies.sort_unstable();
            DocumentSighting { domain: domain.to_string(), digest: digest.to_string(), proxies }
        });
        sightings.filter(|sighting| !sighting.proxies.is_empty()).collect()
    }
}

impl DocumentSighting {
    /// Whether it may be shown: anything may have written it.
    pub fn is_sound(&self) -> bool {
        is_domain(&self.domain)
            && is_document_digest(&self.digest)
            && self.proxies.len() <= MAX_SHOWN_PROXIES
            && self.proxies.iter().all(|proxy| is_process_id(proxy))
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < SHOWN
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(proxy: usize, digest: &str) -> Report {
        let (proxy, digest) = (format!("{proxy:016x}"), digest.to_owned());
        Report { proxy, digest, ..Report::default() }
    }

    #[test]
    fn document_counts_for_a_minute_after_the_last_report_of_each_proxy() {
        let (documents, start) = (ReportedDocuments::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let counts = |s| -> Vec<(String, usize)> {
            let seen = documents.seen(at(s)).into_iter();
            seen.map(|sighting| (sighting.digest, sighting.proxies.len())).collect()
        };
        documents.reported("shop", &report(1, "aaaaaaaaaaaa"), at(0));
        documents.reported("shop", &report(1, "aaaaaaaaaaaa"), at(5));
        documents.reported("shop", &report(2, "bbbbbbbbbbbb"), at(10));
        documents.reported("shop", &report(3, "bbbbbbbbbbbb"), at(20));
        let [a, b] = ["aaaaaaaaaaaa", "bbbbbbbbbbbb"].map(str::to_owned);
        assert_eq!(counts(64), [(a, 1), (b.clone(), 2)]);
        assert_eq!(counts(70), [(b, 1)]);
        assert_eq!(counts(80), []);
    }

    #[test]
    fn hostile_reports_are_ignored_and_documents_are_bounded() {
        let (documents, now) = (ReportedDocuments::default(), Instant::now());
        for (proxy, digest) in
            [("", "aaaaaaaaaaaa"), ("1", "aaaaaaaaaaaa"), ("0123456789abcdef", "x")]
        {
            let (proxy, digest) = (proxy.to_owned(), digest.to_owned());
            documents.reported("shop", &Report { proxy, digest, ..Report::default() }, now);
        }
        documents.reported("No domain", &report(1, "aaaaaaaaaaaa"), now);
        assert_eq!(documents.seen(now), []);
        for number in 0..2 * MAX_DOCUMENTS {
            documents.reported("shop", &report(1, &format!("{number:012x}")), now);
        }
        for proxy in 0..2 * MAX_PROXIES {
            documents.reported("shop", &report(proxy, "000000000000"), now);
        }
        let seen = documents.seen(now);
        assert_eq!((seen.len(), seen[0].proxies.len()), (MAX_DOCUMENTS, MAX_PROXIES));
    }
}
