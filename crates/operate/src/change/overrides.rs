//! Setting, clearing and listing the overrides of single partitions. [`parties`](super::parties)
//! has those of every partition that contains a party.
//!
//! Index and override have different hash tags, so no step changes both.
//!
//! * To set an override: list it in the index, set it, and add it to history if it is still listed.
//!   Else start again.
//! * To clear an override: check that the index can be written, delete the override, and remove its
//!   entry from the index if that is unchanged. Else start again.
//!
//! History records each change. If the backend does not answer, history records the attempt.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quotagate_protocol::dials::ALL_POLICIES;
use quotagate_protocol::{CounterKey, MAX_KEY, MAX_UNITS};
use quotagate_quota::request::naming::{DigestKey, Name};

use quotagate_protocol::is_policy;

use super::dials::check_time;
use super::history::{History, Made};
use super::parties::is_pattern;
use super::remarks::sentences;
use super::shape::{arrange, can_contain, counts_by};
use crate::api::{Allow, Changed, ClearOverride, Event, OverrideEntry, PolicyInfo, SetOverride};
use crate::control::ControlHandle;
use crate::domain::directory::{Directory, DomainNames, clean};
use crate::pattern::{MAX_PATTERNS, parts, party_of};
use crate::record::{OverrideRecord, left_at, span, write};
use crate::watch::Watch;
use crate::{Fault, MAX_OVERRIDES, TRIES, millis};
use quotagate_store::control::{Change, HashName, Key, Snapshot};
use quotagate_store::store::StoreError;

/// Overrides that are read together.
const TOGETHER: usize = 64;
/// Below this age, the override of an entry may not be set yet.
const YOUNG: Duration = Duration::from_secs(10);

/// Runtime overrides of single partitions.
pub struct Overrides {
    pub(super) control: ControlHandle,
    pub(crate) directory: Arc<Directory>,
    pub(super) history: Arc<History>,
    pub(super) watch: Arc<Watch>,
}

impl Overrides {
    pub(crate) fn new(directory: Arc<Directory>, history: Arc<History>, watch: Arc<Watch>) -> Self {
        Self { control: history.control.clone(), directory, history, watch }
    }

    /// Sets an override, and replaces an existing one.
    ///
    /// # Errors
    /// If a name is not known, a value is out of its bounds, an override with a time would be
    /// replaced by one without, or the backend fails.
    pub async fn set(&self, wish: &SetOverride) -> Result<Changed, Fault> {
        if matches!(wish.allow, Allow::Quota(quota) if quota > MAX_UNITS) {
            return Err(Fault::invalid("allow", format!("a quota must be 0 to {MAX_UNITS}")));
        }
        check_time(wish.for_ms)?;
        if is_pattern(&wish.policy, &wish.partition) {
            return self.set_pattern(wish).await;
        }
        check_partition("", &wish.policy, &canonical("", &wish.policy, &wish.partition)?)?;
        let (domain, policy) =
            self.directory.domain_and_policy(wish.domain.as_deref(), &wish.policy).await?;
        let partition = counted(&domain, &policy, &wish.partition)?;
        let key = check_partition(&domain, &wish.policy, &partition)?;
        let by = clean(&wish.by);
        let field = field(&wish.policy, &partition);
        let value = match wish.allow {
            Allow::Quota(quota) => quota.to_string(),
            Allow::Unlimited => "unlimited".to_owned(),
            Allow::Blocked => "blocked".to_owned(),
        };
        let what = what(wish, &partition);
        let document = self.history.document(&domain).await;
        for _ in 0..TRIES {
            let snapshot = self.control.read(HashName::Overrides, &domain).await?;
            let old = snapshot.get(&field).map(<[u8]>::to_vec);
            check_end(wish, old.as_deref(), snapshot.now)?;
            check_room(&domain, &snapshot, &field)?;
            let at_ms = millis(snapshot.now);
            let entry = record(wish, &by, snapshot.now);
            let listing = index(&field, old.clone(), Some(entry.clone()));
            if self.control.change(&domain, &listing).await?.is_none() {
                continue;
            }
            let event = |done: String| {
                let event = Event::new(at_ms, &by, done).of(&wish.policy, Some(&partition));
                Event { document, ..event }.values(old.as_deref(), Some(&entry))
            };
            let set = event(format!("set {what}"));
            if let Err(error) = self.control.set_override(&key, &value, wish.for_ms).await {
                let doubtful = matches!(error, StoreError::NoAnswer(_));
                let undo = if doubtful {
                    // It may be in force, so it stays listed. Listing drops the entry if it is not.
                    let said =
                        write(&event(format!("tried to set {what}; the backend did not answer")));
                    Change { event: Some(said), ..index(&field, Some(entry.clone()), Some(entry)) }
                } else {
                    index(&field, Some(entry.clone()), old.clone())
                };
                if let Err(second) = self.control.change(&domain, &undo).await {
                    tracing::warn!(
                        "the list of overrides of {domain} may name one that is not set: {second}"
                    );
                }
                return Err(error.into());
            }
            // A concurrent clear or set may have missed the override, so check the entry again.
            let said = Change {
                event: Some(write(&set)),
                ..index(&field, Some(entry.clone()), Some(entry))
            };
            let recorded = self.control.change(&domain, &said).await;
            if let Some(version) = recorded
                .map_err(|error| unrecorded(error, "the override is in force and listed"))?
            {
                let mut remarks = self
                    .modes(wish.allow, &domain, std::slice::from_ref(&policy), &partition)
                    .await;
                remarks.extend(self.uncounted(&domain, &policy, &partition, snapshot.now).await);
                return Ok(Changed {
                    remark: sentences(&remarks),
                    ..self.made(domain, version, set, partition).await
                });
            }
        }
        Err(Fault::Contended)
    }

