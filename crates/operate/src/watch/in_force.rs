//! The policy documents that proxies have in force, as their workers report them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quotagate_protocol::dials::{DocumentVersion, Report};
use quotagate_protocol::is_domain;
use serde::{Deserialize, Serialize};

use super::policy::{Step, add_to, counts_of, refused_of};
use crate::record::documents::NamedDocuments;
use crate::record::{is_document_digest, is_process_id};

/// Most documents over all domains, and of one domain. Beyond that, one that no worker has reported
/// for some seconds makes room for another one.
const MAX_DOCUMENTS: usize = 256;
const MAX_OF_DOMAIN: usize = 64;
/// Most workers over all documents.
const MAX_WORKERS: usize = 65_536;
/// Most proxies of a document that a process publishes, and most workers of each.
pub const MAX_SHOWN_PROXIES: usize = 128;
const MAX_SHOWN_WORKERS: usize = 128;
/// How long one counts after the last report of it. Workers with traffic report every 5 s, each
/// time to one of several stores.
const SHOWN: Duration = Duration::from_secs(60);
/// Each worker of a live proxy reports every 5 s, with traffic or without. A document that it has
/// not reported for this long before its last report was replaced.
const REPLACED_S: u64 = 8;
/// How often workers that report no more are forgotten.
const SWEPT: Duration = Duration::from_secs(10);
/// The longest time for which a document can be in force, in seconds.
const MOST_S: u64 = 100 * 366 * 24 * 60 * 60;
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
    /// The proxies.
    pub proxies: Vec<ProxySighting>,
    /// Their requests in the last five minutes. One counts for each policy that applied to it.
    #[serde(default, skip_serializing_if = "is_embedded")]
    pub requests: u64,
    /// How many of those were refused.
    #[serde(default, skip_serializing_if = "is_embedded")]
    pub refused: u64,
    /// Whether the process that publishes this leaves something out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_cut: bool,
}

/// A proxy, and those of its workers that report a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxySighting {
    /// The name of its process.
    pub proxy: String,
    /// Whether it takes published documents up.
    #[serde(default, skip_serializing_if = "is_false")]
    pub live: bool,
    /// The number of the published document that it refuses; 0 for none.
    #[serde(default, skip_serializing_if = "is_embedded")]
    pub refuses: u64,
    /// The workers, by their index.
    pub workers: Vec<WorkerSighting>,
}

/// A worker that reports a document: its index, how many seconds ago it took the document up, and
/// how many seconds ago it reported that last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerSighting(pub u32, pub u64, pub u64);

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

/// Whether this is the number of embedded documents.
pub const fn is_embedded(number: &u64) -> bool {
    *number == 0
}

