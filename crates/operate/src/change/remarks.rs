//! What an operator should know of an override that was set: where it changes nothing.

use std::time::Duration;

use quotagate_protocol::dials::DocumentOverrides;
use quotagate_protocol::{CounterKey, Mode};
use quotagate_store::control::{HashName, KeptCounters};

use super::current::{current, units, window};
use super::overrides::Overrides;
use crate::api::{Allow, MAX_FOUND, PolicyInfo};
use crate::control::ControlHandle;
use crate::domain::view::in_force;
use crate::pattern::contains;
use crate::watch::Watch;

/// Most names in a sentence.
const NAMED: usize = 10;

impl Overrides {
    /// Which policies refuse nobody, whatever their overrides say. Empty for an override that
    /// refuses nobody, and if the dials cannot be read.
    pub(super) async fn modes(
        &self,
        allow: Allow,
        domain: &str,
        policies: &[PolicyInfo],
        party: &str,
    ) -> Vec<String> {
        let mut remarks = Vec::new();
        if allow == Allow::Unlimited {
            return remarks;
        }
        let Ok(dials) = self.control.read(HashName::Dials, domain).await else { return remarks };
        for (mode, effect) in [
            (Mode::Mark, "mark, which marks requests over the quota and refuses none"),
            (Mode::Shadow, "shadow, which counts and refuses none"),
            (Mode::Off, "off, which applies to no request"),
        ] {
            let is_so = |policy: &&PolicyInfo| {
                let dial = in_force(&dials, &policy.name);
                dial.mode_of(party).unwrap_or(policy.mode) == mode
            };
            let names: Vec<_> =
                policies.iter().filter(is_so).map(|policy| policy.name.clone()).collect();
            if !names.is_empty() {
                remarks.push(format!("{}: in mode {effect}.", named(names)));
            }
        }
        remarks
    }

    /// Why an override of a partition without a counter may change nothing; empty if it has one, or
    /// if that cannot be read.
    pub(super) async fn uncounted(
        &self,
        domain: &str,
        policy: &PolicyInfo,
        partition: &str,
        now: Duration,
    ) -> Vec<String> {
        let key = format!("{domain}:{}:{{{partition}}}", policy.name);
        let Some(window) = window(policy, partition) else { return Vec::new() };
        match current(&self.control, &key, &window, now).await {
            Ok((_, seen)) if units(&seen).is_none() => {}
            _ => return Vec::new(),
        }
        let similar = self.watch.similar(domain, Some(&policy.name), partition);
        let mut remarks = vec![unknown(
            &format!("{} has counted nothing of {partition} in this window", policy.name),
            similar,
        )];
        if policy.overrides == DocumentOverrides::Unlimited {
            remarks.push(
                "The document makes some of its partitions unlimited: if this is one of them, nothing changes."
                    .to_owned(),
            );
        }
        remarks
    }

    /// That no counter contains a party; `None` if one does, or if a search cannot tell.
    pub(super) async fn unseen(&self, domain: &str, party: &str) -> Option<String> {
        unseen(&self.control, &self.watch, domain, party).await
    }
}

/// That no counter contains a party; `None` if one does, or if a search cannot tell.
pub(super) async fn unseen(
    control: &ControlHandle,
    watch: &Watch,
    domain: &str,
    party: &str,
) -> Option<String> {
    let first = party.split(',').next()?;
    let found = control.find(domain, first, KeptCounters::LeftOut, MAX_FOUND).await.ok()?;
    let is_of =
        |key: &String| CounterKey::split(key).is_some_and(|key| contains(key.partition, party));
    if found.incomplete.is_some() || found.keys.iter().any(is_of) {
        return None;
    }
    let similar = watch.similar(domain, None, party);
    let what = format!("No policy has counted anything of {party} in its current window");
    Some(unknown(&what, similar))
}

/// A remark on a party that nothing has counted.
fn unknown(what: &str, similar: Option<String>) -> String {
    match similar {
        Some(similar) => format!("{what}: did you mean {similar}?"),
        None => format!("{what}."),
    }
}

pub(super) fn sentences(remarks: &[String]) -> Option<String> {
    (!remarks.is_empty()).then(|| remarks.join(" "))
}

/// Names, as part of a sentence.
pub(super) fn named(names: Vec<String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let text = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{text} and {more} more") } else { text }
}
