//! The policy documents that proxies have in force, as processes tell each other what they heard.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use quotagate_protocol::dials::DocumentVersion;
use quotagate_protocol::is_domain;
use serde::{Deserialize, Serialize};

use crate::api::{is_false, is_zero};
use crate::record::documents::NamedDocuments;
use crate::record::{is_document_digest, is_process_id};

/// Most proxies of a document that a process publishes, and most workers of each.
const MAX_SHOWN_PROXIES: usize = 128;
pub(super) const MAX_SHOWN_WORKERS: usize = 128;
/// How long one counts after the last report of it. Workers with traffic report every 5 s, each
/// time to one of several stores.
pub(super) const SHOWN: Duration = Duration::from_secs(60);
/// Each worker of a live proxy reports every 5 s, with traffic or without. A document that it has
/// not reported for this long before its last report was replaced.
pub(super) const REPLACED_S: u64 = 8;

/// A document, and the proxies that report it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DocumentSighting {
    /// The domain.
    pub domain: String,
    /// The digest of the document.
    pub digest: String,
    /// Its number, if it is a published one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u64,
    /// The proxies.
    pub proxies: Vec<ProxySighting>,
    /// Their requests in the last five minutes. One counts for each policy that applied to it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requests: u64,
    /// How many of those were refused.
    #[serde(default, skip_serializing_if = "is_zero")]
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
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refuses: u64,
    /// The workers, by their index.
    pub workers: Vec<WorkerSighting>,
}

/// A worker that reports a document: its index, how many seconds ago it took the document up, and
/// how many seconds ago it reported that last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkerSighting(pub u32, pub u64, pub u64);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sighting_is_published_in_parts_that_fit_into_a_value() {
        let proxy = |n: u64, workers| ProxySighting {
            proxy: format!("{n:016x}"),
            live: true,
            refuses: 0,
            workers: (0..workers).map(|worker| WorkerSighting(worker, 86_400, 5)).collect(),
        };
        let (domain, digest) = ("shop".to_owned(), "aaaaaaaaaaaa".to_owned());
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
