//! A picture as the fields of a hash: one item each. What cannot be read, or is out of its bounds,
//! is ignored item by item: anything may have written it.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use quotagate_protocol::{Kind, MAX_CALENDAR_S, MAX_UNITS, MAX_WINDOW_S, Window};
use quotagate_protocol::{is_domain, is_policy};
use quotagate_store::control::{Field, MAX_PUBLISHED, MAX_VALUE};
use serde::{Deserialize, Serialize};

use crate::api::{Refused, Usage};
use crate::watch::{
    Beyond, DocumentSighting, MAX_REFUSED_DOCUMENTS, Pace, PolicyTotals, RefusedDocumentSighting,
    RulesSighting, STEPS, Series, Sighting, SlotTotals, StoreTotals, Wanted, Watch,
};

/// Most partitions in each list of a picture.
pub const LISTED: usize = 48;
/// Most partitions in the list of those that would be refused.
const LET_THROUGH: usize = 24;
/// Most policies of a picture.
const POLICIES: usize = MAX_PUBLISHED - 2 * LISTED - LET_THROUGH - IN_FORCE - TOTALS - RULES - 4;
/// Most documents of a picture, or parts of one.
const IN_FORCE: usize = 8;
/// Most items with the totals of policies. Each has as many as fit into [`MAX_VALUE`].
const TOTALS: usize = 16;
/// Most items with the rules of domains, as many in each.
const RULES: usize = 3;
/// Most bytes of all lists, of the requests of all policies, and of the documents.
const LISTS_BYTES: usize = 32 * 1024;
const POLICIES_BYTES: usize = 16 * 1024;
const IN_FORCE_BYTES: usize = IN_FORCE * MAX_VALUE;
/// Most bytes of a picture.
const BYTES: usize =
    LISTS_BYTES + POLICIES_BYTES + IN_FORCE_BYTES + (TOTALS + RULES + 1) * MAX_VALUE;

/// What a process saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Picture {
    /// When it was taken, in milliseconds of the backend's clock.
    pub at_ms: u64,
    /// Its calls.
    pub pace: Pace,
    /// Its store since it started; absent from a process that is older than this field.
    pub store: Option<StoreTotals>,
    /// The fullest partitions.
    pub fullest: Vec<Sighting>,
    /// The most refused partitions.
    pub refused: Vec<Refused>,
    /// Those that would be refused most, but for the mode of their policy.
    pub would_refuse: Vec<Refused>,
    /// Requests of policies.
    pub series: Vec<Series>,
    /// All requests of each policy since a proxy started; empty from a store.
    pub totals: Vec<PolicyTotals>,
    /// The documents that filters refused.
    pub documents: Vec<RefusedDocumentSighting>,
    /// The documents in force.
    pub in_force: Vec<DocumentSighting>,
    /// The rules in force; empty from what is no rate limit service.
    pub rules: Vec<RulesSighting>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Item {
    AtMs(u64),
    Pace(Pace),
    Store(StoreTotals),
    Fullest(Sighting),
    Refused(Refused),
    WouldRefuse(Refused),
    Series(Series),
    Totals(Vec<PolicyTotals>),
    Documents(Vec<RefusedDocumentSighting>),
    InForce(DocumentSighting),
    Rules(Vec<RulesSighting>),
}

