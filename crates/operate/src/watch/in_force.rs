//! The policy documents that proxies have in force, as their workers report them to this process.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::dials::{DocumentVersion, Report};
use quotagate_protocol::is_domain;

use super::in_force_sightings::{
    DocumentSighting, MAX_SHOWN_WORKERS, ProxySighting, REPLACED_S, SHOWN, WorkerSighting,
};
use super::policy::{Step, add_to, counts_of, refused_of};
use crate::record::{is_document_digest, is_process_id};

/// Most documents over all domains, and of one domain. Beyond that, one that no worker has reported
/// for some seconds makes room for another one.
const MAX_DOCUMENTS: usize = 256;
const MAX_OF_DOMAIN: usize = 64;
/// Most workers over all documents.
const MAX_WORKERS: usize = 65_536;
/// How often workers that report no more are forgotten.
const SWEPT: Duration = Duration::from_secs(10);
/// The longest time for which a document can be in force, in seconds.
const MOST_S: u64 = 100 * 366 * 24 * 60 * 60;
/// A proxy that is silent for longer is gone.
const REMEMBERED: Duration = Duration::from_secs(600);

/// A proxy that should report and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentWorkers {
    /// The name of its process.
    pub proxy: String,
    /// The document that it reported last.
    pub document: DocumentVersion,
    /// When it did.
    pub at: Instant,
}

/// The last report of a worker that has some document.
#[derive(Clone, Copy)]
struct WorkerReport {
    at: Instant,
    in_force_s: u64,
    live: bool,
    refuses: u64,
}

/// The last reports of a document, by the names of processes and the index of their worker.
type Workers = HashMap<(Box<str>, u32), WorkerReport>;

/// The domain, the digest and the number of a document.
type DocumentName = (Box<str>, Box<str>, u64);

/// The workers of all documents.
type WorkersOfDocuments = BTreeMap<DocumentName, Workers>;

/// The documents in force.
#[derive(Default)]
pub struct ReportedDocuments {
    workers: Mutex<WorkersOfDocuments>,
    /// The requests of the last five minutes, of documents that have workers.
    requests: Mutex<BTreeMap<DocumentName, VecDeque<Step>>>,
    /// When there was no room, and workers that report no more were dropped.
    swept: Mutex<Option<Instant>>,
}

impl ReportedDocuments {
    /// Records a report, if it names its proxy and its document.
    pub fn reported(&self, domain: &str, report: &Report, now: Instant) {
        if !is_domain(domain)
            || !is_document_digest(&report.digest)
            || !is_process_id(&report.proxy)
        {
            return;
        }
        let mut documents = self.lock();
        let name = (Box::from(domain), Box::from(&*report.digest), report.number);
        if !documents.contains_key(&name) && !has_room(&mut documents, domain, now) {
            return;
        }
        // VMs of the Wasm form that follow each other have ever higher numbers.
        let index = u32::try_from(MAX_SHOWN_WORKERS).map_or(0, |most| report.worker % most);
        let worker = (Box::from(&*report.proxy), index);
        let is_known = documents.get(&name).is_some_and(|workers| workers.contains_key(&worker));
        let is_full = |documents: &WorkersOfDocuments| {
            documents.values().map(HashMap::len).sum::<usize>() >= MAX_WORKERS
        };
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.is_none_or(|at| now.saturating_duration_since(at) >= SWEPT) {
            *swept = Some(now);
            let kept = if is_full(&documents) { SHOWN } else { REMEMBERED };
            documents.retain(|_, workers| {
                workers.retain(|_, report| now.saturating_duration_since(report.at) < kept);
                !workers.is_empty()
            });
        }
        drop(swept);
        if !is_known && is_full(&documents) {
            return;
        }
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if !requests.contains_key(&name) {
            requests.retain(|name, _| documents.contains_key(name));
        }
        let recent = requests.entry(name.clone()).or_default();
        report.policies.iter().for_each(|policy| add_to(recent, counts_of(policy), now));
        let refused = report.wrong_document.as_ref();
        let report = WorkerReport {
            at: now,
            in_force_s: report.in_force_s.min(MOST_S),
            live: report.live,
            refuses: refused.map_or(0, |refused| refused.number),
        };
        documents.entry(name).or_default().insert(worker, report);
    }

    /// The domains of all documents that are remembered, also of proxies that are silent now.
    pub fn domains(&self) -> BTreeSet<String> {
        self.lock().keys().map(|(domain, ..)| domain.to_string()).collect()
    }

