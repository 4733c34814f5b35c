//! What the rate limit services of a domain made of its published rule file.

use std::time::Duration;

use crate::api::{DocumentKind, DocumentRecord, DocumentState, Publisher, ServiceRules};
use crate::millis;
use crate::watch::RulesSighting;

/// The services of a domain as of `now` of the backend's clock, those that are behind first.
/// `published` is unknown if its record is lost.
pub fn services(
    seen: Vec<(Publisher, RulesSighting)>,
    published: Option<&DocumentRecord>,
    now: Duration,
) -> Vec<ServiceRules> {
    let mut services: Vec<_> = seen
        .into_iter()
        .map(|(publisher, rules)| ServiceRules {
            service: publisher.id,
            host: publisher.host,
            state: state(&rules, published),
            digest: rules.digest,
            number: rules.number,
            follows: rules.follows,
            refuses: rules.refuses,
            complaint: rules.complaint,
            since_ms: millis(now.saturating_sub(Duration::from_secs(rules.in_force_s))),
        })
        .collect();
    services.sort_by(|one, other| {
        let key = |of: &ServiceRules| (of.state, of.number, of.host.clone(), of.service.clone());
        key(one).cmp(&key(other))
    });
    services
}

fn state(rules: &RulesSighting, published: Option<&DocumentRecord>) -> DocumentState {
    if !rules.follows && rules.number == 0 {
        return DocumentState::Own;
    }
    let Some(published) = published else { return DocumentState::Unknown };
    let is_rule_file = !published.is_withdrawal() && published.kind == DocumentKind::Rules;
    match (is_rule_file, rules.number) {
        (false, 0) => DocumentState::Own,
        (true, number) if (number, &rules.digest) == (published.number, &published.digest) => {
            DocumentState::Published
        }
        _ => DocumentState::Behind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PublisherKind;

    const A: &str = "aaaaaaaaaaaa";

    fn seen(id: u64, number: u64, digest: &str, follows: bool) -> (Publisher, RulesSighting) {
        let (id, host) = (format!("{id:016x}"), "a-host".to_owned());
        let publisher = Publisher { id, kind: PublisherKind::Store, host, since_ms: 0 };
        let (domain, digest) = ("shop".to_owned(), digest.to_owned());
        let rules = RulesSighting {
            domain,
            digest,
            number,
            follows,
            in_force_s: 60,
            ..RulesSighting::default()
        };
        (publisher, rules)
    }

    fn record(number: u64, digest: &str, kind: DocumentKind) -> DocumentRecord {
        DocumentRecord { number, digest: digest.to_owned(), kind, ..DocumentRecord::default() }
    }

    #[test]
    fn services_that_are_behind_come_first() {
        let now = Duration::from_secs(1_000);
        let all = || vec![seen(1, 0, "", false), seen(2, 3, A, true), seen(3, 2, A, true)];
        let states = |published: Option<DocumentRecord>| -> Vec<(u64, DocumentState)> {
            let services = services(all(), published.as_ref(), now);
            assert!(services.iter().all(|of| of.since_ms == 940_000), "{services:?}");
            services.iter().map(|of| (of.number, of.state)).collect()
        };
        use DocumentState::{Behind, Own, Published, Unknown};
        let rules = record(3, A, DocumentKind::Rules);
        assert_eq!(states(Some(rules)), [(2, Behind), (3, Published), (0, Own)]);
        let other = record(3, "bbbbbbbbbbbb", DocumentKind::Rules);
        assert_eq!(states(Some(other)), [(2, Behind), (3, Behind), (0, Own)]);
        let withdrawn = record(4, "", DocumentKind::Policies);
        assert_eq!(states(Some(withdrawn)), [(2, Behind), (3, Behind), (0, Own)]);
        let policies = record(5, A, DocumentKind::Policies);
        assert_eq!(states(Some(policies)), [(2, Behind), (3, Behind), (0, Own)]);
        assert_eq!(states(None), [(2, Unknown), (3, Unknown), (0, Own)]);
    }

    #[test]
    fn service_that_follows_is_behind_until_it_has_the_first_rule_file() {
        let state = |published: &DocumentRecord| {
            let seen = vec![seen(1, 0, "", true)];
            services(seen, Some(published), Duration::ZERO)[0].state
        };
        assert_eq!(state(&DocumentRecord::default()), DocumentState::Own);
        assert_eq!(state(&record(1, A, DocumentKind::Policies)), DocumentState::Own);
        assert_eq!(state(&record(1, A, DocumentKind::Rules)), DocumentState::Behind);
    }
}