const fn is_false(truth: &bool) -> bool {
    !*truth
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
            || usize::try_from(report.worker).is_ok_and(|worker| worker >= MAX_SHOWN_WORKERS)
        {
            return;
        }
        let mut documents = self.lock();
        let name = (Box::from(domain), Box::from(&*report.digest), report.number);
        if !documents.contains_key(&name) && !has_room(&mut documents, domain, now) {
            return;
        }
        let worker = (Box::from(&*report.proxy), report.worker);
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
    /// replaced may be among them: see [`merged`].
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

/// Adds what is known of the workers of one proxy. Of one worker, the latest report counts.
fn add(proxies: &mut BTreeMap<String, ProxySighting>, seen: ProxySighting) {
    let Some(known) = proxies.get_mut(&seen.proxy) else {
        proxies.insert(seen.proxy.clone(), seen);
        return;
    };
    known.live |= seen.live;
    known.refuses = known.refuses.max(seen.refuses);
    known.workers.extend(seen.workers);
    known.workers.sort_unstable_by_key(|WorkerSighting(worker, _, age_s)| (*worker, *age_s));
    known.workers.dedup_by_key(|WorkerSighting(worker, ..)| *worker);
}

/// What several processes saw within the last minute, by domain, without what a live worker has
/// replaced.
pub fn merged(
    sightings: impl IntoIterator<Item = DocumentSighting>,
) -> BTreeMap<String, Vec<DocumentSighting>> {
    type OfDocument = (BTreeMap<String, ProxySighting>, [u64; 2]);
    let mut documents: BTreeMap<(String, String, u64), OfDocument> = BTreeMap::new();
    for sighting in sightings {
        let DocumentSighting { domain, digest, number, proxies, requests, refused, .. } = sighting;
        let (document, counts) = documents.entry((domain, digest, number)).or_default();
        let [all, of_them] = counts;
        (*all, *of_them) = (all.saturating_add(requests), of_them.saturating_add(refused));
        for mut seen in proxies {
            seen.workers.retain(|WorkerSighting(.., age_s)| *age_s < SHOWN.as_secs());
            add(document, seen);
        }
    }
    // How long ago each live worker reported last.
    let mut last: HashMap<(String, String, u32), u64> = HashMap::new();
    for ((domain, ..), (proxies, _)) in &documents {
        for (proxy, seen) in proxies.iter().filter(|(_, seen)| seen.live) {
            for WorkerSighting(worker, _, age_s) in &seen.workers {
                let name = (domain.clone(), proxy.clone(), *worker);
                let last = last.entry(name).or_insert(*age_s);
                *last = (*last).min(*age_s);
            }
        }
    }
    let mut domains: BTreeMap<String, Vec<DocumentSighting>> = BTreeMap::new();
    for ((domain, digest, number), (proxies, counts)) in documents {
        let stays = |proxy: &str, WorkerSighting(worker, _, age_s): &WorkerSighting| {
            let last = last.get(&(domain.clone(), proxy.to_owned(), *worker));
            last.is_none_or(|last| age_s.saturating_sub(*last) <= REPLACED_S)
        };
        let mut proxies: Vec<_> = proxies.into_values().collect();
        for seen in &mut proxies {
            let ProxySighting { proxy, workers, live, .. } = seen;
            // One that takes nothing up may be another filter of the same process.
            workers.retain(|worker| !*live || stays(proxy, worker));
        }
        proxies.retain(|seen| !seen.workers.is_empty());
        if !proxies.is_empty() {
            let [requests, refused] = counts;
            let sighting = DocumentSighting {
                domain: domain.clone(),
                digest,
                number,
                proxies,
                requests,
                refused,
                is_cut: false,
            };
            domains.entry(domain).or_default().push(sighting);
        }
    }
    domains
}

impl DocumentSighting {
    /// Whether it may be shown: anything may have written it.
    pub fn is_sound(&self) -> bool {
        let is_sound = |seen: &ProxySighting| {
            is_process_id(&seen.proxy) && seen.workers.len() <= MAX_SHOWN_WORKERS
        };
        is_domain(&self.domain)
            && is_document_digest(&self.digest)
            && self.proxies.len() <= MAX_SHOWN_PROXIES
            && self.proxies.iter().all(is_sound)
    }

    /// The same `age_s` seconds later.
    #[must_use]
    pub fn aged(&self, age_s: u64) -> Self {
        let mut aged = self.clone();
        for WorkerSighting(_, in_force_s, last_s) in
            aged.proxies.iter_mut().flat_map(|seen| &mut seen.workers)
        {
            *in_force_s = in_force_s.saturating_add(age_s);
            *last_s = last_s.saturating_add(age_s);
        }
        aged
    }

    /// The same in parts of at most `bytes` bytes of JSON, and without what is beyond the bounds of
    /// a sighting.
    pub fn in_parts(mut self, bytes: usize) -> Vec<Self> {
        let mut is_cut = self.proxies.len() > MAX_SHOWN_PROXIES;
        self.proxies.truncate(MAX_SHOWN_PROXIES);
        let proxies = std::mem::take(&mut self.proxies);
        let of = |proxies| Self { proxies, is_cut: true, ..self.clone() };
        let length = |value: &Self| serde_json::to_vec(value).map_or(usize::MAX, |text| text.len());
        // The name of the item and its braces.
        let bare = length(&of(Vec::new())).saturating_add(r#"{"in_force":}"#.len());
        let (mut parts, mut part, mut used) = (Vec::new(), Vec::new(), bare);
        for mut seen in proxies {
            is_cut |= seen.workers.len() > MAX_SHOWN_WORKERS;
            seen.workers.truncate(MAX_SHOWN_WORKERS);
            let own = serde_json::to_vec(&seen).map_or(usize::MAX, |text| text.len());
            let own = own.saturating_add(1);
            if used.saturating_add(own) > bytes {
                parts.push(of(std::mem::take(&mut part)));
                used = bare;
            }
            used = used.saturating_add(own);
            part.push(seen);
        }
        parts.push(of(part));
        parts.iter_mut().for_each(|part| part.is_cut = is_cut);
        // They are added up again.
        parts.iter_mut().skip(1).for_each(|part| (part.requests, part.refused) = (0, 0));
        parts
    }

    /// For how many seconds a proxy has had this document although it should have another one, as
    /// of its last report; `None` if none has. `named` says which one a store names to each proxy,
    /// and the store has done so for `known_s` seconds.
    pub fn behind_s(&self, named: &NamedDocuments, known_s: u64) -> Option<u64> {
        let behind = self.proxies.iter().filter(|seen| {
            let named = named.of_proxy(&seen.proxy);
            // A store that lags behind the others knows no later number.
            seen.live && !self.is(named) && self.number <= named.number
        });
        let workers = behind.flat_map(|seen| &seen.workers);
        let behind = workers.map(|WorkerSighting(_, in_force_s, last_s)| {
            known_s.min(*in_force_s).saturating_sub(*last_s)
        });
        behind.max()
    }

    /// Whether it is this published document, or an embedded one while none is published.
    pub fn is(&self, published: &DocumentVersion) -> bool {
        if published.digest.is_empty() {
            self.number == 0
        } else {
            (self.number, &self.digest) == (published.number, &published.digest)
        }
    }
}

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < SHOWN
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }

    #[test]
    fn sighting_is_published_in_parts_that_fit_into_a_value() {
        let proxy = |n: u64, workers| ProxySighting {
            proxy: format!("{n:016x}"),
            live: true,
            refuses: 0,
            workers: (0..workers).map(|worker| WorkerSighting(worker, 86_400, 5)).collect(),
        };
        let (domain, digest) = ("shop".to_owned(), A.to_owned());
        let of = |proxies: Vec<ProxySighting>| DocumentSighting {
            domain: domain.clone(),
            digest: digest.clone(),
            number: 7,
            proxies,
            requests: 9,
            refused: 3,
            is_cut: false,
        };
        let whole = of((0..100).map(|n| proxy(n, 8)).collect());
        let parts = whole.clone().in_parts(4096);
        assert!(parts.len() > 2 && parts.iter().all(|part| !part.is_cut && part.is_sound()));
        let item = |part: &DocumentSighting| serde_json::json!({"in_force": part}).to_string();
        assert!(parts.iter().all(|part| item(part).len() <= 4096));
        assert_eq!(merged(parts), merged([whole]));
        let many = of((0..129).map(|n| proxy(n, 1)).collect()).in_parts(4096);
        assert!(many.iter().all(|part| part.is_cut));
        let wide = of(vec![proxy(1, 500)]).in_parts(4096);
        assert!(wide.len() == 1 && wide[0].is_cut && wide[0].is_sound());
        assert_eq!(merged(many)["shop"][0].proxies.len(), MAX_SHOWN_PROXIES);
    }
}
