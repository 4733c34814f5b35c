//! What all processes saw that share the backend.
//!
//! Every process that counts publishes what it saw: its fullest and most refused partitions, the
//! requests of policies, and its calls. A process that an operator looks at reads what the others
//! published, and merges it with what it saw itself. A store does so every minute, to count
//! requests by minute. Nothing of it is on the path of a call.
//!
//! * Each publisher has a hash of its own, `<prefix>:published:{<id>}`, with one item per field. It
//!   expires 20 s after its last write. So a process that is gone disappears, and what is read and
//!   written is spread over a cluster.
//! * `<prefix>:publishers:{*}` lists the publishers. Each one renews its entry every minute, even
//!   without traffic.
//! * A store also reads what proxies publish for its metrics ([`proxies`]).
//!
//! Bounds: 256 publishers; of each 48 partitions in each list (24 of those that would be refused),
//! the requests of 49 policies, 8 parts of documents, 3 of rules and 96 KiB; of a proxy also the
//! totals of about 700 policies, in 64 KiB more. What cannot be read is ignored item by item.

mod identity;
mod index;
mod item;
mod merge;
mod minutes;
mod others;
mod proxies;
mod publish;
mod requests;
mod services;
mod slots;
mod status;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use self::identity::Identity;
use self::merge::{Aged, Listed};
use self::minutes::Minutes;
use self::others::{Others, Reading};
use self::proxies::NativeProxies;
use self::publish::PicturePublisher;
pub use self::requests::{PolicySteps, Requests};
use self::slots::SlotReader;
pub(crate) use self::status::DocumentStatus;
use crate::api::{
    DocumentInfo, DocumentRecord, DocumentsInForce, MinuteRequests, PartitionSlots, PublisherKind,
    Refused, ServiceRules, Top, Usage,
};
use crate::control::ControlHandle;
use crate::record::documents::NamedDocuments;
use crate::watch::{
    Beyond, CallSight, DocumentSighting, Pace, RefusedDocumentSighting, STEP, SilentWorkers,
    Wanted, Watch, merged,
};
use crate::{MAX_POLICIES, millis};
use prometheus_client::registry::Registry;
use quotagate_store::server::DomainScope;

/// Most partitions in a list.
const MAX_LISTED: usize = 100;
/// Where the clock of the grid begins: no picture is that old.
const EPOCH: Duration = Duration::from_secs(24 * 60 * 60);
/// How often steps are added to minutes.
const MINUTES_EVERY: Duration = Duration::from_secs(60);

/// What all processes saw that share the backend.
pub struct Fleet {
    control: ControlHandle,
    watch: Arc<Watch>,
    me: Identity,
    others: Others,
    proxies: NativeProxies,
    minutes: Minutes,
    slots: SlotReader,
    started: Instant,
    /// How much of its minute had passed then.
    begun: Duration,
}

/// What they saw until one moment.
pub struct FleetSight<'a> {
    fleet: &'a Fleet,
    others: Arc<Reading>,
    /// Counters that others list, the documents in force, and the requests of policies, from the
    /// first look at a counter on.
    listed: OnceLock<Listed>,
    documents: OnceLock<BTreeMap<String, DocumentsInForce>>,
    requests: OnceLock<Requests>,
}

impl Fleet {
    pub(crate) fn new(control: ControlHandle, watch: Arc<Watch>, kind: PublisherKind) -> Self {
        let (me, others) = (Identity::new(kind), Others::default());
        let (proxies, minutes, slots) = Default::default();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let begun = now.saturating_sub(Duration::from_secs(now.as_secs() / 60 * 60));
        let started = Instant::now();
        Self { control, watch, me, others, proxies, minutes, slots, started, begun }
    }

    /// Publishes what this process sees. Never returns. In a backend that only this process can
    /// read, it publishes nothing.
    pub(crate) async fn keep_published(&self) {
        if !self.control.durable() {
            return std::future::pending().await;
        }
        let mut publisher = PicturePublisher::new(&self.watch);
        let mut ticks = tokio::time::interval(publish::EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let ready = self.control.is_ready();
            publisher.publish(&*self.control, &self.me, &self.watch, ready).await;
        }
    }

    /// Reads what proxies publish. Never returns. A backend that only this process can read has no
    /// proxies.
    pub(crate) async fn keep_read(&self) {
        if !self.control.durable() {
            return std::future::pending().await;
        }
        self.proxies.keep_read(&*self.control).await;
    }