impl Picture {
    /// What this process saw until now.
    pub fn take(watch: &Watch, pace: Pace, at_ms: u64) -> Self {
        let mut series = watch.series();
        // What went wrong comes first, then the busiest.
        series.sort_by_cached_key(|series| {
            let sums = series.counts.each_ref().map(|column| column.iter().sum::<u64>());
            let [.., missing_identity, store_error, _] = sums;
            let name = (series.domain.clone(), series.policy.clone());
            let sums = (missing_identity.saturating_add(store_error), sums.iter().sum::<u64>());
            (std::cmp::Reverse(sums), name)
        });
        series.truncate(POLICIES);
        let all = Wanted::default();
        let (fullest, refused) =
            (watch.fullest(LISTED, all), watch.beyond(Beyond::Refused, LISTED, all));
        let would_refuse = watch.beyond(Beyond::LetThrough, LET_THROUGH, all);
        let documents = watch.documents.seen(Instant::now());
        let mut in_force = watch.in_force.seen(Instant::now());
        // Those of domains with several first: they say which proxies differ.
        let mut of_domain: HashMap<String, usize> = HashMap::new();
        for of in &in_force {
            *of_domain.entry(of.domain.clone()).or_default() += 1;
        }
        in_force.sort_by_key(|of| of_domain.get(&of.domain).is_none_or(|several| *several < 2));
        // The first part of each document comes before the second one of any.
        let parts =
            in_force.into_iter().flat_map(|of| of.in_parts(MAX_VALUE).into_iter().enumerate());
        let mut parts: Vec<_> = parts.collect();
        parts.sort_by_key(|(index, _)| *index);
        let mut in_force: Vec<_> = parts.into_iter().map(|(_, part)| part).collect();
        if in_force.len() > IN_FORCE {
            in_force.truncate(IN_FORCE);
            in_force.iter_mut().for_each(|part| part.is_cut = true);
        }
        Self {
            at_ms,
            pace,
            store: None,
            fullest,
            refused,
            would_refuse,
            series,
            totals: Vec::new(),
            documents,
            in_force,
            rules: watch.rules.seen(Instant::now()),
        }
    }

    /// Adds the totals of all policies, with those first that something went wrong with, and then
    /// those with the most requests.
    pub fn add_totals(&mut self, watch: &Watch) {
        self.totals = watch.totals();
        self.totals.sort_by_cached_key(|of| {
            let [.., missing_identity, store_error, _] = of.counts;
            let sums =
                (missing_identity.saturating_add(store_error), of.counts.iter().sum::<u64>());
            (std::cmp::Reverse(sums), of.domain.clone(), of.policy.clone())
        });
    }

    /// Whether it lacks documents, or proxies that have one.
    pub fn is_cut(&self) -> bool {
        self.in_force.iter().any(|part| part.is_cut)
    }

    /// Whether nothing was seen.
    pub const fn is_empty(&self) -> bool {
        self.fullest.is_empty()
            && self.refused.is_empty()
            && self.would_refuse.is_empty()
            && self.series.is_empty()
            && self.documents.is_empty()
            && self.in_force.is_empty()
            && self.rules.is_empty()
    }

    /// Its fields: at most [`MAX_PUBLISHED`], and at most [`BYTES`].
    pub fn fields(self) -> Vec<Field> {
        let head = [Item::AtMs(self.at_ms), Item::Pace(self.pace), Item::Documents(self.documents)]
            .into_iter()
            .chain(self.store.map(Item::Store));
        let beyond = interleave(
            self.refused.into_iter().map(Item::Refused),
            self.would_refuse.into_iter().map(Item::WouldRefuse),
        );
        let lists = interleave(self.fullest.into_iter().map(Item::Fullest), beyond.into_iter());
        let values = values(head, MAX_VALUE)
            .chain(values(lists, LISTS_BYTES))
            .chain(values(self.series.into_iter().map(Item::Series), POLICIES_BYTES))
            .chain(values(together(self.totals, Item::Totals, TOTALS), TOTALS * MAX_VALUE))
            .chain(values(together(self.rules, Item::Rules, RULES), RULES * MAX_VALUE))
            .chain(values(self.in_force.into_iter().map(Item::InForce), IN_FORCE_BYTES));
        let named = values.enumerate().map(|(index, value)| (index.to_string(), value));
        named.take(MAX_PUBLISHED).collect()
    }