    /// Clears an override.
    ///
    /// # Errors
    /// If there is none, or the backend fails.
    pub async fn clear(&self, wish: &ClearOverride) -> Result<Changed, Fault> {
        let domain = self.directory.domain(wish.domain.as_deref()).await?;
        if is_pattern(&wish.policy, &wish.partition) {
            return self.clear_pattern(wish, domain).await;
        }
        let partition = self.cleared(&domain, wish).await?;
        let key = check_partition(&domain, &wish.policy, &partition)?;
        let by = clean(&wish.by);
        let field = field(&wish.policy, &partition);
        let mut was = false;
        for _ in 0..TRIES {
            let snapshot = self.control.read(HashName::Overrides, &domain).await?;
            let old = snapshot.get(&field).map(<[u8]>::to_vec);
            // Checks that history can record the clear before it happens. If it can, this step
            // changes nothing.
            if self
                .control
                .change(&domain, &index(&field, old.clone(), old.clone()))
                .await?
                .is_none()
            {
                continue;
            }
            was |= self.control.delete(Key::Override(&key)).await?;
            if old.is_none() && !was {
                self.directory.check_policy(&domain.clone().into(), &wish.policy).await?;
                return Err(absent(&wish.policy, &partition, &domain));
            }
            let done = format!("cleared override {} {partition}", wish.policy);
            let event = Event::new(millis(snapshot.now), &by, done)
                .of(&wish.policy, Some(&partition))
                .values(old.as_deref(), None);
            let event = Event { document: self.history.document(&domain).await, ..event };
            let gone = Change { event: Some(write(&event)), ..index(&field, old, None) };
            let recorded = self.control.change(&domain, &gone).await;
            if let Some(version) =
                recorded.map_err(|error| unrecorded(error, "the override is cleared"))?
            {
                return Ok(self.made(domain, version, event, partition).await);
            }
        }
        Err(Fault::Contended)
    }

    /// The partition of the override to clear. If the index has it as typed, it stays as typed, so
    /// that operators can clear an override that the policy no longer counts. Else its entries are
    /// arranged in the order of the policy.
    async fn cleared(&self, domain: &str, wish: &ClearOverride) -> Result<String, Fault> {
        let partition = canonical(domain, &wish.policy, &wish.partition)?;
        let snapshot = self.control.read(HashName::Overrides, domain).await?;
        if snapshot.get(&field(&wish.policy, &partition)).is_some() {
            return Ok(partition);
        }
        let policies = self.directory.policies(domain).await?;
        let policy = policies.iter().find(|policy| policy.name == wish.policy);
        Ok(policy.and_then(|policy| arrange(policy, &partition).ok()).unwrap_or(partition))
    }

    async fn made(&self, domain: String, version: u64, event: Event, partition: String) -> Changed {
        self.history.changed(&domain, &event).await;
        self.history.reply(domain, Made { version, done: event.done }, Some(partition))
    }