    /// Adds the metrics of what proxies publish to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        self.proxies.register(registry);
    }

    /// The documents that proxies have in force, by domain, as they reported them to this store or
    /// as native modules publish them. What other stores heard is not among them.
    pub fn documents_known_here(&self) -> BTreeMap<String, Vec<DocumentSighting>> {
        let now = Instant::now();
        merged(self.watch.in_force.seen(now).into_iter().chain(self.proxies.documents(now)))
    }

    /// How many partitions of each policy were refused in about the last five minutes, as this
    /// store saw them and as proxies list them: at least so many, because both are bounded.
    pub fn refused_partitions(&self) -> BTreeMap<(String, String), usize> {
        let mut refused = self.watch.beyond(Beyond::Refused, usize::MAX, Wanted::default());
        refused.retain(|of| self.watch.has_metrics(&of.domain, &of.policy));
        refused.extend(self.proxies.refused());
        let mut policies: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for Refused { domain, policy, partition, .. } in refused {
            policies.entry((domain, policy)).or_default().insert(partition);
        }
        let counted = policies.into_iter().take(MAX_POLICIES);
        counted.map(|(policy, partitions)| (policy, partitions.len())).collect()
    }

    /// Counts the requests of policies by minute. Never returns.
    pub(crate) async fn keep_minutes(&self) {
        let mut ticks = tokio::time::interval(MINUTES_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let sight = self.look().await;
            self.minutes.count(&sight.requests(), sight.others.is_whole);
        }
    }

    /// The requests of a policy by minute.
    pub fn minutes(&self, domain: &str, policy: &str, at_ms: u64) -> MinuteRequests {
        self.minutes.of(domain, policy, self.clock(), at_ms)
    }

    /// The number of the step of 5 s that runs now.
    pub fn step(&self) -> u64 {
        self.clock() / millis(STEP)
    }

    /// A clock that runs on. Its minutes begin with those of the day.
    fn clock(&self) -> u64 {
        millis(EPOCH.saturating_add(self.begun).saturating_add(self.started.elapsed()))
    }

    /// What was seen until now. Reads from the backend, at most every 3 s and for at most 0.7 s.
    pub async fn look(&self) -> FleetSight<'_> {
        let others = self.others.read(&*self.control, self.me.id()).await;
        FleetSight {
            fleet: self,
            others,
            listed: OnceLock::new(),
            documents: OnceLock::new(),
            requests: OnceLock::new(),
        }
    }
}

