//! A domain as read from the backend: its dials, and which of its policies have overrides.
//!
//! The dials are small, and are read each time. A domain may have ten thousand overrides, so only
//! an index of them is kept. It is read again with each new version, and otherwise every [`INDEX`].
//! Bound: a reply to proxies has at most [`MAX_REPLY`] bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quotagate_protocol::dials::{
    ALL_POLICIES, Dial, DialFields, DialsReply, DocumentVersion, MAX_REPLY, Report,
};

use quotagate_protocol::{Mode, is_policy};

use crate::millis;
use crate::pattern::PatternOverrides;
use crate::record::documents::{
    LOST_RECORD, NamedDocuments, Publications, PublishedRules, published,
};
use crate::record::{DialRecord, OverrideRecord, dial_words, left_at, write};
use quotagate_store::control::{ChangesVersion, ControlStore, HashName, Snapshot};
use quotagate_store::store::StoreError;

/// How often the index of overrides is read without a new version.
const INDEX: Duration = Duration::from_secs(60);
/// Most invalid fields, or lost dials, that a log line names.
const NAMED: usize = 8;
/// Time for which a loss of dials or overrides is shown. A document that was lost is shown until
/// there is a record again.
const LOSS_SHOWN: Duration = Duration::from_secs(60 * 60);
/// Bytes in a reply for dials and names, besides the braces and the version.
const ROOM: usize = MAX_REPLY - 256;

/// What the dials in force set for a policy: its own dial, else the dial of all policies.
pub fn in_force(dials: &Snapshot, policy: &str) -> DialFields {
    let of = |name| own_record(dials, name).map(|dial| dial.fields).unwrap_or_default();
    of(policy).or(of(ALL_POLICIES))
}

/// The dial with this name, if it is in force.
pub fn own_record(dials: &Snapshot, name: &str) -> Option<DialRecord> {
    let record = dials.get(name).and_then(|value| DialRecord::read(name, value).ok());
    record.filter(|dial| dial.left_at(dials.now).is_some())
}

/// A domain as last read.
pub struct View {
    snapshot: Snapshot,
    /// When it was read.
    pub at: Instant,
    dials: Vec<(String, DialRecord)>,
    pub overrides: Arc<Index>,
    /// What is published; `None` if that is not known.
    documents: Option<Publications>,
    /// The last that was known, and since when.
    known_documents: Option<(Publications, Instant)>,
    /// What is wrong with it, for the log; empty if nothing is.
    pub complaint: String,
    losses: Losses,
}

/// Records of a domain that this process or proxies knew, and the backend no longer has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Number of the published document that proxies have, without any record of one.
    pub document: Option<u64>,
    /// Dials and overrides that were in force, in words, and when their loss was found.
    changes: Option<(Instant, Arc<str>)>,
}

impl Losses {
    /// Whether dials or overrides were lost within [`LOSS_SHOWN`].
    pub fn has_changes(&self) -> bool {
        self.changes().is_some()
    }

    fn changes(&self) -> Option<&str> {
        let recent = self.changes.as_ref().filter(|(at, _)| at.elapsed() < LOSS_SHOWN);
        recent.map(|(_, words)| &**words)
    }

    /// Describes the losses in sentences for operators.
    pub fn sentences(&self, domain: &str) -> Vec<String> {
        let document = self.document.map(|number| lost_document(domain, number));
        let changes = self.changes().map(|words| {
            format!(
                "the backend lost the last changes of {domain}, and these are not in force any \
                 more: {words}. Set them again"
            )
        });
        document.into_iter().chain(changes).collect()
    }
}

/// That a backend has no record of a document that proxies have, in a sentence for operators.
pub fn lost_document(domain: &str, number: u64) -> String {
    format!(
        "the backend lost what was published in {domain}: it has no record of number {number}, \
         which was in force. Proxies and services that have it keep it, and those that start go by \
         their own: publish it again, or withdraw it"
    )
}

/// Which policies have overrides, and when the last override of each ends: `None` if it does not.
pub struct Index {
    version: ChangesVersion,
    at: Instant,
    policies: BTreeMap<String, Option<u64>>,
    /// How many overrides have no end.
    endless: usize,
    /// When the oldest of those was set.
    oldest: Option<u64>,
    /// When each of the others ends.
    ends: Vec<u64>,
    /// Those of every partition that contains a party.
    pub patterns: PatternOverrides,
}