    /// The proxies of a domain that have been silent for a minute, of those that take published
    /// documents up and reported within ten minutes. Such a proxy reports every 5 s, with traffic
    /// or without; others are silent without traffic.
    pub fn silent(&self, domain: &str, now: Instant) -> Vec<SilentWorkers> {
        let documents = self.lock();
        let mut last: BTreeMap<&str, (Instant, bool, u64, &str)> = BTreeMap::new();
        for ((_, digest, number), workers) in
            documents.iter().filter(|((of, ..), _)| **of == *domain)
        {
            for ((proxy, _), WorkerReport { at, live, .. }) in workers {
                let report = (*at, *live, *number, &**digest);
                let last = last.entry(proxy).or_insert(report);
                *last = (*last).max(report);
            }
        }
        let is_silent =
            |at: Instant| !is_recent(at, now) && now.saturating_duration_since(at) < REMEMBERED;
        let silent = last.into_iter().filter(|(_, (at, live, ..))| *live && is_silent(*at));
        let silent = silent.map(|(proxy, (at, _, number, digest))| SilentWorkers {
            proxy: proxy.to_owned(),
            document: DocumentVersion { number, digest: digest.to_owned() },
            at,
        });
        silent.collect()
    }

    /// The documents that proxies reported within the last minute. One that a live worker has
    /// replaced may be among them: see [`super::merged`].
    pub fn seen(&self, now: Instant) -> Vec<DocumentSighting> {
        let documents = self.lock();
        let of_documents = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let sightings = documents.iter().map(|(name, workers)| {
            let (domain, digest, number) = name;
            let recent = of_documents.get(name);
            let [requests, refused] = recent.map_or([0; 2], |recent| refused_of(recent, now));
            let mut proxies: BTreeMap<&str, ProxySighting> = BTreeMap::new();
            for ((proxy, worker), report) in workers {
                if !is_recent(report.at, now) {
                    continue;
                }
                let age_s = now.saturating_duration_since(report.at).as_secs();
                let seen = proxies.entry(proxy).or_insert_with(|| ProxySighting {
                    proxy: proxy.to_string(),
                    live: false,
                    refuses: 0,
                    workers: Vec::new(),
                });
                seen.live |= report.live;
                seen.refuses = seen.refuses.max(report.refuses);
                let in_force_s = report.in_force_s.saturating_add(age_s);
                seen.workers.push(WorkerSighting(*worker, in_force_s, age_s));
            }
            proxies.values_mut().for_each(|seen| seen.workers.sort_unstable());
            DocumentSighting {
                domain: domain.to_string(),
                digest: digest.to_string(),
                number: *number,
                proxies: proxies.into_values().collect(),
                requests,
                refused,
                is_cut: false,
            }
        });
        sightings.filter(|sighting| !sighting.proxies.is_empty()).collect()
    }