impl FleetSight<'_> {
    /// The fullest and the most refused partitions, and uncounted requests.
    pub fn top(&self, wanted: Wanted<'_>, limit: usize) -> Top {
        let limit = limit.clamp(1, MAX_LISTED);
        let (watch, others) = (&*self.fleet.watch, self.aged());
        let mut uncounted = self.requests().uncounted();
        uncounted.retain(|of| wanted.has(&of.domain, &of.policy));
        uncounted.truncate(limit);
        let me = self.fleet.me.publisher();
        let them = self.others.pictures.iter().map(|(publisher, ..)| publisher.clone());
        Top {
            fullest: merge::fullest(watch, &others, limit, wanted),
            slots: Vec::new(),
            refused: merge::beyond(watch, &others, Beyond::Refused, limit, wanted),
            would_refuse: merge::beyond(watch, &others, Beyond::LetThrough, limit, wanted),
            uncounted,
            publishers: std::iter::once(me).chain(them).collect(),
            silent: self.fleet.proxies.silent(),
            incomplete: self.others.incomplete.clone(),
        }
    }

    /// The slots of those partitions that are of concurrency limits, in their order and of 100 at
    /// most. Reads from the backend, each partition once a second and for at most 0.7 s.
    pub async fn slots<'u>(&self, fullest: impl Iterator<Item = &'u Usage>) -> Vec<PartitionSlots> {
        self.fleet.slots.read(&self.fleet.control, fullest).await
    }

    /// Why some processes are missing.
    pub(crate) fn incomplete(&self) -> Option<String> {
        self.others.incomplete.clone()
    }

    /// The documents that filters refused, a sentence for each domain of `scope`.
    pub fn refused_documents(&self, scope: &DomainScope) -> Vec<String> {
        let mut latest = BTreeMap::new();
        let theirs = self.aged().into_iter().flat_map(|(age_ms, picture)| {
            picture.documents.iter().map(move |seen| {
                let age_ms = seen.age_ms.saturating_add(age_ms);
                RefusedDocumentSighting { age_ms, ..seen.clone() }
            })
        });
        let own = self.fleet.watch.documents.seen(Instant::now());
        for seen in own.into_iter().chain(theirs).filter(RefusedDocumentSighting::is_sound) {
            let known = latest.entry(seen.domain.clone()).or_insert_with(|| seen.clone());
            // As in each store: a proxy without any document first, then the latest report.
            let rank = |one: &RefusedDocumentSighting| (one.document.keeps_last_good, one.age_ms);
            if rank(&seen) < rank(known) {
                *known = seen;
            }
        }
        let seen = latest.values().filter(|seen| scope.has(&seen.domain));
        seen.map(RefusedDocumentSighting::sentence).collect()
    }

    /// The documents that proxies have in force, by domain.
    pub fn in_force(&self) -> BTreeMap<String, DocumentsInForce> {
        let count = |proxies: usize| u64::try_from(proxies).unwrap_or(u64::MAX);
        let mut seen = self.documents();
        // Of some domains all proxies may be silent.
        for domain in self.fleet.watch.in_force.domains() {
            seen.entry(domain).or_default();
        }
        let counted = seen.into_iter().map(|(domain, sightings)| {
            let (mut all, mut live) = (BTreeSet::new(), BTreeSet::new());
            for seen in sightings.iter().flat_map(|seen| &seen.proxies) {
                all.insert(&*seen.proxy);
                if seen.live {
                    live.insert(&*seen.proxy);
                }
            }
            let silent = count(self.silent(&domain, &sightings).len());
            let mut documents: Vec<_> = sightings
                .iter()
                .map(|seen| DocumentInfo {
                    digest: seen.digest.clone(),
                    number: seen.number,
                    proxies: count(seen.proxies.len()),
                    requests: seen.requests,
                    refused: seen.refused,
                })
                .collect();
            documents.sort_by_key(|document| Reverse(document.proxies));
            let (proxies, live, differ) = (count(all.len()), count(live.len()), Vec::new());
            (domain, DocumentsInForce { proxies, documents, differ, live, silent })
        });
        counted.collect()
    }

    /// What the proxies of a domain made of its published document, as of `now` of the backend's
    /// clock.
    pub(crate) fn document_status(
        &self,
        domain: &str,
        published: Option<&NamedDocuments>,
        now: Duration,
    ) -> DocumentStatus {
        let sightings = self.documents().remove(domain).unwrap_or_default();
        DocumentStatus::of(&sightings, self.silent(domain, &sightings), published, now)
    }

    /// What the rate limit services of a domain made of its published rule file, as of `now` of the
    /// backend's clock. `published` is unknown if its record is lost.
    pub(crate) fn service_rules(
        &self,
        domain: &str,
        published: Option<&DocumentRecord>,
        now: Duration,
    ) -> Vec<ServiceRules> {
        let since = self.others.at.elapsed();
        let theirs = self.others.pictures.iter().flat_map(|(publisher, age_ms, picture)| {
            let age = Duration::from_millis(*age_ms).saturating_add(since);
            picture.rules.iter().map(move |rules| (publisher.clone(), rules.aged(age.as_secs())))
        });
        let own = self.fleet.watch.rules.seen(Instant::now()).into_iter();
        let own = own.map(|rules| (self.fleet.me.publisher(), rules));
        let of_domain = own.chain(theirs).filter(|(_, rules)| rules.domain == domain);
        services::services(of_domain.collect(), published, now)
    }

    /// What proxies reported, to any process, within the last minute, by domain.
    fn documents(&self) -> BTreeMap<String, Vec<DocumentSighting>> {
        let theirs = self.aged().into_iter().flat_map(|(age_ms, picture)| {
            picture.in_force.iter().map(move |seen| seen.aged(age_ms / 1000))
        });
        let own = self.fleet.watch.in_force.seen(Instant::now());
        merged(own.into_iter().chain(theirs))
    }

    /// The proxies that should report and do not, of those that reported to this store.
    fn silent(&self, domain: &str, sightings: &[DocumentSighting]) -> Vec<SilentWorkers> {
        // A process that publishes only some of its proxies may hear of those that seem silent.
        if self.others.pictures.iter().any(|(.., picture)| picture.is_cut()) {
            return Vec::new();
        }
        let mut silent = self.fleet.watch.in_force.silent(domain, Instant::now());
        let heard = sightings.iter().flat_map(|seen| &seen.proxies);
        let heard: BTreeSet<&str> = heard.map(|seen| &*seen.proxy).collect();
        silent.retain(|of| !heard.contains(&*of.proxy));
        silent
    }

    /// The calls of all processes; those of this one are `own`.
    pub fn pace(&self, own: Pace) -> Pace {
        let theirs = self.others.pictures.iter().map(|(_, _, picture)| picture.pace);
        let timed: Vec<_> = theirs.chain([own]).collect();
        let per_s: f64 = timed.iter().map(|pace| pace.per_s).sum();
        let of = |pace: &Pace| pace.ms.map(|ms| (ms * pace.per_s, pace.per_s));
        let (sum, weight) = timed
            .iter()
            .filter_map(of)
            .fold((0.0, 0.0), |(sum, weight), (ms, per_s)| (sum + ms, weight + per_s));
        Pace { per_s, ms: (weight > 0.0).then(|| sum / weight) }
    }

    /// The requests of all policies within the last five minutes.
    pub fn requests(&self) -> Requests {
        let mut requests = Requests::new(self.fleet.clock());
        self.fleet.watch.series().iter().for_each(|series| requests.add(series, 0));
        for (age_ms, picture) in self.aged() {
            picture.series.iter().for_each(|series| requests.add(series, age_ms));
        }
        requests
    }

    fn aged(&self) -> Vec<Aged<'_>> {
        let since = millis(self.others.at.elapsed());
        let pictures = self.others.pictures.iter();
        pictures.map(|(_, age_ms, picture)| (age_ms.saturating_add(since), picture)).collect()
    }
}