impl Index {
    pub fn of(version: ChangesVersion, snapshot: &Snapshot) -> Self {
        let mut index = Self {
            version,
            at: Instant::now(),
            policies: BTreeMap::new(),
            endless: 0,
            oldest: None,
            ends: Vec::new(),
            patterns: PatternOverrides::of(&snapshot.fields),
        };
        for (field, value) in &snapshot.fields {
            let is_known = |policy: &str| policy == ALL_POLICIES || is_policy(policy);
            let Some((policy, _)) = field.split_once(":{").filter(|(policy, _)| is_known(policy))
            else {
                continue;
            };
            let Ok(entry) = serde_json::from_slice::<OverrideRecord>(value) else { continue };
            match entry.until_ms {
                Some(until) => index.ends.push(until),
                None => {
                    index.endless = index.endless.saturating_add(1);
                    index.oldest = Some(index.oldest.unwrap_or(u64::MAX).min(entry.at_ms));
                }
            }
            let until = index.policies.entry(policy.to_owned()).or_insert(Some(0));
            *until = until.zip(entry.until_ms).map(|(one, other)| one.max(other));
        }
        index
    }

    /// Whether an override in it has ended by its time.
    pub fn has_ended_at(&self, now: Duration) -> bool {
        let now = millis(now);
        self.ends.iter().any(|until| *until <= now)
    }

    /// For how long the oldest override without an end has been in force.
    pub fn longest_at(&self, now: Duration) -> Duration {
        self.oldest.map_or(Duration::ZERO, |at| since(at, now))
    }

    /// How many overrides are in force.
    pub fn count_at(&self, now: Duration) -> usize {
        let now = millis(now);
        self.endless.saturating_add(self.ends.iter().filter(|until| **until > now).count())
    }
}

/// The time since a moment; zero if it is not recorded.
fn since(at_ms: u64, now: Duration) -> Duration {
    if at_ms == 0 { Duration::ZERO } else { now.saturating_sub(Duration::from_millis(at_ms)) }
}

