//! Overrides of every partition that contains a party, in one policy or in all. They are entries of
//! the index and nothing else, so each change of one is a single step.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use quotagate_protocol::dials::{ALL_POLICIES, DocumentOverrides};
use quotagate_store::control::HashName;

use super::history::Edit;
use super::overrides::{
    Overrides, absent, canonical, check_end, check_partition, check_room, field, full, of_parties,
    record, what,
};
use super::remarks::{named, sentences};
use super::shape::{can_contain, counts_by};
use crate::Fault;
use crate::api::{Changed, ClearOverride, OverrideEntry, SetOverride};
use crate::domain::directory::clean;
use crate::pattern::{MAX_PATTERNS, contains, of_party, parts, party_of};
use crate::record::{OverrideRecord, left_at};

impl Overrides {
    /// Sets the override of every partition that contains a party, in one policy or in all.
    pub(super) async fn set_pattern(&self, wish: &SetOverride) -> Result<Changed, Fault> {
        let domain = self.directory.domain(wish.domain.as_deref()).await?;
        let party = party(&domain, wish)?;
        let (policies, others): (Vec<_>, Vec<_>) = match wish.policy.as_str() {
            ALL_POLICIES => self.directory.policies(&domain).await?,
            policy => vec![self.directory.policy(&domain, policy).await?],
        }
        .into_iter()
        .partition(|policy| can_contain(policy, &party));
        if policies.is_empty() {
            let why = match others.as_slice() {
                [only] => counts_by(only),
                _ => format!("no policy of {domain} counts by all of {party}"),
            };
            return Err(Fault::invalid("partition", why));
        }
        let (partition, by) = (of_party(&party), clean(&wish.by));
        let snapshot = self.control.read(HashName::Overrides, &domain).await?;
        let field = field(&wish.policy, &partition);
        check_room(&domain, &snapshot, &field)?;
        let is_new = AtomicBool::new(false);
        let edit = |old: Option<&[u8]>, now: Duration| {
            check_end(wish, old, now)?;
            is_new.store(old.is_none(), Relaxed);
            let done = format!("set {}", what(wish, &partition));
            Ok(Edit { new: Some(record(wish, &by, now)), done })
        };
        let made = self.history.change(&domain, HashName::Overrides, &field, &by, edit).await?;
        if is_new.load(Relaxed) {
            self.withdraw_surplus(&domain, &field, &by).await?;
        }
        let mut remarks = Vec::new();
        if !others.is_empty() {
            let names = named(others.iter().map(|policy| policy.name.clone()).collect());
            remarks.push(format!("It changes nothing in {names}: they do not count by {party}."));
        }
        let closer = snapshot.fields.iter().filter_map(|(field, _)| {
            let (policy, own) = parts(field)?;
            let is_meant = wish.policy == ALL_POLICIES || wish.policy == policy;
            (is_meant && *field != self::field(&wish.policy, &partition) && contains(own, &party))
                .then(|| format!("{policy} {own}"))
        });
        let closer: Vec<String> = closer.collect();
        if !closer.is_empty() {
            remarks
                .push(format!("Overrides of their own come first, and stay: {}.", named(closer)));
        }
        remarks.extend(self.modes(wish.allow, &domain, &policies, &party).await);
        let unlimited = policies.iter().filter(|of| of.overrides == DocumentOverrides::Unlimited);
        let unlimited: Vec<_> = unlimited.map(|policy| policy.name.clone()).collect();
        if !unlimited.is_empty() {
            let names = named(unlimited);
            remarks
                .push(format!("Partitions that the document of {names} makes unlimited stay so."));
        }
        remarks.extend(self.unseen(&domain, &party).await);
        Ok(Changed {
            remark: sentences(&remarks),
            ..self.history.reply(domain, made, Some(partition))
        })
    }