    /// Nothing panics while it is locked.
    fn lock(&self) -> MutexGuard<'_, WorkersOfDocuments> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a further document of the domain finds room. The one that was reported longest ago makes
/// it, if no worker reports that one any more.
fn has_room(documents: &mut WorkersOfDocuments, domain: &str, now: Instant) -> bool {
    let of_domain = documents.keys().filter(|(of, ..)| **of == *domain).count();
    let domain = (of_domain >= MAX_OF_DOMAIN).then_some(domain);
    if domain.is_none() && documents.len() < MAX_DOCUMENTS {
        return true;
    }
    let last = |workers: &Workers| workers.values().map(|report| report.at).max();
    let candidates =
        documents.iter().filter(|((of, ..), _)| domain.is_none_or(|domain| **of == *domain));
    let oldest = candidates
        .map(|(name, workers)| (last(workers), name))
        .min()
        .map(|(at, name)| (at, name.clone()));
    let Some((at, name)) = oldest else { return false };
    let is_reported =
        at.is_some_and(|at| now.saturating_duration_since(at).as_secs() <= REPLACED_S);
    if !is_reported {
        documents.remove(&name);
    }
    !is_reported
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < SHOWN
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::in_force_sightings::merged;
    use super::*;
    use crate::record::documents::NamedDocuments;

    const A: &str = "aaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbb";

    fn report(proxy: usize, digest: &str) -> Report {
        let (proxy, digest) = (format!("{proxy:016x}"), digest.to_owned());
        Report { proxy, digest, ..Report::default() }
    }

    fn live(proxy: usize, worker: u32, digest: &str, number: u64, in_force_s: u64) -> Report {
        Report { worker, number, in_force_s, live: true, ..report(proxy, digest) }
    }

    fn seen(documents: &ReportedDocuments, now: Instant) -> Vec<DocumentSighting> {
        merged(documents.seen(now)).remove("shop").unwrap_or_default()
    }

    #[test]
    fn document_counts_for_a_minute_after_the_last_report_of_each_proxy() {
        let (documents, start) = (ReportedDocuments::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let counts = |s| -> Vec<(String, usize)> {
            let seen = seen(&documents, at(s)).into_iter();
            seen.map(|sighting| (sighting.digest, sighting.proxies.len())).collect()
        };
        documents.reported("shop", &report(1, A), at(0));
        documents.reported("shop", &report(1, A), at(5));
        documents.reported("shop", &report(2, B), at(10));
        documents.reported("shop", &report(3, B), at(20));
        let [a, b] = [A, B].map(str::to_owned);
        assert_eq!(counts(64), [(a, 1), (b.clone(), 2)]);
        assert_eq!(counts(70), [(b, 1)]);
        assert_eq!(counts(80), []);
    }

    #[test]
    fn requests_of_a_document_are_those_of_the_last_five_minutes() {
        let (documents, start) = (ReportedDocuments::default(), Instant::now());
        let counts = |digest: &str, admitted: u64, refused: u64, s| {
            let at = start + Duration::from_secs(s);
            let policy = json!({"name": "p", "quota": 5, "window_s": 60, "stagger": false,
                "mode": "enforce", "on_failure": "allow", "admitted": admitted, "refused": refused});
            let policies = vec![serde_json::from_value(policy).unwrap()];
            documents.reported("shop", &Report { policies, ..report(1, digest) }, at);
            seen(&documents, at).iter().map(|of| (of.requests, of.refused)).collect::<Vec<_>>()
        };
        assert_eq!(counts(A, 5, 2, 0), [(7, 2)]);
        assert_eq!(counts(A, 3, 1, 200), [(11, 3)]);
        assert_eq!(counts(B, 1, 0, 250), [(11, 3), (1, 0)], "each document has its own");
        assert_eq!(counts(A, 0, 0, 299), [(11, 3), (1, 0)]);
        assert_eq!(counts(A, 0, 0, 305), [(4, 1), (1, 0)]);
        assert_eq!(counts(B, 0, 0, 600), [(0, 0)]);
    }

    #[test]
    fn worker_that_takes_documents_up_has_the_last_one_that_it_reported_to_any_store() {
        let (one, other, start) =
            (ReportedDocuments::default(), ReportedDocuments::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        one.reported("shop", &live(1, 0, A, 1, 100), at(0));
        one.reported("shop", &live(1, 1, A, 1, 90), at(2));
        other.reported("shop", &live(1, 0, B, 2, 3), at(20));
        // One that takes nothing up may have two documents.
        one.reported("shop", &report(2, A), at(0));
        other.reported("shop", &report(2, B), at(20));
        let both: Vec<_> = one.seen(at(21)).into_iter().chain(other.seen(at(21))).collect();
        let workers = |sightings: Vec<DocumentSighting>| -> Vec<(u64, String, WorkerSighting)> {
            let proxies = sightings
                .into_iter()
                .flat_map(|seen| seen.proxies.into_iter().map(move |proxy| (seen.number, proxy)));
            let workers = proxies.flat_map(|(number, proxy)| {
                let name = proxy.proxy;
                proxy.workers.into_iter().map(move |worker| (number, name.clone(), worker))
            });
            workers.collect()
        };
        let name = |proxy: u64| format!("{proxy:016x}");
        let expected = [
            (0, name(2), WorkerSighting(0, 21, 21)),
            (1, name(1), WorkerSighting(1, 109, 19)),
            (0, name(2), WorkerSighting(0, 1, 1)),
            (2, name(1), WorkerSighting(0, 4, 1)),
        ];
        assert_eq!(workers(merged(both.clone()).remove("shop").unwrap()), expected);
        assert_eq!(merged(both.clone()), merged([both.clone(), both].concat()), "seen twice");
    }

    #[test]
    fn proxy_is_behind_since_the_publication_and_as_of_its_last_report() {
        let (documents, now) = (ReportedDocuments::default(), Instant::now());
        let version = |number, digest: &str| DocumentVersion { number, digest: digest.to_owned() };
        documents.reported("shop", &live(1, 0, A, 1, 500), now);
        documents.reported("shop", &live(1, 1, A, 1, 20), now);
        let behind = |published: &DocumentVersion, known_s, later_s| {
            let seen = seen(&documents, now + Duration::from_secs(later_s));
            seen[0].behind_s(&published.clone().into(), known_s)
        };
        assert_eq!(behind(&version(1, A), 400, 0), None);
        assert_eq!(behind(&version(2, A), 400, 0), Some(400), "another number");
        assert_eq!(behind(&version(2, B), 900, 0), Some(500));
        assert_eq!(behind(&version(3, ""), 7, 0), Some(7), "it was withdrawn");
        assert_eq!(behind(&version(2, B), 30, 30), Some(0), "it may be gone since");
        assert_eq!(behind(&version(0, ""), 400, 0), None, "this store lags behind another one");
        // Of two proxies, the store names the second document to one.
        let share_of = |proxy: usize| quotagate_protocol::share_of(&report(proxy, A).proxy);
        let other = (2..1000).find(|proxy| share_of(*proxy) < share_of(1)).unwrap();
        documents.reported("shop", &live(other, 0, A, 1, 300), now);
        let share = Some((version(2, B), u8::try_from(share_of(1)).unwrap()));
        let named = NamedDocuments { all: version(1, A), share };
        assert_eq!(seen(&documents, now)[0].behind_s(&named, 400), Some(300));
        let others = ReportedDocuments::default();
        others.reported("shop", &report(1, A), now);
        let others = seen(&others, now);
        assert_eq!(others[0].behind_s(&version(2, B).into(), 400), None, "it takes nothing up");
        assert_eq!(others[0].behind_s(&version(0, "").into(), 400), None);
    }

    #[test]
    fn proxy_that_takes_documents_up_is_silent_after_a_minute_and_gone_after_ten() {
        let (documents, start) = (ReportedDocuments::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        documents.reported("shop", &live(1, 0, A, 7, 0), at(0));
        documents.reported("shop", &report(2, A), at(0));
        documents.reported("shop", &live(3, 0, A, 0, 0), at(0));
        documents.reported("shop", &report(4, A), at(0));
        documents.reported("shop", &live(4, 0, B, 8, 0), at(1));
        // One of two workers still reports.
        documents.reported("shop", &live(5, 0, A, 7, 0), at(0));
        documents.reported("shop", &live(5, 1, A, 7, 0), at(60));
        let silent = |s| -> Vec<(String, u64)> {
            let silent = documents.silent("shop", at(s)).into_iter();
            silent.map(|of| (of.proxy[15..].to_owned(), of.document.number)).collect()
        };
        let of = |proxy: &str, number| (proxy.to_owned(), number);
        assert_eq!(silent(59), []);
        assert_eq!(silent(61), [of("1", 7), of("3", 0), of("4", 8)]);
        assert_eq!(silent(600), [of("4", 8), of("5", 7)]);
        assert_eq!(documents.silent("other", at(61)), []);
    }

    #[test]
    fn hostile_reports_are_ignored_and_documents_and_workers_are_bounded() {
        let (documents, start) = (ReportedDocuments::default(), Instant::now());
        for (proxy, digest) in [("", A), ("1", A), ("0123456789abcdef", "x")] {
            let (proxy, digest) = (proxy.to_owned(), digest.to_owned());
            documents.reported("shop", &Report { proxy, digest, ..Report::default() }, start);
        }
        documents.reported("No domain", &report(1, A), start);
        assert_eq!(documents.seen(start), []);
        // A new number for each 200 ms: a document that was replaced makes room.
        for number in 0..200 {
            let now = start + Duration::from_millis(200 * number);
            documents.reported("shop", &live(1, 0, A, number, 0), now);
        }
        let now = start + Duration::from_secs(40);
        let numbers = |documents: &ReportedDocuments| -> Vec<u64> {
            documents.seen(now).iter().map(|seen| seen.number).collect()
        };
        assert_eq!(numbers(&documents), (136..200).collect::<Vec<_>>());
        // Documents that are invented displace none that proxies report.
        let documents = ReportedDocuments::default();
        documents.reported("shop", &live(1, 0, A, 7, 0), now);
        for number in 1000..2000 {
            documents.reported("shop", &live(2, 0, B, number, 0), now);
        }
        let known = numbers(&documents);
        assert!(known.len() == MAX_OF_DOMAIN && known.contains(&7), "{known:?}");
        for domain in 0..8 {
            for number in 0..64 {
                documents.reported(&format!("d{domain}"), &live(1, 0, A, number, 0), now);
            }
        }
        assert_eq!(numbers(&documents).len(), MAX_DOCUMENTS);
        let workers = |seen: Vec<DocumentSighting>| -> usize {
            let proxies = seen.iter().flat_map(|seen| &seen.proxies);
            proxies.map(|proxy| proxy.workers.len()).sum()
        };
        let documents = ReportedDocuments::default();
        for n in 0..70_000 {
            documents.reported("shop", &live(n / 64, (n % 64) as u32, A, 7, 0), now);
        }
        documents.reported("shop", &live(1, 128, A, 7, 0), now);
        assert_eq!(workers(documents.seen(now)), MAX_WORKERS);
        let later = now + SHOWN;
        documents.reported("shop", &live(99_999, 0, A, 7, 0), later);
        assert_eq!(workers(documents.seen(later)), 1, "those of the past make room");
        // A number above the bound belongs to a worker that reports.
        documents.reported("shop", &live(99_999, 5_000, A, 7, 0), later);
        assert_eq!(workers(documents.seen(later)), 2);
    }
}