    /// The overrides in force, by policy and partition, at most `limit`. Drops the entries of those
    /// that have ended. While a part of the backend is away, the index says what it has, and each
    /// entry that may be wrong says so, or each one if others may be missing.
    ///
    /// # Errors
    /// If the domain is not known, or the backend fails.
    pub async fn list(
        &self,
        domain: Option<&str>,
        policy: Option<&str>,
        limit: usize,
    ) -> Result<Vec<OverrideEntry>, Fault> {
        self.list_of(self.directory.some_or_all(domain).await?, policy, limit).await
    }

    /// The same of these domains.
    ///
    /// # Errors
    /// If the backend fails, or if there are none and some may be missing.
    pub async fn list_of(
        &self,
        domains: DomainNames,
        policy: Option<&str>,
        limit: usize,
    ) -> Result<Vec<OverrideEntry>, Fault> {
        let DomainNames { names, incomplete } = domains;
        let (mut all, mut missing) = (Vec::new(), Vec::from_iter(incomplete));
        for domain in names {
            let snapshot = match self.control.read(HashName::Overrides, &domain).await {
                Err(error) if self.control.is_partial(&error) => {
                    missing.push(format!("the overrides of {domain} cannot be read: {error}"));
                    continue;
                }
                read => read?,
            };
            let policies = self.directory.policies(&domain).await?;
            let named =
                |field: &str| field.split_once(":{").is_some_and(|(name, _)| Some(name) == policy);
            let mut wanted = snapshot.fields.clone();
            wanted.retain(|(field, _)| policy.is_none() || named(field));
            let mut rest = wanted.as_slice();
            while !rest.is_empty() && all.len() < limit {
                // Read only as many as were requested.
                let (some, others) = rest.split_at(rest.len().min(TOGETHER).min(limit - all.len()));
                rest = others;
                let mut looks = Vec::with_capacity(some.len());
                for (field, value) in some {
                    looks.push(self.listed(&domain, (field, value), snapshot.now));
                }
                for entry in join_all(looks).await {
                    let unmatched = |entry: OverrideEntry| {
                        let unmatched = unmatched(&policies, &entry.policy, &entry.partition);
                        OverrideEntry { unmatched, ..entry }
                    };
                    all.extend(entry?.map(unmatched));
                }
            }
        }
        match (!missing.is_empty()).then(|| missing.join("; ")) {
            Some(why) if all.is_empty() => Err(StoreError::Unreachable(why).into()),
            missing => {
                let mark = |entry: OverrideEntry| OverrideEntry {
                    incomplete: entry.incomplete.or_else(|| missing.clone()),
                    ..entry
                };
                Ok(all.into_iter().map(mark).collect())
            }
        }
    }

    /// Drops the entries of overrides whose time is over.
    ///
    /// # Errors
    /// If the backend fails.
    pub(crate) async fn drop_ended(&self, domain: &str) -> Result<(), Fault> {
        let snapshot = self.control.read(HashName::Overrides, domain).await?;
        for (field, value) in &snapshot.fields {
            let entry = serde_json::from_slice::<OverrideRecord>(value).ok();
            if entry.is_some_and(|entry| left_at(entry.until_ms, snapshot.now).is_none()) {
                match self.listed(domain, (field, value), snapshot.now).await {
                    // The next look tries again. The rest can be on another server.
                    Err(Fault::Store(error)) if self.control.is_partial(&error) => {}
                    listed => drop(listed?),
                }
            }
        }
        Ok(())
    }

    /// Drops the entry of an override whose time is over, with the event of its end. Of several
    /// stores, one records it.
    pub(super) async fn end(
        &self,
        domain: &str,
        field: &str,
        value: &[u8],
        allow: Allow,
        now: Duration,
    ) -> Result<(), Fault> {
        let Some((policy, partition)) = parts(field) else { return Ok(()) };
        let done = format!("override {policy} {partition} ended: {}", words(allow));
        let event =
            Event::ended(millis(now), done).of(policy, Some(partition)).values(Some(value), None);
        let gone =
            Change { event: Some(write(&event)), ..index(field, Some(value.to_vec()), None) };
        if self.control.change(domain, &gone).await?.is_some() {
            self.history.changed(domain, &event).await;
        }
        Ok(())
    }

