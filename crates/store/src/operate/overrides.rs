//! Setting, clearing and listing the overrides of single partitions.

use std::time::Duration;

use futures_util::future::join_all;
use quotagate_quota::wire::{MAX_KEY, MAX_UNITS, Reservation};

use super::dials::check_time;
use super::names::clean;
use super::record::{OverrideRecord, left_at, span, write};
use super::{Edit, Fault, Operate, millis};
use crate::api::{Allow, Changed, ClearOverride, OverrideEntry, SetOverride};
use crate::desk::{Cell, Change, Shelf};

/// Overrides that are looked at together.
const TOGETHER: usize = 64;
/// An entry that is younger may be of an override that is just being set.
const YOUNG: Duration = Duration::from_secs(10);

impl Operate {
    /// Sets an override, in place of one that is there.
    ///
    /// # Errors
    /// Where a name is not known, a value is out of its bounds, or the backend fails.
    pub async fn set_override(&self, wish: &SetOverride) -> Result<Changed, Fault> {
        if matches!(wish.allow, Allow::Quota(quota) if quota > MAX_UNITS) {
            return Err(Fault::invalid("allow", format!("a quota must be 0 to {MAX_UNITS}")));
        }
        check_time(wish.for_ms)?;
        check_partition("", &wish.policy, &wish.partition)?;
        let (domain, _) = self.place(wish.domain.as_deref(), &wish.policy).await?;
        let key = check_partition(&domain, &wish.policy, &wish.partition)?;
        let by = clean(&wish.by);
        let field = field(&wish.policy, &wish.partition);
        let set = |_: Option<&[u8]>, now: Duration| {
            let until_ms = wish.for_ms.map(|for_ms| millis(now).saturating_add(for_ms));
            let entry = OverrideRecord { allow: wish.allow, until_ms, by: by.clone(), at_ms: millis(now) };
            let time = wish.for_ms.map_or_else(String::new, |ms| format!(", for {}", span(ms)));
            let done =
                format!("set override {} {}: {}{time}", wish.policy, wish.partition, words(wish.allow));
            Ok(Edit { new: Some(write(&entry)), done })
        };
        let made = self.change(&domain, Shelf::Overrides, &field, &by, set).await?;
        let value = match wish.allow {
            Allow::Quota(quota) => quota.to_string(),
            Allow::Unlimited => "unlimited".to_owned(),
            Allow::Blocked => "blocked".to_owned(),
        };
        self.desk().set_override(&key, &value, wish.for_ms).await?;
        Ok(self.changed(domain, made))
    }

    /// Clears an override.
    ///
    /// # Errors
    /// Where there is none, or the backend fails.
    pub async fn clear_override(&self, wish: &ClearOverride) -> Result<Changed, Fault> {
        let domain = self.domain(wish.domain.as_deref()).await?;
        let key = check_partition(&domain, &wish.policy, &wish.partition)?;
        let by = clean(&wish.by);
        let field = field(&wish.policy, &wish.partition);
        let was = self.desk().delete(Cell::Override(&key)).await?;
        let clear = |old: Option<&[u8]>, _: Duration| {
            if old.is_none() && !was {
                let Ok(shown) = serde_json::to_string(&wish.partition) else { return Err(Fault::Contended) };
                return Err(Fault::Absent(format!("{} has no override of {shown} in {domain}", wish.policy)));
            }
            let done = format!("cleared override {} {}", wish.policy, wish.partition);
            Ok(Edit { new: None, done })
        };
        let made = self.change(&domain, Shelf::Overrides, &field, &by, clear).await?;
        Ok(self.changed(domain, made))
    }

