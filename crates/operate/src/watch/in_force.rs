//! The policy documents that proxies have in force, as their workers report them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::dials::Report;
use quotagate_protocol::{MAX_UNITS, is_domain};
use serde::{Deserialize, Serialize};

use super::policy::{Step, add, counts_of, refused_of};
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
/// Each worker of a live proxy reports every 5 s, with traffic or without. A document that none has
/// reported for this long before the last report was replaced.
const REPLACED: Duration = Duration::from_secs(8);
/// A proxy that is silent for longer is gone.
const REMEMBERED: Duration = Duration::from_secs(600);

/// A document, and the proxies that report it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentSighting {
    /// The domain.
    pub domain: String,
    /// The digest of the document.
    pub digest: String,
    /// Its number, if it is a published one.
    #[serde(default, skip_serializing_if = "is_embedded")]
    pub number: u64,
    /// The names of the processes.
    pub proxies: Vec<String>,
    /// Their requests in the last five minutes, and how many of them were refused. A request counts
    /// for each policy that applied to it.
    #[serde(default)]
    pub requests: [u64; 2],
}

/// Whether this is the number of embedded documents.
pub const fn is_embedded(number: &u64) -> bool {
    *number == 0
}

/// What was reported of a document.
#[derive(Default)]
struct Reported {
    /// When each proxy last reported it.
    proxies: HashMap<Box<str>, Instant>,
    requests: VecDeque<Step>,
}

/// Documents by domain, digest and number.
type ProxiesOfDocuments = BTreeMap<(Box<str>, Box<str>, u64), Reported>;

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
        let name = (Box::from(domain), Box::from(&*report.digest), report.number);
        if documents.len() >= MAX_DOCUMENTS && !documents.contains_key(&name) {
            documents.retain(|_, of| of.proxies.values().any(|at| is_recent(*at, now)));
            if documents.len() >= MAX_DOCUMENTS {
                return;
            }
        }
        let Reported { proxies, requests } = documents.entry(name).or_default();
        for policy in &report.policies {
            add(requests, counts_of(policy), now);
        }
        if proxies.len() >= MAX_PROXIES && !proxies.contains_key(&*report.proxy) {
            proxies.retain(|_, at| is_recent(*at, now));
            if proxies.len() >= MAX_PROXIES {
                return;
            }
        }
        proxies.insert(Box::from(&*report.proxy), now);
    }

    /// The proxies of a domain that have been silent for a minute, of those that reported a
    /// published document last, within ten minutes. Such a proxy reports every 5 s, with traffic or
    /// without; others are silent without traffic.
    pub fn silent(&self, domain: &str, now: Instant) -> BTreeSet<String> {
        let documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_domain = documents.iter().filter(|((of, ..), _)| **of == *domain);
        let mut last: BTreeMap<&str, (Instant, u64)> = BTreeMap::new();
        for ((.., number), of) in of_domain {
            for (proxy, at) in &of.proxies {
                let last = last.entry(proxy).or_insert((*at, *number));
                *last = (*last).max((*at, *number));
            }
        }
        let is_silent = |(at, number): (Instant, u64)| {
            number > 0 && !is_recent(at, now) && now.saturating_duration_since(at) < REMEMBERED
        };
        let silent = last.into_iter().filter(|(_, last)| is_silent(*last));
        silent.map(|(proxy, _)| proxy.to_owned()).collect()
    }

    /// The documents that proxies reported within the last minute.
    pub fn seen(&self, now: Instant) -> Vec<DocumentSighting> {
        let documents = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The last report of each proxy that has had a published document.
        let mut last: BTreeMap<(&str, &str), Instant> = BTreeMap::new();
        for ((domain, ..), of) in documents.iter() {
            for (proxy, at) in &of.proxies {
                let last = last.entry((domain, proxy)).or_insert(*at);
                *last = (*last).max(*at);
            }
        }
        let live: BTreeSet<(&str, &str)> = documents
            .iter()
            .filter(|((.., number), _)| *number > 0)
            .flat_map(|((domain, ..), of)| of.proxies.keys().map(|proxy| (&**domain, &**proxy)))
            .collect();
        let sightings = documents.iter().map(|((domain, digest, number), of)| {
            let is_replaced = |proxy: &str, at: Instant| {
                let name = (&**domain, proxy);
                let last = last.get(&name).filter(|_| live.contains(&name));
                last.is_some_and(|last| last.saturating_duration_since(at) > REPLACED)
            };
            let recent = of
                .proxies
                .iter()
                .filter(|(proxy, at)| is_recent(**at, now) && !is_replaced(proxy, **at));
            let mut proxies: Vec<_> = recent.map(|(proxy, _)| proxy.to_string()).collect();
            proxies.sort_unstable();
            let (domain, digest) = (domain.to_string(), digest.to_string());
            let requests = refused_of(&of.requests, now);
            DocumentSighting { domain, digest, number: *number, proxies, requests }
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
            && self.requests.iter().all(|requests| *requests <= MAX_UNITS)
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
    fn requests_of_each_document_are_those_of_the_last_five_minutes() {
        let (documents, start) = (ReportedDocuments::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let report = |proxy, digest, refused: u64| {
            let policy = |name: &str| {
                serde_json::json!({"name": name, "quota": 1, "window_s": 1, "stagger": false,
                    "mode": "enforce", "on_failure": "allow", "admitted": 10, "refused": refused,
                    "missing_identity": 4})
            };
            let policies = [policy("a"), policy("b")].map(|policy| serde_json::from_value(policy));
            Report { policies: policies.map(Result::unwrap).into(), ..report(proxy, digest) }
        };
        documents.reported("shop", &report(1, "aaaaaaaaaaaa", 5), at(0));
        for s in [290, 320] {
            documents.reported("shop", &report(1, "aaaaaaaaaaaa", 1), at(s));
            documents.reported("shop", &report(2, "bbbbbbbbbbbb", 0), at(s));
        }
        let requests = |s| -> Vec<[u64; 2]> {
            documents.seen(at(s)).into_iter().map(|sighting| sighting.requests).collect()
        };
        assert_eq!(requests(299), [[52, 12], [20, 0]]);
        assert_eq!(requests(321), [[44, 4], [40, 0]]);
    }

    #[test]
    fn proxy_with_a_published_document_is_silent_after_a_minute_and_gone_after_ten() {
        let (documents, start) = (ReportedDocuments::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let report = |proxy, number| Report { number, ..report(proxy, "aaaaaaaaaaaa") };
        documents.reported("shop", &report(1, 7), at(0));
        documents.reported("shop", &report(2, 0), at(0));
        // Back to the embedded document, and the other way round.
        documents.reported("shop", &report(3, 7), at(0));
        documents.reported("shop", &report(3, 0), at(1));
        documents.reported("shop", &report(4, 0), at(0));
        documents.reported("shop", &report(4, 8), at(1));
        let silent = |s| -> Vec<String> { documents.silent("shop", at(s)).into_iter().collect() };
        assert_eq!(silent(59), [""; 0]);
        assert_eq!(silent(61), ["0000000000000001", "0000000000000004"]);
        assert_eq!(silent(600), ["0000000000000004"]);
        assert_eq!(documents.silent("other", at(61)).len(), 0);
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
