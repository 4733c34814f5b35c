//! What proxies with the native module publish, as metrics of a store. Such a proxy contains its
//! store, so no metrics of a store show its requests, its calls and its health.
//!
//! A store reads the index every [`INDEX`], and the pictures of proxies every [`EVERY`] while there
//! are any. Every store reads the same, so the largest value of all stores counts, and not their
//! sum.
//!
//! Counters grow by as much as the totals of a proxy have grown since the last reading. A proxy
//! that started after this store counts from its start. Of an older one, only what follows the
//! first reading counts, because an earlier store may have counted the rest.
//!
//! Bounds: [`MAX_PUBLISHERS`] proxies, and the first [`MAX_POLICIES`] policies over all of them.
//! The rest is not counted. A proxy that is silent is forgotten after [`FORGOTTEN`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use quotagate_store::control::{ControlStore, HashName, MAX_PUBLISHERS};
use quotagate_store::store::StoreError;

use super::index::{PublisherRecord, live};
use super::item::Picture;
use super::publish::{EVERY, KEPT};
use crate::api::{PublisherKind, Refused, SilentProxy};
use crate::watch::{DocumentSighting, OutcomeCounts, PolicyTotals, SlotTotals, StoreTotals};
use crate::{MAX_POLICIES, millis};

/// How often the index is read.
const INDEX: Duration = Duration::from_secs(15);
/// A proxy that has not renewed its entry in the index for so long is silent. It does so every
/// minute, even without traffic.
const SILENT: Duration = Duration::from_secs(150);
/// How long a silent proxy is known.
const FORGOTTEN: Duration = Duration::from_secs(60 * 60);
/// How long a proxy may run beside the one that replaces it: by default, Envoy ends the parent of a
/// hot restart 15 minutes after the child has started its workers.
const BESIDE: Duration = Duration::from_secs(20 * 60);
/// Pictures that are read together.
const TOGETHER: usize = 16;
/// The outcomes of requests, in the order of [`Series::counts`](crate::watch::Series::counts). Two
/// of them have metrics of their own.
const OUTCOMES: [&str; 7] = [
    "admitted",
    "refused",
    "shadow_refused",
    "marked",
    MISSING_IDENTITY,
    "store_error",
    SETTLED_IF_MISSING,
];
const MISSING_IDENTITY: &str = "missing_identity";
const SETTLED_IF_MISSING: &str = "settled_if_missing";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    domain: String,
    policy: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BySlotState {
    domain: String,
    policy: String,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByPolicy {
    domain: String,
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallOutcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProxyState {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Host {
    host: String,
}

/// The proxies that publish, and their metrics.
#[derive(Default)]
pub struct NativeProxies {
    requests: Family<ByOutcome, Counter>,
    missing_identity: Family<ByPolicy, Counter>,
    settled_if_missing: Family<ByPolicy, Counter>,
    slots: Family<BySlotState, Gauge>,
    expired: Family<ByPolicy, Counter>,
    calls: Family<CallOutcome, Counter>,
    seconds: Counter<f64, AtomicU64>,
    states: Family<ProxyState, Gauge>,
    last_seen: Family<Host, Gauge>,
    known: Mutex<KnownProxies>,
}

#[derive(Default)]
struct KnownProxies {
    /// By id.
    proxies: BTreeMap<String, KnownProxy>,
    /// The policies that have metrics, by domain and name.
    policies: HashSet<(String, String)>,
    /// The backend's time of the last reading.
    now_ms: u64,
    /// The backend's time of the first reading; none before it.
    begun_ms: Option<u64>,
}

struct KnownProxy {
    host: String,
    since_ms: u64,
    /// Whether its totals count from its start.
    is_young: bool,
    /// When it last published or renewed its entry, by the backend's clock.
    seen_ms: u64,
    /// What its last picture said, and when it was taken.
    store: Option<StoreTotals>,
    pictured_ms: u64,
    policies: HashMap<(String, String), (OutcomeCounts, Option<SlotTotals>)>,
    refused: Vec<Refused>,
    /// The documents that its workers had in force, and when that was read.
    in_force: Option<(Instant, Vec<DocumentSighting>)>,
}

impl NativeProxies {
    /// Adds its metrics to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Requests by outcome, as native modules publish them";
        registry.register("requests", help, self.requests.clone());
        let help = "Requests without an identity, admitted or not, as native modules publish them";
        registry.register("missing_identity", help, self.missing_identity.clone());
        let help = "Requests that cost if_missing, as native modules publish them";
        registry.register("settled_if_missing", help, self.settled_if_missing.clone());
        let help = "Slots of concurrency limits, held or waited for, as the native module saw them \
                    that saw the most";
        registry.register("slots", help, self.slots.clone());
        let help = "Slots whose worker did not say for 9 s that it holds them, as native modules \
                    found them";
        registry.register("slots_expired", help, self.expired.clone());
        let help = "Calls that native modules served themselves";
        registry.register("calls", help, self.calls.clone());
        let help = "Seconds that these calls took";
        registry.register("call_seconds", help, self.seconds.clone());
        let help = "Native modules: those that publish and can count every request, those that \
                    publish and cannot, and those that fell silent within the last hour";
        registry.register("proxies", help, self.states.clone());
        let help = "Seconds since the native module on this host last published or said that it is \
                    idle, for an hour after the last time; the longest of several";
        registry.register("last_seen_seconds", help, self.last_seen.clone());
    }

    /// Reads what proxies publish. Never returns.
    pub async fn keep_read(&self, control: &dyn ControlStore) {
        loop {
            let any = self.read(control).await.unwrap_or_default();
            tokio::time::sleep(if any { EVERY } else { INDEX }).await;
        }
    }

    /// Reads the index and the pictures of proxies. Returns whether there are any. If the index
    /// cannot be read, everything stays as it is: no proxy is silent because this store is cut off.
    pub async fn read(&self, control: &dyn ControlStore) -> Result<bool, StoreError> {
        let index = control.read(HashName::Publishers, "").await?;
        let is_proxy = |record: &PublisherRecord| record.publisher.kind == PublisherKind::Proxy;
        let records: Vec<_> = live(&index).filter(is_proxy).collect();
        let any = !records.is_empty();
        let mut reads = stream::iter(records)
            .map(|record| async move {
                let fields = control.read(HashName::Published, &record.publisher.id).await;
                let picture = fields.ok().and_then(|fields| Picture::read(&fields.fields));
                (record, picture)
            })
            .buffer_unordered(TOGETHER);
        let mut pictures = Vec::new();
        while let Some(read) = reads.next().await {
            pictures.push(read);
        }
        self.learn(pictures, millis(index.now));
        Ok(any)
    }

    fn learn(&self, pictures: Vec<(PublisherRecord, Option<Picture>)>, now_ms: u64) {
        let mut known = self.lock();
        known.now_ms = now_ms;
        known.begun_ms.get_or_insert(now_ms);
        for (record, picture) in pictures {
            self.hear(&mut known, record, picture);
        }
        let since = now_ms.saturating_sub(millis(FORGOTTEN));
        known.proxies.retain(|_, proxy| proxy.seen_ms >= since);
        self.show(&known);
    }

    fn hear(
        &self,
        known: &mut KnownProxies,
        PublisherRecord { publisher, at_ms }: PublisherRecord,
        picture: Option<Picture>,
    ) {
        let is_known = known.proxies.contains_key(&publisher.id);
        if !is_known && known.proxies.len() >= MAX_PUBLISHERS {
            let oldest = known.proxies.iter().min_by_key(|(_, proxy)| proxy.seen_ms);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else { return };
            let removed = known.proxies.remove(&oldest);
            // If it comes back, its totals have been counted already.
            let after = removed.map(|proxy| proxy.since_ms.saturating_add(1));
            known.begun_ms = known.begun_ms.max(after);
        }
        let (now_ms, begun_ms) = (known.now_ms, known.begun_ms.unwrap_or(known.now_ms));
        let KnownProxies { proxies, policies, .. } = known;
        let proxy = proxies.entry(publisher.id).or_insert_with(|| KnownProxy {
            host: publisher.host,
            since_ms: publisher.since_ms,
            // One that was forgotten is older.
            is_young: publisher.since_ms >= begun_ms.max(now_ms.saturating_sub(millis(FORGOTTEN))),
            seen_ms: 0,
            store: None,
            pictured_ms: 0,
            policies: HashMap::new(),
            refused: Vec::new(),
            in_force: None,
        });
        let seen_ms = picture.as_ref().map_or(at_ms, |picture| picture.at_ms.max(at_ms));
        // A clock that was set back makes nothing fresh for ever.
        proxy.seen_ms = proxy.seen_ms.max(seen_ms).min(now_ms);
        proxy.refused.clear();
        proxy.in_force = None;
        let Some(picture) = picture else { return };
        let age_s = now_ms.saturating_sub(picture.at_ms) / 1000;
        if age_s <= KEPT.as_secs() {
            let in_force = picture.in_force.iter().map(|seen| seen.aged(age_s)).collect();
            proxy.in_force = Some((Instant::now(), in_force));
        }
        let mut is_counted = |domain: &str, policy: &str| {
            let name = (domain.to_owned(), policy.to_owned());
            policies.contains(&name) || (policies.len() < MAX_POLICIES && policies.insert(name))
        };
        let refused = picture.refused.into_iter();
        proxy.refused = refused.filter(|of| is_counted(&of.domain, &of.policy)).collect();
        proxy.pictured_ms = picture.at_ms.min(now_ms);
        let is_young = proxy.is_young;
        let before = |known: Option<u64>, total| known.unwrap_or(if is_young { 0 } else { total });
        if let Some(store) = picture.store {
            let old = proxy.store.replace(store);
            let grown = |of: fn(&StoreTotals) -> u64| {
                of(&store).saturating_sub(before(old.as_ref().map(of), of(&store)))
            };
            let (calls, failed) = (grown(|store| store.calls), grown(|store| store.failed));
            let count = |outcome, calls| {
                self.calls.get_or_create(&CallOutcome { outcome }).inc_by(calls);
            };
            count("ok", calls.saturating_sub(failed));
            count("failed", failed);
            let took = Duration::from_micros(grown(|store| store.micros));
            self.seconds.inc_by(took.as_secs_f64());
        }
        for PolicyTotals { domain, policy, counts, slots } in picture.totals {
            if !is_counted(&domain, &policy) {
                continue;
            }
            let name = (domain, policy);
            let old = proxy.policies.insert(name.clone(), (counts, slots));
            if old == Some((counts, slots)) {
                continue;
            }
            let ((domain, policy), is_known) = (name, old.is_some());
            if let Some(SlotTotals { expired, .. }) = slots {
                let old = old.and_then(|(_, slots)| slots).map(|slots| slots.expired);
                let (domain, policy) = (domain.clone(), policy.clone());
                let counter = self.expired.get_or_create_owned(&ByPolicy { domain, policy });
                counter.inc_by(expired.saturating_sub(before(old, expired)));
            }
            for (index, outcome) in OUTCOMES.into_iter().enumerate() {
                let total = counts.get(index).copied().unwrap_or_default();
                let old = before(old.and_then(|(old, _)| old.get(index).copied()), total);
                let grown = total.saturating_sub(old);
                if grown == 0 && is_known {
                    continue;
                }
                let (domain, policy) = (domain.clone(), policy.clone());
                let counter = match outcome {
                    MISSING_IDENTITY => {
                        self.missing_identity.get_or_create_owned(&ByPolicy { domain, policy })
                    }
                    SETTLED_IF_MISSING => {
                        self.settled_if_missing.get_or_create_owned(&ByPolicy { domain, policy })
                    }
                    _ => self.requests.get_or_create_owned(&ByOutcome { domain, policy, outcome }),
                };
                counter.inc_by(grown);
            }
        }
    }

    /// Sets the gauges.
    fn show(&self, known: &KnownProxies) {
        let hosts = known.hosts();
        let now_ms = known.now_ms;
        self.last_seen.clear();
        for (host, seen_ms) in &hosts {
            let seconds = now_ms.saturating_sub(*seen_ms) / 1000;
            let host = Host { host: (*host).to_owned() };
            self.last_seen.get_or_create(&host).set(i64::try_from(seconds).unwrap_or(i64::MAX));
        }
        let heard = known.proxies.values().filter(|proxy| !known.is_silent(proxy.seen_ms));
        let (mut ready, mut not_ready) = (0, 0);
        let mut slots = HashMap::new();
        for proxy in heard {
            // One that has nothing to show says nothing of a fault, nor does an old picture.
            let is_old = now_ms.saturating_sub(proxy.pictured_ms) > millis(KEPT);
            for (name, (_, of)) in &proxy.policies {
                let Some(of) = of else { continue };
                let (held, waiting) = slots.entry(name).or_insert((0, 0));
                if !is_old {
                    (*held, *waiting) = (of.held.max(*held), of.waiting.max(*waiting));
                }
            }
            let is_ready = is_old || proxy.store.is_none_or(|store| store.ready);
            *(if is_ready { &mut ready } else { &mut not_ready }) += 1_usize;
        }
        self.slots.clear();
        for ((domain, policy), (held, waiting)) in slots {
            for (state, units) in [("held", held), ("waiting", waiting)] {
                let (domain, policy) = (domain.clone(), policy.clone());
                let gauge = self.slots.get_or_create_owned(&BySlotState { domain, policy, state });
                gauge.set(i64::try_from(units).unwrap_or(i64::MAX));
            }
        }
        let silent = known.silent().len();
        for (state, count) in [("ready", ready), ("not_ready", not_ready), ("silent", silent)] {
            let gauge = self.states.get_or_create_owned(&ProxyState { state });
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// The hosts with a silent proxy that none has replaced, those that were heard last first.
    pub fn silent(&self) -> Vec<SilentProxy> {
        self.lock().silent()
    }

    /// The partitions that proxies list as refused.
    pub fn refused(&self) -> Vec<Refused> {
        let known = self.lock();
        let heard = known.proxies.values().filter(|proxy| !known.is_silent(proxy.seen_ms));
        heard.flat_map(|proxy| proxy.refused.iter().cloned()).collect()
    }

    /// The documents that their workers have in force `now`. Without a reading, they grow old.
    pub fn documents(&self, now: Instant) -> Vec<DocumentSighting> {
        let known = self.lock();
        let read = known.proxies.values().filter_map(|proxy| proxy.in_force.as_ref());
        let aged = read.flat_map(|(at, in_force)| {
            let age_s = now.saturating_duration_since(*at).as_secs();
            in_force.iter().map(move |seen| seen.aged(age_s))
        });
        aged.collect()
    }

    /// No panic can happen while it is locked, so a poisoned lock guards consistent data.
    fn lock(&self) -> MutexGuard<'_, KnownProxies> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownProxies {
    const fn is_silent(&self, seen_ms: u64) -> bool {
        self.now_ms.saturating_sub(seen_ms) > SILENT.as_secs() * 1000
    }

    /// When the proxies of each host were last heard, at least. One that started later on the host
    /// replaces another one, unless both have run beside each other for long.
    fn hosts(&self) -> BTreeMap<&str, u64> {
        let mut hosts = BTreeMap::new();
        for proxy in self.proxies.values() {
            let replaces = |other: &KnownProxy| {
                other.host == proxy.host
                    && other.since_ms > proxy.since_ms
                    && other.since_ms.saturating_add(millis(BESIDE)) > proxy.seen_ms
            };
            if !self.proxies.values().any(replaces) {
                let seen_ms = hosts.entry(&*proxy.host).or_insert(proxy.seen_ms);
                *seen_ms = proxy.seen_ms.min(*seen_ms);
            }
        }
        hosts
    }

    fn silent(&self) -> Vec<SilentProxy> {
        let hosts = self.hosts().into_iter().filter(|(_, seen_ms)| self.is_silent(*seen_ms));
        let mut silent: Vec<_> = hosts
            .map(|(host, seen_ms)| SilentProxy {
                host: host.to_owned(),
                silent_ms: self.now_ms.saturating_sub(seen_ms),
            })
            .collect();
        silent.sort_by_key(|proxy| proxy.silent_ms);
        silent
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Publisher;
    use crate::watch::merged;

    const START: u64 = 10_000_000;

    /// What a proxy with this id on this host published at a moment.
    fn published(
        (id, host, since_ms): (&str, &str, u64),
        at_ms: u64,
        totals: [u64; 7],
        ready: bool,
    ) -> (PublisherRecord, Option<Picture>) {
        let (id, host) = (id.to_owned(), host.to_owned());
        let publisher = Publisher { id, kind: PublisherKind::Proxy, host, since_ms };
        let (domain, policy) = ("shop".to_owned(), "per-caller".to_owned());
        let policies = vec![PolicyTotals { domain, policy, counts: totals, slots: None }];
        // The last count is no outcome of a request.
        let calls = totals[..6].iter().sum();
        let store = StoreTotals { calls, failed: totals[5], micros: 1000 * calls, ready };
        let picture = Picture { at_ms, store: Some(store), totals: policies, ..Picture::default() };
        (PublisherRecord { publisher, at_ms }, Some(picture))
    }

    fn text(proxies: &NativeProxies) -> String {
        let mut registry = Registry::default();
        proxies.register(registry.sub_registry_with_prefix("quotagate_native"));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }

    fn shows(proxies: &NativeProxies, lines: &[&str]) {
        let text = text(proxies);
        for line in lines {
            assert!(text.lines().any(|of| of == *line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn slots_are_those_of_the_proxy_that_saw_the_most_and_expired_ones_are_added_up() {
        let proxies = NativeProxies::default();
        let of = |id: &str, since_ms, at_ms, (held, waiting, expired)| {
            let (record, mut picture) = published((id, id, since_ms), at_ms, [1; 7], true);
            picture.as_mut().unwrap().totals[0].slots = Some(SlotTotals { held, waiting, expired });
            (record, picture)
        };
        proxies.learn(vec![of("aa", START - 9000, START, (4, 2, 70))], START);
        let now = START + 10_000;
        let young = of("bb", START + 9000, now, (3, 9, 5));
        proxies.learn(vec![of("aa", START - 9000, now, (4, 2, 71)), young], now);
        let slots = |state, units| {
            format!(
                "quotagate_native_slots{{domain=\"shop\",policy=\"per-caller\",state=\"{state}\"}} {units}"
            )
        };
        let labels = "{domain=\"shop\",policy=\"per-caller\"}";
        let expired = format!("quotagate_native_slots_expired_total{labels} 6");
        shows(&proxies, &[&slots("held", 4), &slots("waiting", 9), &expired]);
        // An old picture says nothing of what is held now.
        proxies.learn(Vec::new(), now + millis(KEPT) + 1000);
        shows(&proxies, &[&slots("held", 0), &slots("waiting", 0), &expired]);
        assert!(!text(&NativeProxies::default()).contains("quotagate_native_slots{"));
    }

    #[test]
    fn requests_of_a_proxy_are_counted_once_and_from_its_start_if_it_is_younger() {
        let proxies = NativeProxies::default();
        let old = ("00000000000000aa", "gw-1", START - 9000);
        let young = ("00000000000000bb", "gw-2", START + 9000);
        proxies.learn(vec![published(old, START, [1000, 100, 0, 0, 0, 0, 0], true)], START);
        let now = START + 10_000;
        let first = [
            published(old, now, [1007, 102, 0, 0, 0, 0, 0], true),
            published(young, now, [5, 0, 3, 2, 4, 1, 6], true),
        ];
        for again in 0..2 {
            proxies.learn(first.to_vec(), now + again);
            let labels =
                |outcome| format!(r#"{{domain="shop",policy="per-caller",outcome="{outcome}"}}"#);
            let request = |outcome, count| {
                format!("quotagate_native_requests_total{} {count}", labels(outcome))
            };
            let lines = [
                request("admitted", 12),
                request("refused", 2),
                request("shadow_refused", 3),
                request("marked", 2),
                request("store_error", 1),
                r#"quotagate_native_missing_identity_total{domain="shop",policy="per-caller"} 4"#
                    .to_owned(),
                r#"quotagate_native_settled_if_missing_total{domain="shop",policy="per-caller"} 6"#
                    .to_owned(),
                r#"quotagate_native_calls_total{outcome="ok"} 23"#.to_owned(),
                r#"quotagate_native_calls_total{outcome="failed"} 1"#.to_owned(),
                "quotagate_native_call_seconds_total 0.024".to_owned(),
            ];
            shows(&proxies, &lines.each_ref().map(String::as_str));
        }
    }

    #[test]
    fn silent_proxy_is_shown_for_an_hour_unless_another_one_speaks_on_its_host() {
        let proxies = NativeProxies::default();
        let [gone, restarted, anew] = [
            ("00000000000000aa", "gw-1", START),
            ("00000000000000bb", "gw-2", START - 900_000),
            // It started while the other one drained.
            ("00000000000000cc", "gw-2", START - 60_000),
        ];
        let at = |proxy, now, ready| published(proxy, now, [0; 7], ready);
        proxies.learn(vec![at(gone, START, true), at(restarted, START, false)], START);
        let states = |ready, not_ready, silent| {
            [("ready", ready), ("not_ready", not_ready), ("silent", silent)].map(
                |(state, count)| format!(r#"quotagate_native_proxies{{state="{state}"}} {count}"#),
            )
        };
        let expect = |counts: [String; 3]| shows(&proxies, &counts.each_ref().map(String::as_str));
        expect(states(1, 1, 0));
        let now = START + 160_000;
        proxies.learn(vec![at(anew, now, true)], now);
        expect(states(1, 0, 1));
        shows(
            &proxies,
            &[
                r#"quotagate_native_last_seen_seconds{host="gw-1"} 160"#,
                r#"quotagate_native_last_seen_seconds{host="gw-2"} 0"#,
            ],
        );
        let silent = SilentProxy { host: "gw-1".to_owned(), silent_ms: 160_000 };
        assert_eq!(proxies.silent(), [silent]);
        let now = START + 3_601_000;
        proxies.learn(vec![at(anew, now, true)], now);
        expect(states(1, 0, 0));
        assert!(!text(&proxies).contains("gw-1"));
    }

    #[test]
    fn silent_proxy_is_shown_beside_an_older_one_on_its_host() {
        let proxies = NativeProxies::default();
        let [gone, beside] = [
            ("00000000000000aa", "gw-1", START - 3000),
            ("00000000000000bb", "gw-1", START - 5000),
        ];
        let at = |proxy, now| published(proxy, now, [0; 7], true);
        proxies.learn(vec![at(gone, START), at(beside, START)], START);
        let now = START + 160_000;
        proxies.learn(vec![at(beside, now)], now);
        let silent = SilentProxy { host: "gw-1".to_owned(), silent_ms: 160_000 };
        assert_eq!(proxies.silent(), [silent]);
    }

    #[test]
    fn fault_ends_with_the_picture_of_a_module_that_becomes_idle() {
        let proxies = NativeProxies::default();
        let proxy = ("00000000000000aa", "gw-1", START);
        proxies.learn(vec![published(proxy, START, [0; 7], false)], START);
        shows(&proxies, &[r#"quotagate_native_proxies{state="not_ready"} 1"#]);
        let (record, _) = published(proxy, START + 60_000, [0; 7], false);
        proxies.learn(vec![(record, None)], START + 60_000);
        shows(
            &proxies,
            &[
                r#"quotagate_native_proxies{state="not_ready"} 0"#,
                r#"quotagate_native_proxies{state="ready"} 1"#,
            ],
        );
    }

    #[test]
    fn documents_of_a_proxy_are_known_while_its_picture_is_fresh() {
        let proxies = NativeProxies::default();
        let seen = |in_force_s, last_s| {
            let workers = json!([[0, in_force_s, last_s]]);
            let proxy = json!({"proxy": "00000000000000aa", "live": true, "workers": workers});
            let (domain, digest) = ("shop", "0123456789ab");
            let seen = json!({"domain": domain, "digest": digest, "number": 7, "proxies": [proxy]});
            serde_json::from_value::<DocumentSighting>(seen).unwrap()
        };
        let proxy = ("00000000000000aa", "gw-1", START);
        let (record, picture) = published(proxy, START, [0; 7], true);
        let picture = picture.map(|picture| Picture { in_force: vec![seen(60, 1)], ..picture });
        proxies.learn(vec![(record.clone(), picture.clone())], START + 4_000);
        let now = Instant::now();
        assert_eq!(proxies.documents(now), [seen(64, 5)]);
        // Nothing can be read for a while.
        let later = |s| proxies.documents(now + Duration::from_secs(s));
        assert_eq!(later(30), [seen(94, 35)]);
        assert_eq!(merged(later(54)).len(), 1);
        assert_eq!(merged(later(55)).len(), 0, "a minute after its last report");
        proxies.learn(vec![(record.clone(), picture)], START + 21_000);
        assert_eq!(proxies.documents(now), [], "the picture is old");
        proxies.learn(vec![(record, None)], START + 22_000);
        assert_eq!(proxies.documents(now), []);
    }

    #[test]
    fn proxies_and_policies_are_bounded() {
        let proxies = NativeProxies::default();
        let publish = |n: usize, now: u64| {
            let id = format!("{n:016x}");
            let (record, picture) = published((&id, &id, START + n as u64), now, [1; 7], true);
            let mut picture = picture.unwrap();
            let totals = picture.totals.pop().unwrap();
            let named = |m| PolicyTotals { policy: format!("p{n}-{m}"), ..totals.clone() };
            picture.totals.extend((0..5).map(named));
            proxies.learn(vec![(record, Some(picture))], now);
        };
        for n in 0..2 * MAX_PUBLISHERS {
            publish(n, START + n as u64);
        }
        assert_eq!(proxies.lock().proxies.len(), MAX_PUBLISHERS);
        let admitted = |text: &str| text.matches(r#",outcome="admitted"} 1"#).count();
        assert_eq!(admitted(&text(&proxies)), MAX_POLICIES);
        publish(0, START + 3 * MAX_PUBLISHERS as u64);
        assert_eq!(admitted(&text(&proxies)), MAX_POLICIES, "one that comes back counts once");
        shows(
            &proxies,
            &[&format!(r#"quotagate_native_proxies{{state="ready"}} {MAX_PUBLISHERS}"#)],
        );
    }
}
