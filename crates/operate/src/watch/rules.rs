//! The rules that this process has in force, if it is a rate limit service.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use quotagate_protocol::is_domain;
use serde::{Deserialize, Serialize};

use crate::domain::directory::clean_text;
use crate::record::is_document_digest;

/// Most bytes of a complaint.
const MAX_COMPLAINT: usize = 512;
/// The longest time for which rules can be in force, in seconds.
const MOST_S: u64 = 100 * 366 * 24 * 60 * 60;

/// The rules of a domain that a rate limit service has in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesSighting {
    /// The domain.
    pub domain: String,
    /// The number of the published rule file; 0 for the service's own rules.
    pub number: u64,
    /// Its digest; empty for the service's own rules.
    pub digest: String,
    /// For how many seconds the service has had them in force.
    pub in_force_s: u64,
    /// Whether the service takes published rule files up.
    pub follows: bool,
    /// The number of the published rule file that it refuses; 0 for none.
    pub refuses: u64,
    /// Why it does not have what is published, in a sentence; empty if it has.
    pub complaint: String,
}

impl RulesSighting {
    /// Whether it may be shown: anything may have written it.
    pub fn is_sound(&self) -> bool {
        let Self { domain, number, digest, in_force_s, complaint, .. } = self;
        let is_of_number =
            if *number == 0 { digest.is_empty() } else { is_document_digest(digest) };
        is_domain(domain)
            && is_of_number
            && *in_force_s <= MOST_S
            && complaint.len() <= MAX_COMPLAINT
            && !complaint.contains(char::is_control)
    }

    /// The same, seen so many seconds later.
    pub fn aged(&self, seconds: u64) -> Self {
        let in_force_s = self.in_force_s.saturating_add(seconds).min(MOST_S);
        Self { in_force_s, ..self.clone() }
    }
}

/// The rules of all domains of this process; none if it is no rate limit service.
#[derive(Default)]
pub struct OwnRules(Mutex<RulesSince>);

/// The rules of each domain, and since when they have been in force.
type RulesSince = BTreeMap<String, (RulesSighting, Instant)>;

impl OwnRules {
    /// Replaces what is known, and returns whether that is different. Rules that stay have been in
    /// force since they were named first, whatever [`RulesSighting::in_force_s`] says.
    pub fn set(&self, all: Vec<RulesSighting>, now: Instant) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        for mut rules in all {
            let stays = before.get(&rules.domain).filter(|(before, _)| {
                (before.number, &before.digest) == (rules.number, &rules.digest)
            });
            let since = stays.map_or(now, |(_, since)| *since);
            let line = rules.complaint.replace(char::is_control, " ");
            rules.complaint = clean_text(&line, MAX_COMPLAINT);
            rules.in_force_s = 0;
            known.insert(rules.domain.clone(), (rules, since));
        }
        *known != before
    }

    /// The rules in force. Those of domains that lack something published come first, and those of
    /// domains in which the service goes by its own rules come last.
    pub fn seen(&self, now: Instant) -> Vec<RulesSighting> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = known.values().map(|(rules, since)| {
            let in_force_s = now.saturating_duration_since(*since).as_secs().min(MOST_S);
            RulesSighting { in_force_s, ..rules.clone() }
        });
        let mut seen: Vec<_> = seen.filter(RulesSighting::is_sound).collect();
        seen.sort_by_key(|of| (!of.follows, of.complaint.is_empty(), of.number == 0));
        seen
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn rules(domain: &str, number: u64, complaint: &str) -> RulesSighting {
        let digest = if number == 0 { String::new() } else { "0123456789ab".to_owned() };
        let (domain, complaint) = (domain.to_owned(), complaint.to_owned());
        RulesSighting { domain, number, digest, complaint, follows: true, ..Default::default() }
    }

    #[test]
    fn rules_are_in_force_since_they_were_named_first() {
        let (service, start) = (OwnRules::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let first = || vec![rules("shop", 0, ""), rules("ai", 1, "")];
        assert!(service.set(first(), at(0)) && !service.set(first(), at(5)));
        let second = vec![rules("shop", 2, ""), rules("ai", 1, "number 2\nhas faults")];
        assert!(service.set(second, at(10)));
        let seen = service.seen(at(15));
        let shown: Vec<_> = seen.iter().map(|of| (&*of.domain, of.number, of.in_force_s)).collect();
        assert_eq!(shown, [("ai", 1, 15), ("shop", 2, 5)], "those to look at come first");
        assert_eq!(seen[0].complaint, "number 2 has faults");
        assert!(service.set(vec![rules("shop", 2, "")], at(20)));
        assert_eq!(
            service.seen(at(20)),
            [RulesSighting { in_force_s: 10, ..rules("shop", 2, "") }]
        );
    }

    #[test]
    fn domains_that_are_not_followed_come_last() {
        let service = OwnRules::default();
        let beyond = RulesSighting { follows: false, ..rules("a", 0, "64 of 65 domains") };
        service.set(vec![beyond, rules("b", 0, ""), rules("c", 1, "why")], Instant::now());
        let seen = service.seen(Instant::now());
        assert_eq!(seen.iter().map(|of| &*of.domain).collect::<Vec<_>>(), ["c", "b", "a"]);
    }

    #[test]
    fn what_no_service_writes_is_not_shown() {
        assert!(rules("shop", 2, "why").is_sound() && rules("shop", 0, "").is_sound());
        for bad in [
            rules("No domain", 0, ""),
            rules("shop", 1, "\u{1b}[2J"),
            rules("shop", 1, &"x".repeat(MAX_COMPLAINT + 1)),
            RulesSighting { digest: String::new(), ..rules("shop", 1, "") },
            RulesSighting { in_force_s: u64::MAX, ..rules("shop", 1, "") },
        ] {
            assert!(!bad.is_sound(), "{bad:?}");
        }
        let service = OwnRules::default();
        service.set(vec![rules("shop", 1, &"é".repeat(999))], Instant::now());
        assert_eq!(service.seen(Instant::now())[0].complaint.len(), MAX_COMPLAINT);
    }
}