    /// Reads one, and ignores what is beyond [`BYTES`]; `None` without a time.
    pub fn read(fields: &[Field]) -> Option<Self> {
        let (mut picture, mut at, mut left) = (Self::default(), None, BYTES);
        // A service has one row for each domain.
        let mut named = HashSet::new();
        for (_, value) in fields {
            let Some(rest) = left.checked_sub(value.len()) else { break };
            left = rest;
            match serde_json::from_slice(value) {
                Ok(Item::AtMs(at_ms)) => at = Some(at_ms),
                Ok(Item::Pace(pace)) if is_sound_pace(&pace) => picture.pace = pace,
                Ok(Item::Store(store)) if is_sound_store(&store) => picture.store = Some(store),
                Ok(Item::Fullest(sighting)) if is_sound_usage(&sighting.usage) => {
                    picture.fullest.push(sighting);
                }
                Ok(Item::Refused(refused)) if is_sound_refused(&refused) => {
                    picture.refused.push(refused);
                }
                Ok(Item::WouldRefuse(refused)) if is_sound_refused(&refused) => {
                    picture.would_refuse.push(refused);
                }
                Ok(Item::Series(series)) if is_sound_series(&series) => picture.series.push(series),
                Ok(Item::Totals(totals)) => {
                    picture.totals.extend(totals.into_iter().filter(is_sound_totals));
                }
                Ok(Item::Documents(documents)) => picture.documents = documents,
                Ok(Item::InForce(sighting)) if sighting.is_sound() => {
                    picture.in_force.push(sighting);
                }
                Ok(Item::Rules(rules)) => {
                    let is_new = |of: &RulesSighting| named.insert(of.domain.clone());
                    let sound = rules.into_iter().filter(RulesSighting::is_sound);
                    picture.rules.extend(sound.filter(is_new));
                }
                _ => {}
            }
        }
        picture.documents.retain(RefusedDocumentSighting::is_sound);
        picture.documents.truncate(MAX_REFUSED_DOCUMENTS);
        Some(Self { at_ms: at?, ..picture })
    }
}

/// The first items that fit into so many bytes. One that no reader accepts is left out.
fn values(items: impl IntoIterator<Item = Item>, bytes: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut left = bytes;
    let values = items.into_iter().filter_map(|item| serde_json::to_vec(&item).ok());
    values.filter(|value| value.len() <= MAX_VALUE).map_while(move |value| {
        left = left.checked_sub(value.len())?;
        Some(value)
    })
}

/// The entries in at most so many items of at most [`MAX_VALUE`] bytes.
fn together<T: Serialize>(all: Vec<T>, item: fn(Vec<T>) -> Item, most: usize) -> Vec<Item> {
    // The name of an item, its brackets, and a comma for each entry.
    let empty = serde_json::to_vec(&item(Vec::new())).map_or(0, |value| value.len());
    let (mut items, mut some, mut bytes) = (Vec::new(), Vec::new(), empty);
    for of in all {
        let own = serde_json::to_vec(&of).map_or(0, |value| value.len() + 1);
        if bytes + own > MAX_VALUE {
            items.push(item(std::mem::take(&mut some)));
            bytes = empty;
        }
        bytes += own;
        some.push(of);
    }
    items.extend((!some.is_empty()).then(|| item(some)));
    items.truncate(most);
    items
}

fn interleave<T>(one: impl Iterator<Item = T>, other: impl Iterator<Item = T>) -> Vec<T> {
    let (mut one, mut other) = (one.fuse(), other.fuse());
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(one.next());
        all.extend(other.next());
        if all.len() == before {
            return all;
        }
    }
}

fn is_sound_pace(pace: &Pace) -> bool {
    let sound = |number: f64| number.is_finite() && (0.0..=1e12).contains(&number);
    sound(pace.per_s) && pace.ms.is_none_or(sound)
}

fn is_sound_store(store: &StoreTotals) -> bool {
    let StoreTotals { calls, failed, micros, ready: _ } = *store;
    failed <= calls && calls <= MAX_UNITS && micros <= MAX_UNITS
}

