//! Sets and clears dials.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quotagate_protocol::dials::{ALL_POLICIES, EnforcedShare};
use quotagate_protocol::{MAX_UNITS, Mode};

use quotagate_protocol::is_policy;

use super::history::{Edit, History};
use super::overrides::{canonical, check_partition};
use super::remarks::{named, sentences, unseen};
use super::shape::{arrange, can_contain, counts_by};
use crate::api::{Changed, ClearDial, Event, MAX_FOR_MS, PolicyInfo, SetDial};
use crate::control::ControlHandle;
use crate::domain::directory::{Directory, clean};
use crate::domain::view::{in_force, own_record};
use crate::record::{DialRecord, dial_words, span, write};
use crate::watch::Watch;
use crate::{Fault, millis};
use quotagate_store::control::{Change, HashName};

/// Dials: what operators change in a policy, or in all.
pub struct Dials {
    control: ControlHandle,
    directory: Arc<Directory>,
    history: Arc<History>,
    watch: Arc<Watch>,
}

impl Dials {
    pub(crate) fn new(directory: Arc<Directory>, history: Arc<History>, watch: Arc<Watch>) -> Self {
        Self { control: history.control.clone(), directory, history, watch }
    }

    /// Sets a dial.
    ///
    /// # Errors
    /// If a name is not known, a value is out of its bounds, or the backend fails.
    pub async fn set(&self, wish: &SetDial) -> Result<Changed, Fault> {
        let wish = &checked(wish)?;
        let (domain, policy) = match wish.policy.as_str() {
            ALL_POLICIES => (self.directory.domain(wish.domain.as_deref()).await?, None),
            policy => {
                let of = self.directory.domain_and_policy(wish.domain.as_deref(), policy).await?;
                (of.0, Some(of.1))
            }
        };
        let mut remarks = Vec::new();
        if let (Some(policy), Some(share)) = (&policy, &wish.enforced_for) {
            check_parties(policy, share)?;
            remarks.extend(self.no_longer_refused(&domain, policy).await);
        }
        if wish.policy == ALL_POLICIES && wish.mode == Some(Mode::Enforce) && !wish.include_shadow {
            self.check_none_is_meant_otherwise(&domain, wish.for_ms).await?;
        }
        let by = clean(&wish.by);
        let set = |old: Option<&[u8]>, now: Duration| {
            let held = old.and_then(|old| DialRecord::read(&wish.policy, old).ok());
            let held = held.filter(|held| held.left_at(now).is_some()).unwrap_or_default();
            check_end(wish, &held, now)?;
            let dial = DialRecord {
                fields: wish.fields().or(held.fields),
                until_ms: wish.for_ms.map(|for_ms| millis(now).saturating_add(for_ms)),
                by: by.clone(),
                at_ms: millis(now),
            };
            if dial.fields.is_empty() {
                return Err(Fault::invalid(
                    "mode",
                    "set at least one of mode, quota and on_failure",
                ));
            }
            let time = wish.for_ms.map_or_else(String::new, |ms| format!(", for {}", span(ms)));
            let done = format!("set dial {}: {}{time}", wish.policy, dial_words(&dial.fields));
            Ok(Edit { new: Some(write(&dial)), done })
        };
        let made = self.history.change(&domain, HashName::Dials, &wish.policy, &by, set).await?;
        // All at once, so that the answer takes no longer than one search.
        let named = wish.enforced_for.iter().flat_map(|share| &share.only);
        let searches = named.map(|party| unseen(&self.control, &self.watch, &domain, party));
        remarks.extend(join_all(searches).await.into_iter().flatten());
        let remark = sentences(&remarks);
        Ok(Changed { remark, ..self.history.reply(domain, made, None) })
    }

    /// That a policy which is to be enforced for a share was enforced for all; `None` also if the
    /// dials cannot be read.
    async fn no_longer_refused(&self, domain: &str, policy: &PolicyInfo) -> Option<String> {
        let dials = self.control.read(HashName::Dials, domain).await.ok()?;
        let mode = in_force(&dials, &policy.name).mode.unwrap_or(policy.mode);
        (mode == Mode::Enforce).then(|| {
            format!(
                "{} was in mode enforce: the rest of its partitions is no longer refused.",
                policy.name
            )
        })
    }

