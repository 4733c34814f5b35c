//! What proxies run of the documents that a domain has published one after the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quotagate_kubernetes::{DocumentProgress, ProxyCounts, PublishedNumber, StoreFault};
use quotagate_operate::api::PublishedDocuments;

/// The most documents of a lineage: as many as a store keeps.
const MAX_LENGTH: usize = 64;

/// Documents of the controller that took each other's place, the newest last. So what all of them
/// say was in force without a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lineage(VecDeque<PublishedNumber>);

impl Lineage {
    /// Notes which document is published, by what the store lists. It begins anew after one of
    /// another author, and after the store has lost its numbers.
    pub(super) fn found(&mut self, published: &PublishedNumber, listed: &PublishedDocuments) {
        if self.newest() == Some(published) {
            return;
        }
        let before = listed.documents.get(1).map(|before| before.number);
        let is_next = self.newest().is_some_and(|newest| {
            before == Some(newest.number) && newest.number < published.number
        });
        if !is_next {
            self.0.clear();
        }
        if self.0.len() >= MAX_LENGTH {
            self.0.pop_front();
        }
        self.0.push_back(published.clone());
    }

    /// The published document.
    pub(super) fn newest(&self) -> Option<&PublishedNumber> {
        self.0.back()
    }

    /// Whether this number is one of them.
    pub(super) fn has(&self, number: u64) -> bool {
        self.0.iter().any(|document| document.number == number)
    }

    /// Forgets them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// What the proxies of a domain have in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FleetDocuments {
    /// Proxies by the digest of the published document that they run.
    running: BTreeMap<String, u64>,
    /// Those that report any document.
    reporting: u64,
}

impl FleetDocuments {
    pub(super) fn of(listed: &PublishedDocuments) -> Self {
        let mut running = BTreeMap::new();
        for found in listed.in_force.documents.iter().filter(|found| found.number > 0) {
            *running.entry(found.digest.clone()).or_default() += found.proxies;
        }
        Self { running, reporting: listed.in_force.proxies }
    }

    /// How many run one of these.
    fn counts<'d>(&self, documents: impl Iterator<Item = &'d PublishedNumber>) -> ProxyCounts {
        let digests: BTreeSet<&str> = documents.map(|document| &*document.digest).collect();
        let running = digests.into_iter().filter_map(|digest| self.running.get(digest)).sum();
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        ProxyCounts { running: count(running), reporting: count(self.reporting) }
    }
}

/// What became of the documents of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DomainProgress {
    /// Those up to the published one, which has what the objects make; or why there is none.
    pub(super) published: Result<Lineage, String>,
    /// What proxies run, or why nobody knows.
    pub(super) fleet: Result<FleetDocuments, StoreFault>,
}

impl DomainProgress {
    /// The number of the published document.
    pub(super) fn number(&self) -> Option<u64> {
        Some(self.published.as_ref().ok()?.newest()?.number)
    }

    /// What became of an object whose policies all documents since this number have. A proxy that
    /// runs an older one of these enforces them, too.
    pub(super) fn since(&self, number: Option<u64>) -> DocumentProgress {
        let published = self.published.as_ref().map_err(Clone::clone);
        let number = number.filter(|number| published.as_ref().is_ok_and(|of| of.has(*number)));
        let number = number.or(self.number()).unwrap_or_default();
        let after = || {
            let all = published.iter().flat_map(|of| &of.0);
            all.filter(move |document| document.number >= number)
        };
        let proxies = self.fleet.as_ref().map(|fleet| fleet.counts(after()));
        let first = after().next().cloned().unwrap_or_default();
        DocumentProgress {
            published: published.clone().map(|_| first),
            proxies: proxies.map_err(|fault| *fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use quotagate_operate::api::DocumentRecord;
    use serde_json::json;

    use super::*;

    fn document(number: u64) -> PublishedNumber {
        PublishedNumber { number, digest: format!("digest {number}") }
    }

    /// What a store lists after these publications.
    fn listed(numbers: &[u64]) -> PublishedDocuments {
        let record = |number: &u64| DocumentRecord { number: *number, ..DocumentRecord::default() };
        let documents = numbers.iter().rev().map(record).collect();
        PublishedDocuments { documents, ..PublishedDocuments::default() }
    }

    fn lineage(numbers: &[u64]) -> Lineage {
        Lineage(numbers.iter().map(|number| document(*number)).collect())
    }

    #[test]
    fn lineage_begins_anew_after_a_document_of_another_author_and_after_a_loss_of_numbers() {
        let mut known = Lineage::default();
        for (number, before, expected) in [
            (1, &[1][..], &[1][..]),
            (1, &[1], &[1]),
            (2, &[1, 2], &[1, 2]),
            (3, &[1, 2, 3], &[1, 2, 3]),
            // Number 4 is an operator's.
            (5, &[1, 2, 3, 4, 5], &[5]),
            (6, &[5, 6], &[5, 6]),
            // Redis is empty again.
            (1, &[1], &[1]),
        ] {
            known.found(&document(number), &listed(before));
            assert_eq!(known, lineage(expected));
        }
    }

    #[test]
    fn proxies_that_run_an_older_document_enforce_what_has_not_changed_since() {
        let running = |number: u64, proxies: u64| json!({"number": number, "digest": document(number).digest, "proxies": proxies});
        let mut of_store = listed(&[1, 2, 3]);
        of_store.in_force = serde_json::from_value(json!({
            "proxies": 9, "documents": [running(1, 1), running(2, 2), running(3, 4)],
        }))
        .unwrap();
        let progress = DomainProgress {
            published: Ok(lineage(&[1, 2, 3])),
            fleet: Ok(FleetDocuments::of(&of_store)),
        };
        for (since, number, running) in
            [(Some(1), 1, 7), (Some(2), 2, 6), (Some(3), 3, 4), (None, 3, 4), (Some(9), 3, 4)]
        {
            let found = progress.since(since);
            assert_eq!(found.published, Ok(document(number)), "{since:?}");
            assert_eq!(found.proxies, Ok(ProxyCounts { running, reporting: 9 }), "{since:?}");
        }
    }
}