fn is_sound_usage(usage: &Usage) -> bool {
    let Usage { domain, policy, partition, used, debt, quota, kind, window_s, reset_ms, .. } =
        usage;
    // The length of the current window is beside a calendar, which has none.
    let (named_s, longest_s) = match kind {
        Kind::Calendar(_) => (0, MAX_CALENDAR_S),
        Kind::InFlight => (0, 0),
        Kind::Fixed | Kind::Sliding | Kind::Unknown => (*window_s, MAX_WINDOW_S),
    };
    let longest_ms = match Window::of(kind, named_s, 0) {
        Some(Window::Calendar(_)) => u64::from(*window_s).saturating_mul(1000),
        Some(window) => window.longest_reset_ms(),
        None => return false,
    };
    is_key(domain, policy, partition)
        && *used <= MAX_UNITS
        && debt <= used
        && quota.is_some_and(|quota| quota <= MAX_UNITS)
        && (longest_s.min(1)..=longest_s).contains(window_s)
        && *reset_ms <= longest_ms
}

fn is_sound_refused(refused: &Refused) -> bool {
    let Refused { domain, policy, partition, requests, error, for_ms: _ } = refused;
    is_key(domain, policy, partition) && *requests <= MAX_UNITS && error <= requests
}

fn is_sound_series(series: &Series) -> bool {
    let Series { domain, policy, counts, .. } = series;
    let sound = |column: &Vec<u64>| column.len() <= STEPS && are_bounded(column);
    is_domain(domain) && is_policy(policy) && counts.iter().all(sound)
}

fn is_sound_totals(totals: &PolicyTotals) -> bool {
    let PolicyTotals { domain, policy, counts, slots } = totals;
    let SlotTotals { held, waiting, expired } = slots.unwrap_or_default();
    is_domain(domain)
        && is_policy(policy)
        && are_bounded(counts)
        && are_bounded(&[held, waiting, expired])
}

fn are_bounded(counts: &[u64]) -> bool {
    counts.iter().all(|count| *count <= MAX_UNITS)
}