impl CallSight for FleetSight<'_> {
    /// As this process saw it.
    fn last(&self, key: &str, number: u64) -> Option<u64> {
        self.fleet.watch.quota(key, number)
    }

    /// Of other processes, only those count that list it among those with the most.
    fn beyond(&self, beyond: Beyond, key: &str) -> Option<Refused> {
        let listed = self.listed.get_or_init(|| Listed::of(&self.aged()));
        merge::beyond_of(&self.fleet.watch, listed, beyond, key)
    }

    fn settled_if_missing(&self, domain: &str, policy: &str) -> u64 {
        let requests = self.requests.get_or_init(|| self.requests());
        requests.settled_if_missing(domain, policy)
    }

    fn numbers(&self, domain: &str, digest: &str) -> Vec<u64> {
        let domains = self.documents.get_or_init(|| self.in_force());
        let documents = domains.get(domain).map_or(&[][..], |of| &of.documents);
        let of_digest = documents.iter().filter(|document| document.digest == digest);
        let mut numbers: Vec<u64> = of_digest.map(|document| document.number).collect();
        numbers.sort_unstable();
        numbers
    }
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::dials::{RefusedDocument, Report};

    use super::*;
    use crate::api::Publisher;
    use crate::fleet::item::Picture;
    use crate::watch::RulesSighting;

    fn sight_of(fleet: &Fleet, others: Reading) -> FleetSight<'_> {
        let (listed, documents, requests) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        FleetSight { fleet, others: Arc::new(others), listed, documents, requests }
    }

    #[tokio::test]
    async fn domain_whose_proxies_are_all_silent_says_so() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let fleet = Fleet::new(ControlHandle::new(store), Arc::default(), PublisherKind::Store);
        let report = Report {
            proxy: "0123456789abcdef".to_owned(),
            digest: "0123456789ab".to_owned(),
            live: true,
            ..Report::default()
        };
        let earlier = Instant::now().checked_sub(Duration::from_secs(90)).unwrap();
        fleet.watch.in_force.reported("shop", &report, earlier);
        let others = Reading {
            at: Instant::now(),
            pictures: vec![],
            is_whole: true,
            incomplete: None,
            index: None,
        };
        let in_force = sight_of(&fleet, others).in_force();
        let shop = &in_force["shop"];
        assert_eq!((shop.silent, shop.proxies, shop.documents.len()), (1, 0, 0));
    }

    #[tokio::test]
    async fn services_of_all_processes_are_listed_with_the_rules_of_the_domain() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let fleet = Fleet::new(ControlHandle::new(store), Arc::default(), PublisherKind::Store);
        let rules = |domain: &str, number: u64| RulesSighting {
            domain: domain.to_owned(),
            number,
            digest: if number == 0 { String::new() } else { "0123456789ab".to_owned() },
            follows: true,
            ..RulesSighting::default()
        };
        let pulse = fleet.watch.pulse();
        fleet.watch.rules_in_force(vec![rules("shop", 2), rules("ai", 0)]);
        assert_ne!(fleet.watch.pulse(), pulse, "others hear of it soon");
        let picture = Picture { rules: vec![rules("shop", 1)], ..Picture::default() };
        let publisher = Publisher { id: "1".repeat(16), ..fleet.me.publisher() };
        let others = Reading {
            at: Instant::now(),
            pictures: vec![(publisher, 9_000, picture)],
            is_whole: true,
            incomplete: None,
            index: None,
        };
        let sight = sight_of(&fleet, others);
        let now = Duration::from_secs(100);
        let services = sight.service_rules("shop", None, now);
        let shown: Vec<_> = services.iter().map(|of| (of.number, of.since_ms)).collect();
        assert_eq!(shown, [(1, 91_000), (2, 100_000)]);
        assert_eq!(services[1].service, fleet.me.id());
        assert_eq!(sight.service_rules("other", None, now), []);
    }

    #[tokio::test]
    async fn refused_documents_of_all_processes_are_named_once() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let fleet = Fleet::new(ControlHandle::new(store), Arc::default(), PublisherKind::Store);
        let seen = |domain: &str, fault: &str, age_ms| RefusedDocumentSighting {
            domain: domain.to_owned(),
            document: RefusedDocument { fault: fault.to_owned(), ..RefusedDocument::default() },
            age_ms,
        };
        let own = Report {
            wrong_document: Some(seen("shop", "its own", 0).document),
            ..Report::default()
        };
        fleet.watch.documents.reported("shop", &own, Instant::now());
        let read = |documents| {
            let picture = Picture { documents, ..Picture::default() };
            (fleet.me.publisher(), 0, picture)
        };
        let pictures = vec![
            read(vec![seen("shop", "older", 30_000), seen("ai", "older", 9_000)]),
            read(vec![seen("ai", "newer", 5_000), seen("gone", "too old", 60_000)]),
        ];
        let others =
            Reading { at: Instant::now(), pictures, is_whole: true, incomplete: None, index: None };
        let sight = sight_of(&fleet, others);
        let only = sight.refused_documents(&"ai".parse().unwrap());
        assert!(only.len() == 1 && only[0].contains("document of ai: "), "{only:?}");
        let sentences = sight.refused_documents(&DomainScope::All);
        assert_eq!(sentences.len(), 2, "{sentences:?}");
        assert!(sentences[0].contains("document of ai: ") && sentences[0].ends_with(": newer"));
        assert!(sentences[1].contains("document of shop: ") && sentences[1].ends_with(": its own"));
    }

    #[tokio::test]
    async fn calls_of_all_processes_are_added() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let fleet = Fleet::new(ControlHandle::new(store), Arc::default(), PublisherKind::Store);
        let pace = |per_s, ms| Pace { per_s, ms };
        let publisher = fleet.me.publisher();
        let read = |pace| (publisher.clone(), 0, Picture { pace, ..Picture::default() });
        let look = |paces: &[Pace]| {
            let pictures: Vec<(Publisher, u64, Picture)> =
                paces.iter().copied().map(read).collect();
            let others = Reading {
                at: Instant::now(),
                pictures,
                is_whole: true,
                incomplete: None,
                index: None,
            };
            sight_of(&fleet, others)
        };
        assert_eq!(look(&[]).pace(pace(4.0, Some(1.0))), pace(4.0, Some(1.0)));
        let two = look(&[pace(12.0, Some(2.0)), pace(0.0, None)]);
        assert_eq!(two.pace(pace(4.0, Some(1.0))), pace(16.0, Some(1.75)));
        assert_eq!(look(&[pace(0.0, None)]).pace(pace(0.0, None)), pace(0.0, None));
    }
}