    /// Checks that enforcing all policies for this time enforces none that is in another mode now.
    async fn check_none_is_meant_otherwise(
        &self,
        domain: &str,
        for_ms: Option<u64>,
    ) -> Result<(), Fault> {
        let dials = self.control.read(HashName::Dials, domain).await?;
        let others = self.directory.policies(domain).await?.into_iter().filter_map(|policy| {
            let word = match policy.mode {
                // A policy that is off was no trial. An unlimited rule of the rate limit service is
                // off, and no dial changes it.
                Mode::Enforce | Mode::Off => return None,
                Mode::Mark => "mark",
                Mode::Shadow => "shadow",
            };
            // Its own dial comes before the dial of all policies, as long as it lasts.
            let own = own_record(&dials, &policy.name).filter(|own| own.fields.mode.is_some());
            match own.and_then(|own| own.left_at(dials.now)) {
                Some(None) => None,
                Some(Some(left)) if for_ms.is_some_and(|for_ms| for_ms <= left) => None,
                Some(Some(left)) => Some(format!(
                    "{} ({word}, once its own dial ends in {})",
                    policy.name,
                    span(left)
                )),
                None => Some(format!("{} ({word})", policy.name)),
            }
        });
        let others: Vec<String> = others.collect();
        if others.is_empty() {
            return Ok(());
        }
        let names = named(others);
        let reason = format!(
            "would also enforce {names}. Set include_shadow (--include-shadow) if that is meant, or dial \
             policies by name"
        );
        Err(Fault::invalid("mode", reason))
    }

    /// Clears a dial.
    ///
    /// # Errors
    /// If there is none, or the backend fails.
    pub async fn clear(&self, wish: &ClearDial) -> Result<Changed, Fault> {
        let domain = self.directory.domain(wish.domain.as_deref()).await?;
        let by = clean(&wish.by);
        let spoilt = format!("cleared dial {}, which could not be read", wish.policy);
        let named = wish.policy == ALL_POLICIES || is_policy(&wish.policy);
        let absent = || Fault::Absent(format!("no dial of {:?} is set in {domain}", wish.policy));
        let clear = |old: Option<&[u8]>, now: Duration| {
            let done = match old.map(|old| DialRecord::read(&wish.policy, old)) {
                Some(Ok(held)) if held.left_at(now).is_some() => {
                    format!("cleared dial {}", wish.policy)
                }
                Some(Err(_)) if named => spoilt.clone(),
                _ => return Err(absent()),
            };
            Ok(Edit { new: None, done })
        };
        match self.history.change(&domain, HashName::Dials, &wish.policy, &by, clear).await {
            Err(Fault::Absent(_)) if named && self.drop_unread(&domain, &wish.policy).await? => {
                let now = self.control.read(HashName::Dials, &domain).await?.now;
                let event = Event::new(millis(now), &by, spoilt.clone()).of(&wish.policy, None);
                let made = self.history.record(&domain, event).await?;
                Ok(self.history.reply(domain, made, None))
            }
            Err(absent @ Fault::Absent(_)) if wish.policy != ALL_POLICIES => {
                self.directory.check_policy(&domain.clone().into(), &wish.policy).await?;
                Err(absent)
            }
            made => {
                let made = made?;
                Ok(self.history.reply(domain, made, None))
            }
        }
    }

    /// Deletes a field so large or broken that the backend leaves it out. Returns whether there was
    /// one.
    async fn drop_unread(&self, domain: &str, field: &str) -> Result<bool, Fault> {
        let before = self.control.read(HashName::Dials, domain).await?;
        if before.left_out == 0 || before.get(field).is_some() {
            return Ok(false);
        }
        let field = field.to_owned();
        let change = Change { hash: HashName::Dials, field, old: None, new: None, event: None };
        self.control.change(domain, &change).await?;
        Ok(self.control.read(HashName::Dials, domain).await?.left_out < before.left_out)
    }
}