    /// The overrides in force, by policy and partition. Entries of those that have ended are dropped.
    ///
    /// # Errors
    /// Where the domain is not known, or the backend fails.
    pub async fn overrides(
        &self,
        domain: Option<&str>,
        policy: Option<&str>,
    ) -> Result<Vec<OverrideEntry>, Fault> {
        let names = match domain {
            Some(domain) => vec![self.domain(Some(domain)).await?],
            None => self.domains().await?,
        };
        let mut all = Vec::new();
        for domain in names {
            let sheet = self.desk().read(Shelf::Overrides, &domain).await?;
            let named = |field: &str| field.split_once(":{").is_some_and(|(name, _)| Some(name) == policy);
            let mut wanted = sheet.fields;
            wanted.retain(|(field, _)| policy.is_none() || named(field));
            for some in wanted.chunks(TOGETHER) {
                let mut looks = Vec::with_capacity(some.len());
                for (field, value) in some {
                    looks.push(self.listed(&domain, field, value));
                }
                for entry in join_all(looks).await {
                    all.extend(entry?);
                }
            }
        }
        Ok(all)
    }

    /// The override of an entry of the index, if it is there.
    async fn listed(&self, domain: &str, field: &str, value: &[u8]) -> Result<Option<OverrideEntry>, Fault> {
        let (Some((policy, partition)), Ok(entry)) = (
            field.strip_suffix('}').and_then(|field| field.split_once(":{")),
            serde_json::from_slice::<OverrideRecord>(value),
        ) else {
            return Ok(None);
        };
        let Ok(key) = check_partition(domain, policy, partition) else { return Ok(None) };
        let seen = self.desk().look(Cell::Override(&key)).await?;
        let Some(allow) = seen.value.as_deref().and_then(read_allow) else {
            let old = entry.at_ms.saturating_add(millis(YOUNG)) < millis(seen.now);
            if seen.value.is_none() && (old || left_at(entry.until_ms, seen.now).is_none()) {
                let change = Change {
                    shelf: Shelf::Overrides,
                    field: field.to_owned(),
                    old: Some(value.to_vec()),
                    new: None,
                    event: None,
                };
                self.desk().change(domain, &change).await?;
            }
            return Ok(None);
        };
        let (domain, policy, partition) = (domain.to_owned(), policy.to_owned(), partition.to_owned());
        let OverrideRecord { by, at_ms, .. } = entry;
        Ok(Some(OverrideEntry { domain, policy, partition, allow, remaining_ms: seen.ttl_ms, by, at_ms }))
    }
}

/// What the override of a key says, as the script reads it.
pub(super) fn read_allow(value: &str) -> Option<Allow> {
    match value {
        "unlimited" => Some(Allow::Unlimited),
        "blocked" => Some(Allow::Blocked),
        number if number.bytes().all(|b| b.is_ascii_digit()) => {
            number.parse().ok().map(|quota: u64| Allow::Quota(quota.min(MAX_UNITS)))
        }
        _ => None,
    }
}

/// The key of a counter, once it is known to be one. An empty domain stands for any.
pub(super) fn check_partition(domain: &str, policy: &str, partition: &str) -> Result<String, Fault> {
    let domain = if domain.is_empty() { "any" } else { domain };
    // The same rule as for reservations.
    let reservation = Reservation {
        key: format!("{domain}:{policy}:{{{partition}}}"),
        window_s: 1,
        offset_s: 0,
        quota: 0,
        want: 1,
        min: 1,
        spare: 0,
        count_denied: false,
    };
    match reservation.check() {
        Ok(_) if super::record::is_policy(policy) => Ok(reservation.key),
        Ok(_) => Err(Fault::invalid("policy", "must be 1 to 64 of the characters a-z 0-9 -")),
        Err(_) => Err(Fault::invalid(
            "partition",
            format!(
                "must be written as in keys: printable ASCII without spaces and braces, and at most {MAX_KEY} bytes"
            ),
        )),
    }
}

fn field(policy: &str, partition: &str) -> String {
    format!("{policy}:{{{partition}}}")
}

fn words(allow: Allow) -> String {
    match allow {
        Allow::Quota(quota) => format!("quota {quota}"),
        Allow::Unlimited => "unlimited".to_owned(),
        Allow::Blocked => "blocked".to_owned(),
    }
}