    /// Withdraws an override that was just set, if the domain has more than it may. The step that
    /// sets one compares its own field only, so concurrent ones may all have found room. The last
    /// one sees all of them here.
    ///
    /// # Errors
    /// If it was withdrawn, or the backend fails.
    async fn withdraw_surplus(&self, domain: &str, field: &str, by: &str) -> Result<(), Fault> {
        let snapshot = self.control.read(HashName::Overrides, domain).await?;
        if of_parties(&snapshot) <= MAX_PATTERNS || snapshot.get(field).is_none() {
            return Ok(());
        }
        let (policy, partition) = parts(field).unwrap_or((field, ""));
        let withdraw = |old: Option<&[u8]>, _: Duration| {
            if old.is_none() {
                return Err(full(domain, MAX_PATTERNS, " of parties"));
            }
            let done = format!("withdrew override {policy} {partition}: {domain} has no room");
            Ok(Edit { new: None, done })
        };
        self.history.change(domain, HashName::Overrides, field, by, withdraw).await?;
        Err(full(domain, MAX_PATTERNS, " of parties"))
    }

    pub(super) async fn clear_pattern(
        &self,
        wish: &ClearOverride,
        domain: String,
    ) -> Result<Changed, Fault> {
        let party = canonical(&domain, &wish.policy, typed_party(&wish.partition))?;
        let partition = of_party(&sorted(&party));
        let clear = |old: Option<&[u8]>, _: Duration| {
            if old.is_none() {
                return Err(absent(&wish.policy, &partition, &domain));
            }
            let done = format!("cleared override {} {partition}", wish.policy);
            Ok(Edit { new: None, done })
        };
        let (by, field) = (clean(&wish.by), field(&wish.policy, &partition));
        let made = self.history.change(&domain, HashName::Overrides, &field, &by, clear).await?;
        Ok(self.history.reply(domain, made, Some(partition)))
    }

    /// An override with a pattern, if its time is not over.
    pub(super) async fn listed_pattern(
        &self,
        domain: &str,
        field: &str,
        value: &[u8],
        OverrideRecord { allow, until_ms, by, at_ms }: OverrideRecord,
    ) -> Result<Option<OverrideEntry>, Fault> {
        let now = self.control.read(HashName::Dials, domain).await?.now;
        let (Some(remaining_ms), Some((policy, partition))) =
            (left_at(until_ms, now), parts(field))
        else {
            self.end(domain, field, value, allow, now).await?;
            return Ok(None);
        };
        let (domain, policy, partition) =
            (domain.to_owned(), policy.to_owned(), partition.to_owned());
        let unmatched = None;
        Ok(Some(OverrideEntry {
            domain,
            policy,
            partition,
            allow,
            remaining_ms,
            by,
            at_ms,
            unmatched,
            incomplete: None,
        }))
    }
}

/// Whether an override is for every partition that contains a party.
pub(crate) fn is_pattern(policy: &str, partition: &str) -> bool {
    policy == ALL_POLICIES || party_of(partition).is_some()
}

/// The party of an override with a pattern, as the filter writes it in keys. For all policies, the
/// party may stand alone.
fn party(domain: &str, wish: &SetOverride) -> Result<String, Fault> {
    let party = sorted(&canonical(domain, &wish.policy, typed_party(&wish.partition))?);
    // The partition of everybody, a missing value, or the digest of a whole partition.
    if party.split(',').any(|entry| !entry.contains('=')) {
        let reason =
            format!("{party} is in no other partition: name a party, such as jwt.sub=alice,*");
        return Err(Fault::invalid("partition", reason));
    }
    check_partition(domain, "any", &of_party(&party))?;
    Ok(party)
}

/// The party that an operator typed, with or without the rest of a pattern.
fn typed_party(partition: &str) -> &str {
    party_of(partition).unwrap_or(partition)
}

/// A party with its entries in one order, so that it has one override.
fn sorted(party: &str) -> String {
    let mut entries: Vec<&str> = party.split(',').collect();
    entries.sort_unstable();
    entries.join(",")
}
