//! Who holds the slots of a concurrency limit, and how operators free them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use quotagate_protocol::Kind;
use quotagate_store::control::{Released, SlotHolder, SlotsState};

use super::super::overrides::{canonical, check_partition, counted};
use super::Counters;
use crate::api::{Changed, Event, ProxySlots, Release, SlotsHeld};
use crate::domain::directory::clean;
use crate::record::is_process_id;
use crate::{Fault, millis};

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
    let proxies = proxies.into_iter().map(|(proxy, of)| ProxySlots { proxy, ..of });
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
            ends_ms: 5_000 + held,
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
            ends_ms: 5_003,
        };
        assert_eq!(held.proxies[0], a);
        assert_eq!((&*held.proxies[1].proxy, held.proxies[1].held), ("b", 1));
    }
}