    /// The override of an entry of the index that was read at `now`, if it is set. While the part
    /// of the backend is away that has it, the entry says what it should be.
    pub(crate) async fn listed(
        &self,
        domain: &str,
        (field, value): (&str, &[u8]),
        now: Duration,
    ) -> Result<Option<OverrideEntry>, Fault> {
        let (Some((policy, partition)), Ok(entry)) =
            (parts(field), serde_json::from_slice::<OverrideRecord>(value))
        else {
            return Ok(None);
        };
        if is_pattern(policy, partition) {
            return self.listed_pattern(domain, field, value, entry).await;
        }
        let Ok(key) = check_partition(domain, policy, partition) else { return Ok(None) };
        let OverrideRecord { by, at_ms, .. } = entry.clone();
        let listed = |allow, remaining_ms, incomplete| OverrideEntry {
            domain: domain.to_owned(),
            policy: policy.to_owned(),
            partition: partition.to_owned(),
            allow,
            remaining_ms,
            by,
            at_ms,
            unmatched: None,
            incomplete,
        };
        let seen = match self.control.get(Key::Override(&key)).await {
            Err(error) if self.control.is_partial(&error) => {
                let why = Some(format!("{policy} {partition} cannot be checked: {error}"));
                let left = left_at(entry.until_ms, now);
                return Ok(left.map(|left| listed(entry.allow, left, why)));
            }
            seen => seen?,
        };
        let Some(allow) = seen.value.as_deref().and_then(read_allow) else {
            let old = entry.at_ms.saturating_add(millis(YOUNG)) < millis(seen.now);
            let has_ended = left_at(entry.until_ms, seen.now).is_none();
            if seen.value.is_none() && (old || has_ended) {
                if has_ended {
                    self.end(domain, field, value, entry.allow, seen.now).await?;
                } else {
                    // An override that Redis lost before its time was not ended by it.
                    let gone = index(field, Some(value.to_vec()), None);
                    self.control.change(domain, &gone).await?;
                }
            }
            return Ok(None);
        };
        Ok(Some(listed(allow, seen.ttl_ms, None)))
    }
}

/// The change, in words.
pub(super) fn what(wish: &SetOverride, partition: &str) -> String {
    let time = wish.for_ms.map_or_else(String::new, |ms| format!(", for {}", span(ms)));
    format!("override {} {partition}: {}{time}", wish.policy, words(wish.allow))
}

/// The entry of an override in the index.
pub(super) fn record(wish: &SetOverride, by: &str, now: Duration) -> Vec<u8> {
    let at_ms = millis(now);
    let until_ms = wish.for_ms.map(|for_ms| at_ms.saturating_add(for_ms));
    write(&OverrideRecord { allow: wish.allow, until_ms, by: by.to_owned(), at_ms })
}

/// Rejects an override without a time in place of one that ends by itself, because the new one
/// would stay until an operator clears it.
pub(super) fn check_end(
    wish: &SetOverride,
    old: Option<&[u8]>,
    now: Duration,
) -> Result<(), Fault> {
    let held = old.and_then(|old| serde_json::from_slice::<OverrideRecord>(old).ok());
    let left = held.as_ref().and_then(|held| left_at(held.until_ms, now)).flatten();
    let (Some(held), Some(left), None) = (held, left, wish.for_ms) else { return Ok(()) };
    let reason = format!(
        "{} has an override of {} ({}) for another {}, and without a time the new one would stay until \
         it is cleared. Give a time, or clear the other one first",
        wish.policy,
        wish.partition,
        words(held.allow),
        span(left)
    );
    Err(Fault::invalid("for_ms", reason))
}

/// Rejects a new override beyond the bounds of a domain.
pub(super) fn check_room(domain: &str, snapshot: &Snapshot, field: &str) -> Result<(), Fault> {
    if snapshot.get(field).is_some() {
        return Ok(());
    }
    if snapshot.fields.len() >= MAX_OVERRIDES {
        return Err(full(domain, MAX_OVERRIDES, ""));
    }
    if is_of_party(field) && of_parties(snapshot) >= MAX_PATTERNS {
        return Err(full(domain, MAX_PATTERNS, " of parties"));
    }
    Ok(())
}

/// Whether an entry of the index is an override of every partition that contains a party.
fn is_of_party(field: &str) -> bool {
    parts(field).is_some_and(|(policy, partition)| is_pattern(policy, partition))
}

/// How many overrides of parties a domain has.
pub(super) fn of_parties(snapshot: &Snapshot) -> usize {
    snapshot.fields.iter().filter(|(field, _)| is_of_party(field)).count()
}

/// That a domain has no room for another override.
pub(super) fn full(domain: &str, most: usize, which: &str) -> Fault {
    Fault::Full(format!(
        "{most} overrides{which} are set in {domain}: clear some, or list them to drop those that ended"
    ))
}

pub(super) fn absent(policy: &str, partition: &str, domain: &str) -> Fault {
    Fault::Absent(format!("{policy} has no override of {partition:?} in {domain}"))
}