impl View {
    /// The view of a domain that cannot be read: it has no dials.
    pub fn none() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let snapshot = Snapshot { now, ..Snapshot::default() };
        let overrides = Arc::new(Index::of(ChangesVersion::default(), &snapshot));
        Self {
            snapshot,
            at: Instant::now(),
            dials: Vec::new(),
            overrides,
            documents: None,
            known_documents: None,
            complaint: String::new(),
            losses: Losses::default(),
        }
    }

    /// Its version of dials and overrides.
    pub const fn version(&self) -> ChangesVersion {
        self.snapshot.version
    }

    /// The backend's time.
    pub fn now(&self) -> Duration {
        self.snapshot.now.saturating_add(self.at.elapsed())
    }

    /// The dials as they were read.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { now: self.now(), ..self.snapshot.clone() }
    }

    /// The dials, including those whose time is over.
    pub fn dials(&self) -> &[(String, DialRecord)] {
        &self.dials
    }

    /// How many dials are in force.
    pub fn dials_at(&self, now: Duration) -> usize {
        self.dials.iter().filter(|(_, dial)| dial.left_at(now).is_some()).count()
    }

    /// For how long the oldest dial has been in force.
    pub fn longest_dial_at(&self, now: Duration) -> Duration {
        let dials = self.dials.iter().filter(|(_, dial)| dial.left_at(now).is_some());
        dials.map(|(_, dial)| since(dial.at_ms, now)).max().unwrap_or_default()
    }

    /// Whether a policy with this mode refuses, once the dials in force are applied: a dial that
    /// refuses a part enforces.
    pub fn mode_at(&self, policy: &str, configured: Mode, now: Duration) -> Mode {
        let dial = |name: &str| {
            let own = self.dials.iter().find(|(of, _)| of == name).map(|(_, dial)| dial);
            own.filter(|dial| dial.left_at(now).is_some()).map(|dial| dial.fields.clone())
        };
        let fields = dial(policy).unwrap_or_default().or(dial(ALL_POLICIES).unwrap_or_default());
        if fields.enforced_for.is_some() {
            Mode::Enforce
        } else {
            fields.mode.unwrap_or(configured)
        }
    }

    /// Which documents proxies should have, and for how long that is known; `None` if it is not
    /// known.
    pub fn documents(&self) -> Option<(NamedDocuments, Duration)> {
        let documents = self.documents.as_ref()?;
        let (_, since) = self.known_documents.as_ref()?;
        let now = self.now();
        let known = since.elapsed();
        Some((documents.at(now), documents.ended_for(now).map_or(known, |for_| for_.min(known))))
    }

    /// The number of the document that was in force when this was last known.
    pub fn known_number(&self) -> Option<u64> {
        self.known_documents.as_ref().and_then(|(known, _)| known.number_at(self.now()))
    }

    /// What rate limit services should have that follow published rules; `None` if it is not known.
    pub fn rules(&self) -> Option<PublishedRules> {
        self.documents.as_ref().map(|documents| documents.rules_at(self.now()))
    }

    /// Records that the backend no longer has.
    pub const fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Whether the time of the last document is over.
    pub fn has_ended_document(&self) -> bool {
        self.documents.as_ref().is_some_and(|documents| documents.has_ended_at(self.now()))
    }

    /// The reply to a proxy with this report, cut to the length that it reads.
    pub fn reply(&self, report: Option<&Report>) -> DialsReply {
        self.cut_reply(report).0
    }

    /// Which document the proxy should have. Without a report that can be read, it is not known
    /// which share of the proxies it belongs to.
    fn document(&self, report: Option<&Report>) -> Option<DocumentVersion> {
        let (documents, _) = self.documents()?;
        match report {
            Some(report) => Some(documents.of_proxy(&report.proxy).clone()),
            None => documents.of_all().cloned(),
        }
    }

    /// The reply, and whether it is complete.
    fn cut_reply(&self, report: Option<&Report>) -> (DialsReply, bool) {
        let now = self.now();
        let (version, document) = (self.snapshot.version.number, self.document(report));
        let (mut reply, mut room) = (DialsReply { version, document, ..<_>::default() }, ROOM);
        let mut takes = |bytes: usize| {
            let left = room.checked_sub(bytes);
            room = left.unwrap_or_default();
            left.is_some()
        };
        let all: Vec<Dial> =
            self.dials.iter().filter_map(|(policy, dial)| dial.dial(policy, now)).collect();
        let (dials, mut names) = (all.len(), 0_usize);
        reply.dials =
            all.into_iter().take_while(|dial| takes(write(dial).len().saturating_add(1))).collect();
        for (policy, until) in &self.overrides.policies {
            if left_at(*until, now).is_some() {
                names = names.saturating_add(1);
                // Two quotation marks and a comma.
                if takes(policy.len().saturating_add(3)) {
                    reply.overridden.push(policy.clone());
                }
            }
        }
        let whole = (reply.dials.len(), reply.overridden.len()) == (dials, names);
        (reply, whole)
    }

    /// Reads a domain; `last` is the previous view, and `reported` the number of a published
    /// document that a proxy has.
    pub(crate) async fn read(
        store: &dyn ControlStore,
        domain: &str,
        last: Option<&Self>,
        reported: Option<u64>,
    ) -> Result<Self, StoreError> {
        let snapshot = store.read(HashName::Dials, domain).await?;
        let at = Instant::now();
        let overrides = Self::index(store, domain, snapshot.version, last).await;
        let (dials, complaint) = understand(&snapshot);
        // It changes with a new version only. Without one, it is read as often as the index.
        let same = last.filter(|last| {
            last.version() == snapshot.version && Arc::ptr_eq(&last.overrides, &overrides)
        });
        let mut known_documents = last.and_then(|last| last.known_documents.clone());
        let mut unreadable = false;
        let mut losses = last.map(|last| last.losses.clone()).unwrap_or_default();
        let documents = match same.and_then(|last| last.documents.clone()) {
            // One that is not recorded is looked for again if a proxy has it.
            Some(documents) if !documents.is_absent() || reported.is_none() => Some(documents),
            _ => store.read(HashName::Documents, domain).await.ok().and_then(|read| {
                let documents = published(&read);
                unreadable = documents.is_none();
                let known =
                    known_documents.as_ref().and_then(|(known, _)| known.number_at(read.now));
                losses.document = known
                    .or(reported)
                    .filter(|_| documents.as_ref().is_some_and(Publications::is_absent));
                documents.filter(|_| losses.document.is_none())
            }),
        };
        if let Some(last) = last.filter(|last| !snapshot.version.follows(&last.version())) {
            let words = last.lost(&snapshot, &dials, &overrides);
            losses.changes = words.map(|words| (at, words.into())).or(losses.changes);
        }
        // A read that fails is no news.
        if let Some(documents) = &documents
            && known_documents.as_ref().is_none_or(|(known, _)| known != documents)
        {
            known_documents = Some((documents.clone(), at));
        }
        let mut view =
            Self { snapshot, at, dials, overrides, documents, known_documents, complaint, losses };
        let unreadable = unreadable.then(|| LOST_RECORD.to_owned());
        let cut = (!view.cut_reply(None).1).then(|| {
            format!("a reply of {MAX_REPLY} bytes is too short for all: filters receive only some")
        });
        let more = view.losses.sentences(domain).into_iter().chain(unreadable).chain(cut);
        let all: Vec<String> =
            Some(view.complaint).filter(|text| !text.is_empty()).into_iter().chain(more).collect();
        view.complaint = all.join("; ");
        Ok(view)
    }

    /// Names the dials and overrides of this view that are not in a later one.
    fn lost(
        &self,
        later: &Snapshot,
        dials: &[(String, DialRecord)],
        overrides: &Index,
    ) -> Option<String> {
        let stays = |name: &str, dial: &DialRecord| {
            dials.iter().any(|(policy, of)| policy == name && of.fields == dial.fields)
        };
        let lost = self.dials.iter().filter(|(_, dial)| dial.left_at(later.now).is_some());
        let mut lost: Vec<String> = lost
            .filter(|(name, dial)| !stays(name, dial))
            .map(|(name, dial)| {
                format!("the dial of {name} ({}, by {})", dial_words(&dial.fields), dial.by)
            })
            .collect();
        if let Some(more) = lost.len().checked_sub(NAMED).filter(|more| *more > 0) {
            lost.truncate(NAMED);
            lost.push(format!("{more} more dials"));
        }
        let (had, has) = (self.overrides.count_at(later.now), overrides.count_at(later.now));
        if has < had {
            lost.push(format!("{} of {had} overrides", had.saturating_sub(has)));
        }
        (!lost.is_empty()).then(|| lost.join(", "))
    }

    async fn index(
        store: &dyn ControlStore,
        domain: &str,
        version: ChangesVersion,
        last: Option<&Self>,
    ) -> Arc<Index> {
        let last = last.map(|last| &last.overrides);
        let fresh = last.filter(|last| last.version == version && last.at.elapsed() < INDEX);
        if let Some(last) = fresh {
            return Arc::clone(last);
        }
        match store.read(HashName::Overrides, domain).await {
            Ok(found) => Arc::new(Index::of(version, &found)),
            Err(_) => last.map_or_else(|| Arc::clone(&Self::none().overrides), Arc::clone),
        }
    }
}