/// All fields of a dial end together. Rejects a change that would make a timed field permanent, or
/// end a permanent one, unless it names that field.
fn check_end(wish: &SetDial, held: &DialRecord, now: Duration) -> Result<(), Fault> {
    let kept = held.fields.clone().without(&wish.fields());
    if kept.is_empty() || wish.fields().is_empty() {
        return Ok(());
    }
    let (policy, kept) = (&wish.policy, dial_words(&kept));
    match (held.until_ms, wish.for_ms) {
        (Some(until), None) => {
            let left = span(until.saturating_sub(millis(now)));
            let reason = format!(
                "{policy} has {kept} for another {left}, and without a time that would stay until it is cleared. Give a \
                 time, or set {kept} again in the same change to keep all of it"
            );
            Err(Fault::invalid("for_ms", reason))
        }
        (None, Some(_)) => {
            let reason = format!(
                "{policy} has {kept} until it is cleared, and with a time that would end too. Leave the time out, or set \
                 {kept} again in the same change to end all of it"
            );
            Err(Fault::invalid("for_ms", reason))
        }
        (Some(_), Some(_)) | (None, None) => Ok(()),
    }
}

/// Checks that the policy can count each party for which it is to be enforced.
fn check_parties(policy: &PolicyInfo, share: &EnforcedShare) -> Result<(), Fault> {
    // A digest stands for a whole partition, and so does `*`.
    let is_right = |party: &String| {
        arrange(policy, party).is_ok() || policy.forms().any(|form| can_contain(form, party))
    };
    match share.only.iter().find(|party| !is_right(party)) {
        Some(party) => {
            let why = format!("no partition contains {party}: {}", counts_by(policy));
            Err(Fault::invalid("enforced_for", why))
        }
        None => Ok(()),
    }
}

/// The wish with all values within their bounds, and the mode and the names that `enforced_for`
/// implies.
fn checked(wish: &SetDial) -> Result<SetDial, Fault> {
    let mut wish = wish.clone();
    if let Some(share) = &mut wish.enforced_for {
        if wish.policy == ALL_POLICIES {
            return Err(Fault::invalid(
                "enforced_for",
                "belongs to one policy: name it instead of *",
            ));
        }
        if wish.mode.is_some_and(|mode| mode != Mode::Shadow) {
            let why = "is shadow for the rest of the partitions: leave it out";
            return Err(Fault::invalid("mode", why));
        }
        for party in &mut share.only {
            *party = canonical("", &wish.policy, party)?;
            check_partition("", &wish.policy, party)?;
        }
        if !share.is_sound() {
            let why = format!(
                "must have a percent of 1 to 100, or at most {} names of {} bytes together in only",
                EnforcedShare::MAX_NAMED,
                EnforcedShare::MAX_BYTES
            );
            return Err(Fault::invalid("enforced_for", why));
        }
        wish.mode = Some(Mode::Shadow);
    }
    check(&wish)?;
    Ok(wish)
}

fn check(wish: &SetDial) -> Result<(), Fault> {
    if wish.quota.is_some_and(|quota| quota > MAX_UNITS) {
        return Err(Fault::invalid("quota", format!("must be 0 to {MAX_UNITS}")));
    }
    if wish.quota.is_some() && wish.policy == ALL_POLICIES {
        return Err(Fault::invalid(
            "quota",
            "belongs to one policy: the dial of all policies has none",
        ));
    }
    check_time(wish.for_ms)
}

/// Checks that a time is within its bounds.
pub(crate) fn check_time(for_ms: Option<u64>) -> Result<(), Fault> {
    match for_ms {
        Some(for_ms) if !(1000..=MAX_FOR_MS).contains(&for_ms) => Err(Fault::invalid(
            "for_ms",
            format!("must be 1000 to {MAX_FOR_MS} milliseconds: 1s to 366d"),
        )),
        _ => Ok(()),
    }
}
