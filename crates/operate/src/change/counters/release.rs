//! Who holds the slots of a concurrency limit, and how operators free them.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use quotagate_protocol::{HOLDING, Kind};
use quotagate_store::control::{KeyState, Released, SlotHolder, SlotsState};

use super::super::overrides::{canonical, check_partition, counted};
use super::Counters;
use crate::api::{Changed, Event, ProxySlots, Release, SlotsHeld};
use crate::domain::directory::clean;
use crate::record::is_process_id;
use crate::{Fault, millis};

/// A proxy that lives says every 3 s which slots it holds, and its message is on the way for no
/// longer than the second that is added here.
const SILENT: Duration = Duration::from_secs(4);

impl Counters {
    /// Frees the slots of a partition that the workers of one proxy hold, or those of all.
    ///
    /// It is for proxies that are dead or cut off: their slots are free 9 s after their last
    /// message in any case. A proxy that lives holds its slots again from its next message, and
    /// what others were granted meanwhile exceeds the limit until enough requests have ended.
    ///
    /// # Errors
    /// If a name is not known, the policy has no slots, nobody holds one, or the backend fails.
    pub async fn release(&self, wish: &Release) -> Result<Changed, Fault> {
        check_partition("", &wish.policy, &canonical("", &wish.policy, &wish.partition)?)?;
        let proxy = wish.proxy.as_deref();
        if proxy.is_some_and(|proxy| !is_process_id(proxy)) {
            let reason = "must be the name of a proxy as `quotagate usage` shows it: 16 of 0 to 9 \
                          and a to f";
            return Err(Fault::invalid("proxy", reason));
        }
        let directory = &self.overrides.directory;
        let domain = wish.domain.as_deref();
        let (domain, policy) = directory.domain_and_policy(domain, &wish.policy).await?;
        if policy.forms().all(|form| form.kind != Kind::InFlight) {
            let reason = format!(
                "{} has no `in_flight`, so no request holds a slot of it: `quotagate reset` \
                 deletes a counter",
                policy.name
            );
            return Err(Fault::invalid("policy", reason));
        }
        let partition = counted(&domain, &policy, &wish.partition)?;
        let key = check_partition(&domain, &wish.policy, &partition)?;
        let now = self.control.slots(&key).await?.now;
        let released = self.control.release(&key, proxy).await?;
        let whose = proxy.map_or_else(String::new, |proxy| format!(" of proxy {proxy}"));
        let Released { workers, slots, unreadable } = released;
        if workers == 0 && unreadable == 0 {
            let who = if proxy.is_some() { "that proxy holds no" } else { "nobody holds a" };
            return Err(Fault::Absent(format!(
                "{who} slot of {} for {partition} now",
                wish.policy
            )));
        }
        let word = if slots == 1 { "slot" } else { "slots" };
        let mut done = format!("released {slots} {word}{whose} of {} {partition}", wish.policy);
        if unreadable > 0 {
            let entries = if unreadable == 1 { "entry" } else { "entries" };
            done.push_str(&format!(", and {unreadable} {entries} that could not be read"));
        }
        let before = format!("{{\"held\":{slots}}}").into_bytes();
        let event = Event::new(millis(now), &clean(&wish.by), done)
            .of(&wish.policy, Some(&partition))
            .values(Some(&before), None);
        let made = self.history.record(&domain, event).await?;
        Ok(self.history.reply(domain, made, Some(partition)))
    }
}

/// The slots that are held, as a counter. Those of workers that nobody can read are not among them.
pub(super) fn key_state(state: &SlotsState) -> KeyState {
    let SlotsState { now, holders, left_out } = state;
    let held = holders.iter().map(|of| of.held).fold(0, u64::saturating_add);
    let is_in_use = *left_out > 0 || !holders.is_empty();
    KeyState {
        now: *now,
        value: is_in_use.then(|| held.to_string()),
        ttl_ms: None,
        own_quota: holders.iter().max_by_key(|of| of.ends_ms).and_then(|of| of.own_quota),
    }
}

/// Who holds the slots, by proxy.
pub(super) fn held_by(state: SlotsState) -> SlotsHeld {
    let SlotsState { now: _, holders, left_out } = state;
    let mut proxies: BTreeMap<String, ProxySlots> = BTreeMap::new();
    for SlotHolder { worker, held, longest_ms, waiting, ends_ms, .. } in holders {
        let proxy = worker.split('.').next().unwrap_or_default();
        let of = proxies.entry(proxy.to_owned()).or_default();
        of.held = of.held.saturating_add(held);
        of.waiting = of.waiting.saturating_add(waiting);
        of.longest_ms = of.longest_ms.max(longest_ms);
        of.ends_ms = of.ends_ms.max(ends_ms);
    }
    let proxies = proxies.into_iter().map(|(proxy, of)| {
        let silence = HOLDING.saturating_sub(Duration::from_millis(of.ends_ms));
        let silent_ms = if silence > SILENT { millis(silence) } else { 0 };
        ProxySlots { proxy, silent_ms, ..of }
    });
    let mut proxies: Vec<_> = proxies.collect();
    proxies.sort_by_key(|of| Reverse(of.held));
    let waiting = proxies.iter().map(|of| of.waiting).fold(0, u64::saturating_add);
    SlotsHeld { waiting, proxies, left_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_the_workers_of_a_proxy_are_added_up() {
        let holder = |worker: &str, held, waiting, longest_ms| SlotHolder {
            worker: worker.into(),
            held,
            waiting,
            longest_ms,
            ends_ms: 4_000 + 500 * held,
            ..SlotHolder::default()
        };
        let holders =
            vec![holder("b.0.x", 1, 2, 70), holder("a.0.x", 2, 0, 10), holder("a.1.y", 3, 1, 90)];
        let held = held_by(SlotsState { holders, left_out: 1, ..SlotsState::default() });
        assert_eq!((held.waiting, held.left_out), (3, 1));
        let a = ProxySlots {
            proxy: "a".to_owned(),
            held: 5,
            waiting: 1,
            longest_ms: 90,
            ends_ms: 5_500,
            silent_ms: 0,
        };
        assert_eq!(held.proxies[0], a);
        let b = &held.proxies[1];
        assert_eq!((&*b.proxy, b.held, b.silent_ms), ("b", 1, 4_500), "no worker of it said more");
    }
}