/// The dials that can be read, and a log text about the rest.
pub(crate) fn understand(snapshot: &Snapshot) -> (Vec<(String, DialRecord)>, String) {
    let (mut dials, mut faults) = (Vec::new(), Vec::new());
    for (policy, value) in &snapshot.fields {
        match DialRecord::read(policy, value) {
            Ok(dial) => dials.push((policy.clone(), dial)),
            Err(fault) => {
                let shown: String = policy.chars().take(64).collect();
                faults.push(format!("{shown:?}: {fault}"));
            }
        }
    }
    let bad = faults.len().saturating_add(usize::try_from(snapshot.left_out).unwrap_or(usize::MAX));
    if bad == 0 {
        return (dials, String::new());
    }
    faults.truncate(NAMED);
    let named = if faults.is_empty() { String::new() } else { format!(" ({})", faults.join("; ")) };
    (dials, format!("ignored fields that are not dials: {bad}{named}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quotagate_store::control::Field;

    fn long(n: usize) -> String {
        format!("{n:064}")
    }

    #[test]
    fn oldest_override_without_an_end_is_known() {
        let field = |partition: &str, until: &str, at_ms: u64| -> Field {
            let value = format!(r#"{{"allow":"blocked",{until}"by":"ann","at_ms":{at_ms}}}"#);
            (format!("p:{{{partition}}}"), value.into_bytes())
        };
        let now = Duration::from_secs(100);
        let longest = |fields: Vec<Field>| {
            let snapshot = Snapshot { fields, ..Snapshot::default() };
            Index::of(ChangesVersion::default(), &snapshot).longest_at(now)
        };
        let ends = field("a", r#""until_ms":900000,"#, 1000);
        assert_eq!(longest(vec![ends.clone()]), Duration::ZERO);
        let both = vec![ends, field("b", "", 40_000), field("c", "", 30_000)];
        assert_eq!(longest(both), Duration::from_secs(70));
        assert_eq!(longest(vec![field("d", "", 0)]), Duration::ZERO, "its time is not recorded");
    }

    #[test]
    fn reply_fits_into_what_a_filter_reads() {
        let dial = br#"{"mode":"enforce","quota":9007199254740991,"on_failure":"allow","until_ms":9007199254740991}"#;
        let view = |dials: usize, names: usize| {
            let fields = (0..dials).map(|n| (long(n), dial.to_vec())).collect();
            let version = ChangesVersion { number: 1 << 52, at_us: 1 };
            let snapshot = Snapshot { version, fields, ..Snapshot::default() };
            let over =
                |n| -> Field { (format!("{}:{{a}}", long(n)), br#"{"allow":"blocked"}"#.to_vec()) };
            let overrides =
                Snapshot { fields: (0..names).map(over).collect(), ..Snapshot::default() };
            let overrides = Arc::new(Index::of(version, &overrides));
            let dials = understand(&snapshot).0;
            let (at, complaint) = (Instant::now(), String::new());
            let (documents, known_documents) = (None, None);
            let losses = Losses::default();
            View { snapshot, at, dials, overrides, documents, known_documents, complaint, losses }
        };
        // As many as a filter has policies.
        let (reply, whole) = view(64, 64).cut_reply(None);
        assert_eq!((reply.dials.len(), reply.overridden.len(), whole), (64, 64, true));
        for (dials, names) in [(1024, 0), (0, 1024), (200, 1024), (1024, 1024)] {
            let (reply, whole) = view(dials, names).cut_reply(None);
            let length = serde_json::to_vec(&reply).unwrap().len();
            assert!(
                length <= MAX_REPLY && length > MAX_REPLY - 512 && !whole,
                "{dials} {names} {length}"
            );
        }
    }

    #[test]
    fn index_has_only_valid_policy_names() {
        let entry = br#"{"allow":"blocked"}"#.to_vec();
        let large = "x".repeat(8000);
        let fields = ["p", "p!", "", &large].map(|name| (format!("{name}:{{a}}"), entry.clone()));
        let snapshot = Snapshot { fields: fields.into(), ..Snapshot::default() };
        let index = Index::of(ChangesVersion::default(), &snapshot);
        assert_eq!(index.policies.into_keys().collect::<Vec<_>>(), ["p"]);
    }

    #[tokio::test]
    async fn document_is_known_since_it_was_read_first() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let operate = crate::Operate::new(Arc::clone(&store));
        let read =
            async |last: Option<&View>| View::read(store.control(), "d", last, None).await.unwrap();
        let none = read(None).await;
        assert_eq!(none.documents().unwrap().0, NamedDocuments::default());
        let publish = async |quota: u64| {
            let policy = serde_json::json!({"name": "p", "partition_by": [], "quota": quota, "window": "1h"});
            let wish = serde_json::json!({"by": "ann",
                "document": {"domain": "d", "policies": [policy]}});
            let wish = serde_json::from_value(wish).unwrap();
            operate.documents.publish(&wish).await.unwrap();
        };
        publish(1).await;
        let first = read(Some(&none)).await;
        let number = |view: &View| {
            let (documents, since) = view.known_documents.clone().unwrap();
            (documents.at(view.now()).of_all().unwrap().number, since)
        };
        let (published, since) = number(&first);
        assert!(published == 1 && since > number(&none).1);
        let again = read(Some(&first)).await;
        assert_eq!(again.known_documents, first.known_documents);
        // What cannot be read for a moment is no news.
        let failed = View { documents: None, ..again };
        assert_eq!(failed.documents(), None);
        assert_eq!(read(Some(&failed)).await.known_documents, first.known_documents);
        publish(2).await;
        let second = number(&read(Some(&failed)).await);
        assert!(second.0 == 2 && second.1 > since);
    }
}