fn is_key(domain: &str, policy: &str, partition: &str) -> bool {
    is_domain(domain) && is_policy(policy) && partition.bytes().all(|b| b.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use quotagate_protocol::dials::{RefusedDocument, Report};
    use quotagate_protocol::{Calendar, Unit};

    use super::*;
    use crate::api::QuotaFrom;
    use crate::watch::{ProxySighting, WorkerSighting};

    fn sighting(partition: &str) -> Sighting {
        let usage = Usage {
            domain: "d".to_owned(),
            policy: "p".to_owned(),
            partition: partition.to_owned(),
            used: 3,
            debt: 0,
            quota: Some(10),
            quota_from: QuotaFrom::Override,
            kind: Kind::Fixed,
            window_s: 60,
            reset_ms: 60_000,
        };
        Sighting { usage, window: 7, age_ms: 5 }
    }

    fn refused(partition: &str) -> Refused {
        let (domain, policy) = ("d".to_owned(), "p".to_owned());
        Refused {
            domain,
            policy,
            partition: partition.to_owned(),
            requests: 9,
            error: 2,
            for_ms: 1,
        }
    }

    fn series(policy: &str) -> Series {
        let counts = [vec![1; STEPS], vec![], vec![], vec![], vec![], vec![7; STEPS], vec![]];
        let (domain, policy) = ("d".to_owned(), policy.to_owned());
        Series { domain, policy, age_ms: 9, counts }
    }

    fn totals(policy: &str) -> PolicyTotals {
        let (domain, policy) = ("d".to_owned(), policy.to_owned());
        PolicyTotals { domain, policy, counts: [7; 7], slots: None }
    }

    fn in_force(domain: &str) -> DocumentSighting {
        let proxy = ProxySighting {
            proxy: "0123456789abcdef".to_owned(),
            live: false,
            refuses: 0,
            workers: vec![WorkerSighting(0, 1, 1)],
        };
        let (domain, digest) = (domain.to_owned(), "0123456789ab".to_owned());
        let proxies = vec![proxy; 64];
        DocumentSighting {
            domain,
            digest,
            number: 0,
            proxies,
            requests: 9,
            refused: 2,
            is_cut: false,
        }
    }

    fn rules(domain: &str) -> RulesSighting {
        let domain = domain.to_owned();
        RulesSighting { domain, follows: true, ..RulesSighting::default() }
    }

    #[test]
    fn picture_survives_its_fields() {
        let mut sliding = sighting("b");
        sliding.usage = Usage { kind: Kind::Sliding, reset_ms: 63_000, debt: 2, ..sliding.usage };
        let mut daily = sighting("c");
        let kind = Kind::Calendar(Calendar { unit: Unit::Day, time_zone: "Europe/Berlin".into() });
        daily.usage = Usage { kind, window_s: 90_000, reset_ms: 90_000_000, ..daily.usage };
        let mut slots = sighting("d");
        let kind = Kind::InFlight;
        slots.usage = Usage { kind, window_s: 0, reset_ms: 9_000, ..slots.usage };
        let picture = Picture {
            at_ms: 77,
            pace: Pace { per_s: 2.5, ms: None },
            store: Some(StoreTotals { calls: 9, failed: 1, micros: 70, ready: true }),
            fullest: vec![sighting("a"), sliding, daily, slots],
            refused: vec![refused("c")],
            would_refuse: vec![refused("t")],
            series: vec![series("p")],
            totals: vec![totals("p"), totals("q")],
            documents: vec![refused_document("d", 9)],
            in_force: vec![in_force("d")],
            rules: vec![rules("d"), rules("e")],
        };
        let fields = picture.clone().fields();
        assert_eq!(fields.len(), 14);
        assert!(
            fields.iter().all(|(_, value)| value.starts_with(b"{")),
            "the script reads no other"
        );
        assert_eq!(Picture::read(&fields), Some(picture));
    }

    #[test]
    fn domain_that_a_service_names_twice_is_read_once() {
        let again = RulesSighting { number: 1, digest: "0123456789ab".to_owned(), ..rules("d") };
        let rules = vec![rules("d"), again, rules("e"), rules("d")];
        let fields = Picture { at_ms: 7, rules: rules.clone(), ..Picture::default() }.fields();
        let read = Picture::read(&fields).unwrap().rules;
        assert_eq!(read, [rules[0].clone(), rules[2].clone()]);
    }

    #[test]
    fn fields_are_bounded() {
        let long = |n: usize| format!("{n:0>1000}");
        let huge = "x".repeat(MAX_VALUE);
        let mut picture = Picture {
            fullest: (0..LISTED).map(|n| sighting(&long(n))).collect(),
            refused: (0..LISTED).map(|n| refused(&long(n))).collect(),
            would_refuse: (0..LET_THROUGH).map(|n| refused(&long(n))).collect(),
            series: (0..POLICIES).map(|n| series(&format!("p{n}{}", "x".repeat(240)))).collect(),
            totals: (0..2000).map(|n| totals(&format!("p{n}"))).collect(),
            documents: vec![refused_document("d", 9); MAX_REFUSED_DOCUMENTS],
            in_force: (0..IN_FORCE).map(|n| in_force(&format!("d{n}"))).collect(),
            rules: (0..999).map(|n| rules(&format!("d{n}"))).collect(),
            ..Picture::default()
        };
        picture.fullest.insert(0, sighting(&huge));
        let fields = picture.fields();
        let bytes_of = |is_of: &[&str]| -> usize {
            let starts = is_of.iter().map(|name| format!("{{\"{name}\":")).collect::<Vec<_>>();
            let texts = fields.iter().map(|(_, value)| str::from_utf8(value).unwrap());
            let own = texts.filter(|text| starts.iter().any(|start| text.starts_with(start)));
            own.map(str::len).sum()
        };
        for (is_of, most, least) in [
            (&["fullest", "refused", "would_refuse"][..], LISTS_BYTES, LISTS_BYTES - 2 * 1200),
            (&["series"], POLICIES_BYTES, POLICIES_BYTES / 2),
            (&["totals"], TOTALS * MAX_VALUE, TOTALS * (MAX_VALUE - 100)),
            (&["rules"], RULES * MAX_VALUE, RULES * (MAX_VALUE - 200)),
            (&["in_force"], IN_FORCE_BYTES, IN_FORCE_BYTES / 2),
            (&["at_ms", "pace", "documents"], MAX_VALUE, 1),
        ] {
            assert!((least..=most).contains(&bytes_of(is_of)), "{is_of:?}: {}", bytes_of(is_of));
        }
        let read = Picture::read(&fields).unwrap();
        let twice = Picture::read(&[&fields[..], &fields[..]].concat()).unwrap();
        assert!(twice.fullest.len() < 2 * read.fullest.len(), "a reader has the same bound");
        assert!(read.fullest.len() > 9 && read.refused.len() > 4 && read.would_refuse.len() > 4);
        assert!(read.series.len() > 9 && read.in_force.len() > 4 && read.documents.len() > 1);
        assert!(read.totals.len() > 900 && read.totals[900] == totals("p900"));
        assert_eq!(read.fullest[0], sighting(&long(0)), "one that is too large is left out");
        let short = |n: usize| n.to_string();
        let quiet = |policy: &str| Series { counts: Default::default(), ..series(policy) };
        let of_one = |n| {
            let proxies = in_force("d").proxies.into_iter().take(1).collect();
            DocumentSighting { proxies, ..in_force(&short(n)) }
        };
        let picture = Picture {
            fullest: (0..LISTED).map(|n| sighting(&short(n))).collect(),
            refused: (0..LISTED).map(|n| refused(&short(n))).collect(),
            would_refuse: (0..LET_THROUGH).map(|n| refused(&short(n))).collect(),
            series: (0..POLICIES).map(|n| quiet(&short(n))).collect(),
            totals: (0..1150).map(|n| totals(&format!("p{n}"))).collect(),
            in_force: (0..IN_FORCE).map(of_one).collect(),
            rules: (0..100).map(|n| rules(&short(n))).collect(),
            store: Some(StoreTotals::default()),
            ..Picture::default()
        };
        let (fields, all) = (picture.clone().fields(), picture);
        assert_eq!(fields.len(), MAX_PUBLISHED);
        assert_eq!(Picture::read(&fields), Some(all), "none is left out while all are short");
        let items = POLICIES + 2 * LISTED + LET_THROUGH + IN_FORCE + TOTALS + RULES + 4;
        assert_eq!(items, MAX_PUBLISHED);
    }

    #[test]
    fn documents_that_differ_are_published_first() {
        let (watch, now) = (Watch::default(), Instant::now());
        let report = |digest: char, proxy: char| Report {
            digest: digest.to_string().repeat(12),
            proxy: proxy.to_string().repeat(16),
            ..Report::default()
        };
        for n in 0..2 * IN_FORCE {
            watch.in_force.reported(&format!("a{n}"), &report('0', '0'), now);
        }
        for (digest, proxy) in [('1', '1'), ('2', '2')] {
            watch.in_force.reported("z", &report(digest, proxy), now);
        }
        let picture = Picture::take(&watch, Pace::default(), 0);
        assert_eq!(picture.in_force.len(), IN_FORCE);
        let differ = picture.in_force.iter().filter(|of| of.domain == "z").count();
        assert_eq!(differ, 2, "{:?}", picture.in_force);
    }

    fn refused_document(domain: &str, age_ms: u64) -> RefusedDocumentSighting {
        let domain = domain.to_owned();
        RefusedDocumentSighting { domain, document: RefusedDocument::default(), age_ms }
    }

    #[test]
    fn hostile_items_are_ignored_one_by_one() {
        let good = [json!({"at_ms": 5}), json!({"fullest": sighting("a")})];
        let with = |item: &str, field: &str, value: Value| {
            let mut wrong = match item {
                "fullest" => json!({"fullest": sighting("a")}),
                "refused" | "would_refuse" => json!({item: refused("a")}),
                _ => json!({"series": series("p")}),
            };
            wrong[item][field] = value;
            wrong
        };
        let mut fields: Vec<Field> = [
            with("fullest", "domain", json!("d!")),
            with("fullest", "policy", json!("<script>")),
            with("fullest", "partition", json!("a\u{1b}[2J")),
            with("fullest", "partition", json!("ä")),
            with("fullest", "used", json!(u64::MAX)),
            with("fullest", "used", json!(-1)),
            with("fullest", "quota", Value::Null),
            with("fullest", "quota", json!(u64::MAX)),
            with("fullest", "window_s", json!(0)),
            with("fullest", "window_s", json!(u32::MAX)),
            with("fullest", "reset_ms", json!(60_001)),
            with("fullest", "debt", json!(4)),
            with("fullest", "kind", json!("lunar")),
            with("fullest", "kind", json!({"calendar": {"unit": "day", "time_zone": "a\u{1b}"}})),
            with("fullest", "quota_from", json!("nobody")),
            with("refused", "partition", json!("a b")),
            with("refused", "requests", json!(u64::MAX)),
            with("refused", "error", json!(10)),
            with("would_refuse", "error", json!(10)),
            with("series", "counts", json!([[u64::MAX], [], [], [], [], []])),
            with("series", "counts", json!([vec![1; STEPS + 1], [], [], [], [], []])),
            with("series", "counts", json!([[], []])),
            json!({"totals": [{"domain": "d", "policy": "p", "counts": [u64::MAX, 0, 0, 0, 0, 0]}]}),
            json!({"totals": [{"domain": "d!", "policy": "p", "counts": [0, 0, 0, 0, 0, 0]}]}),
            json!({"totals": [{"domain": "d", "policy": "p", "counts": [0]}]}),
            json!({"totals": [{"domain": "d", "policy": "p", "counts": [0, 0, 0, 0, 0, 0],
                "slots": {"held": 1, "waiting": 0, "expired": u64::MAX}}]}),
            json!({"store": {"calls": 1, "failed": 2, "micros": 0, "ready": true}}),
            json!({"store": {"calls": u64::MAX, "failed": 0, "micros": 0, "ready": true}}),
            with("series", "domain", json!("")),
            json!({"pace": {"per_s": -1.0, "ms": null}}),
            json!({"pace": {"per_s": 1e300, "ms": null}}),
            json!({"documents": [refused_document("d!", 0)]}),
            json!({"documents": [refused_document("d", 60_000)]}),
            json!({"rules": [rules("d!")]}),
            json!({"in_force": in_force("d!")}),
            json!({"in_force": {"domain": "d", "digest": "0123456789ab",
                "proxies": [{"proxy": "<b>", "workers": []}]}}),
            json!({"in_force": {"domain": "d", "digest": "0123456789AB", "proxies": []}}),
            json!({"unknown": 7}),
            json!([]),
        ]
        .iter()
        .map(|wrong| (String::new(), wrong.to_string().into_bytes()))
        .collect();
        fields.extend(
            [&b""[..], b"{", b"\xff", b"{\"at_ms\":\"soon\"}"]
                .map(|text| (String::new(), text.to_vec())),
        );
        assert_eq!(Picture::read(&fields), None, "it has no time");
        fields.extend(good.iter().map(|good| (String::new(), good.to_string().into_bytes())));
        let expected = Picture { at_ms: 5, fullest: vec![sighting("a")], ..Picture::default() };
        assert_eq!(Picture::read(&fields), Some(expected));
    }
}