/// Reads the value of an override, as the script does.
pub(crate) fn read_allow(value: &str) -> Option<Allow> {
    match value {
        "unlimited" => Some(Allow::Unlimited),
        "blocked" => Some(Allow::Blocked),
        number if number.bytes().all(|b| b.is_ascii_digit()) => {
            number.parse().ok().map(|quota: u64| Allow::Quota(quota.min(MAX_UNITS)))
        }
        _ => None,
    }
}

/// The partition as the filter writes it in keys. An empty domain means any.
pub(crate) fn canonical(domain: &str, policy: &str, typed: &str) -> Result<String, Fault> {
    let name = Name::parse(typed, Vec::new())
        .map_err(|error| Fault::invalid("partition", error.to_string()))?;
    let partition = name.encode(&DigestKey::derived(domain), domain, policy);
    if name.needs_key() && partition != typed {
        // The store does not know whether the filter has its own digest key.
        let reason = "it is so long that keys have a digest of it: use the digest that `top` and logs show, or the \
                      command `quotagate`, which computes it";
        return Err(Fault::invalid("partition", reason));
    }
    Ok(partition)
}

/// The partition as the filter writes it, with its entries in the order of the policy's keys.
///
/// # Errors
/// If the policy cannot count it; the text shows a partition that it can.
pub(crate) fn counted(domain: &str, policy: &PolicyInfo, typed: &str) -> Result<String, Fault> {
    let partition = canonical(domain, &policy.name, typed)?;
    arrange(policy, &partition).map_err(|reason| Fault::invalid("partition", reason))
}

/// Why no request can match an override of this policy and partition, judging by the reports of
/// filters.
pub(crate) fn unmatched(policies: &[PolicyInfo], name: &str, partition: &str) -> Option<String> {
    let party = party_of(partition);
    if let (ALL_POLICIES, Some(party)) = (name, party) {
        let none = !policies.iter().any(|policy| can_contain(policy, party));
        return none.then(|| format!("no policy counts by all of {party}"));
    }
    let Some(policy) = policies.iter().find(|policy| policy.name == name) else {
        return Some(format!("no filter reports the policy {name} any more"));
    };
    if let Some(party) = party {
        return (!can_contain(policy, party)).then(|| counts_by(policy));
    }
    match arrange(policy, partition) {
        Ok(ordered) if ordered == partition => None,
        Ok(ordered) => Some(format!("keys of {name} contain it as {ordered}")),
        Err(reason) => Some(reason),
    }
}

/// The key of a counter, if it is valid. An empty domain means any.
pub(crate) fn check_partition(
    domain: &str,
    policy: &str,
    partition: &str,
) -> Result<String, Fault> {
    let domain = if domain.is_empty() { "any" } else { domain };
    let key = format!("{domain}:{policy}:{{{partition}}}");
    match CounterKey::parse(&key) {
        Ok(_) if is_policy(policy) => Ok(key),
        Ok(_) => Err(Fault::invalid(
            "policy",
            "must be 1 to 256 of the characters A-Z a-z 0-9 . _ ~ = / % @ + -",
        )),
        Err(_) => Err(Fault::invalid(
            "partition",
            format!(
                "must be written as in keys: printable ASCII without spaces or braces, and at most {MAX_KEY} bytes"
            ),
        )),
    }
}

/// A change of the index without history.
pub(super) fn index(field: &str, old: Option<Vec<u8>>, new: Option<Vec<u8>>) -> Change {
    Change { hash: HashName::Overrides, field: field.to_owned(), old, new, event: None }
}

/// Adds to the error of the last step what the steps before it have done.
fn unrecorded(error: StoreError, done: &str) -> StoreError {
    let add = |reason| format!("{reason}; {done}, but history does not record it: try again");
    match error {
        StoreError::Unreachable(reason) => StoreError::Unreachable(add(reason)),
        StoreError::NoAnswer(reason) => StoreError::NoAnswer(add(reason)),
        StoreError::Refused(reason) => StoreError::Refused(add(reason)),
        StoreError::Late | StoreError::Rolled => error,
    }
}

pub(super) fn field(policy: &str, partition: &str) -> String {
    format!("{policy}:{{{partition}}}")
}

fn words(allow: Allow) -> String {
    match allow {
        Allow::Quota(quota) => format!("quota {quota}"),
        Allow::Unlimited => "unlimited".to_owned(),
        Allow::Blocked => "blocked".to_owned(),
    }
}
