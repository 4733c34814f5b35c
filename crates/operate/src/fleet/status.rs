//! What the proxies of a domain made of its published document.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::api::{DocumentState, ProxyDocument, SilentDocument, TakenUp, WorkerDocument};
use crate::millis;
use crate::record::documents::NamedDocuments;
use crate::watch::{DocumentSighting, ProxySighting, SilentWorkers, WorkerSighting};

/// Most rows of proxies, and of silent ones.
const MAX_ROWS: usize = 1024;
/// Most workers of a row.
const MAX_WORKERS: usize = 128;

/// What the proxies of a domain made of its published document.
#[derive(Default)]
pub struct DocumentStatus {
    /// Those that are behind first.
    pub proxies: Vec<ProxyDocument>,
    pub silent: Vec<SilentDocument>,
    /// Rows of `proxies` and `silent` that found no room.
    pub left_out: u64,
    pub taken_up: TakenUp,
}

impl DocumentStatus {
    /// Of what was seen at `now` of the backend's clock. `published` is unknown if its record is
    /// lost.
    pub fn of(
        sightings: &[DocumentSighting],
        silent: Vec<SilentWorkers>,
        published: Option<&NamedDocuments>,
        now: Duration,
    ) -> Self {
        let ago = |seconds: u64| millis(now.saturating_sub(Duration::from_secs(seconds)));
        let mut proxies = Vec::new();
        for sighting in sightings {
            for seen in &sighting.proxies {
                let workers = seen.workers.iter().map(|WorkerSighting(worker, in_force_s, _)| {
                    WorkerDocument { worker: *worker, since_ms: ago(*in_force_s) }
                });
                proxies.push(ProxyDocument {
                    proxy: seen.proxy.clone(),
                    digest: sighting.digest.clone(),
                    number: sighting.number,
                    live: seen.live,
                    state: state(sighting, seen, published),
                    refuses: seen.refuses,
                    workers: workers.take(MAX_WORKERS).collect(),
                });
            }
        }
        let taken_up = taken_up(&proxies);
        proxies.sort_by(|one, other| {
            let rank = |of: &ProxyDocument| (of.state, of.number);
            rank(one).cmp(&rank(other)).then_with(|| one.proxy.cmp(&other.proxy))
        });
        let at = Instant::now();
        let mut silent: Vec<_> = silent
            .into_iter()
            .map(|SilentWorkers { proxy, document, at: last }| SilentDocument {
                proxy,
                digest: document.digest,
                number: document.number,
                last_ms: ago(at.saturating_duration_since(last).as_secs()),
            })
            .collect();
        let beyond = |rows: usize| u64::try_from(rows.saturating_sub(MAX_ROWS)).unwrap_or(u64::MAX);
        let left_out = beyond(proxies.len()).saturating_add(beyond(silent.len()));
        proxies.truncate(MAX_ROWS);
        silent.truncate(MAX_ROWS);
        Self { proxies, silent, left_out, taken_up }
    }
}

fn state(
    sighting: &DocumentSighting,
    seen: &ProxySighting,
    published: Option<&NamedDocuments>,
) -> DocumentState {
    match published.map(|published| published.of_proxy(&seen.proxy)) {
        None => DocumentState::Unknown,
        Some(_) if !seen.live && sighting.number == 0 => DocumentState::Own,
        Some(published) if !sighting.is(published) => DocumentState::Behind,
        Some(published) if published.digest.is_empty() => DocumentState::Own,
        Some(_) => DocumentState::Published,
    }
}

/// A proxy has taken the document up if none of its workers has another one.
fn taken_up(proxies: &[ProxyDocument]) -> TakenUp {
    let mut live: BTreeMap<&str, Vec<&ProxyDocument>> = BTreeMap::new();
    for of in proxies.iter().filter(|of| of.live) {
        live.entry(&of.proxy).or_default().push(of);
    }
    let is_current =
        |of: &&ProxyDocument| matches!(of.state, DocumentState::Published | DocumentState::Own);
    let have: Vec<_> = live.values().filter(|rows| rows.iter().all(is_current)).collect();
    let workers = have.iter().flat_map(|rows| rows.iter().flat_map(|of| &of.workers));
    let count = |proxies: usize| u64::try_from(proxies).unwrap_or(u64::MAX);
    TakenUp {
        have: count(have.len()),
        live: count(live.len()),
        since_ms: workers.map(|of| of.since_ms).max(),
    }
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::dials::DocumentVersion;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_000_000);

    /// Its number, whether it takes published documents up, and its workers: the index of each, and
    /// for how many seconds the document has been in force there.
    type Seen<'s> = (u64, bool, &'s [(u32, u64)]);

    fn sighting(digest: &str, number: u64, proxies: &[Seen<'_>]) -> DocumentSighting {
        let proxies = proxies.iter().map(|(proxy, live, workers)| ProxySighting {
            proxy: format!("{proxy:016x}"),
            live: *live,
            refuses: 0,
            workers: workers.iter().map(|(worker, s)| WorkerSighting(*worker, *s, 1)).collect(),
        });
        let (domain, digest) = ("shop".to_owned(), digest.to_owned());
        DocumentSighting {
            domain,
            digest,
            number,
            proxies: proxies.collect(),
            requests: 0,
            refused: 0,
            is_cut: false,
        }
    }

    fn rows(status: &DocumentStatus) -> Vec<(u64, u64, DocumentState)> {
        let name = |of: &ProxyDocument| u64::from_str_radix(&of.proxy, 16).unwrap();
        status.proxies.iter().map(|of| (name(of), of.number, of.state)).collect()
    }

    #[test]
    fn proxy_has_the_document_if_all_its_workers_have_it() {
        let version = |number, digest: &str| DocumentVersion { number, digest: digest.to_owned() };
        let seen = [
            sighting("aaaaaaaaaaaa", 0, &[(4, true, &[(0, 9)]), (5, false, &[(0, 9)])]),
            sighting("bbbbbbbbbbbb", 1, &[(2, true, &[(1, 99)])]),
            sighting(
                "cccccccccccc",
                2,
                &[(1, true, &[(0, 50), (1, 40)]), (2, true, &[(0, 45)]), (3, true, &[(0, 60)])],
            ),
        ];
        let of = |published: Option<&DocumentVersion>| {
            let published = published.cloned().map(NamedDocuments::from);
            DocumentStatus::of(&seen, Vec::new(), published.as_ref(), NOW)
        };
        let second = of(Some(&version(2, "cccccccccccc")));
        use DocumentState::{Behind, Own, Published, Unknown};
        assert_eq!(
            rows(&second),
            [
                (4, 0, Behind),
                (2, 1, Behind),
                (1, 2, Published),
                (2, 2, Published),
                (3, 2, Published),
                (5, 0, Own),
            ]
        );
        let since_ms = Some(millis(NOW) - 40_000);
        assert_eq!(second.taken_up, TakenUp { have: 2, live: 4, since_ms });
        assert_eq!(second.proxies[2].workers[0].since_ms, millis(NOW) - 50_000);
        let withdrawn = of(Some(&version(3, "")));
        assert_eq!(withdrawn.taken_up.have, 1, "{:?}", rows(&withdrawn));
        assert_eq!(rows(&withdrawn).iter().filter(|(.., state)| *state == Own).count(), 2);
        let lost = of(None);
        assert!(rows(&lost).iter().all(|(.., state)| *state == Unknown));
        assert_eq!(lost.taken_up, TakenUp { have: 0, live: 4, since_ms: None });
    }

    #[test]
    fn rows_are_bounded_and_those_behind_come_first() {
        let names: Vec<_> = (0..1100).map(|proxy| (proxy, true, &[(0, 5)][..])).collect();
        let seen = [
            sighting("aaaaaaaaaaaa", 2, &names),
            sighting("bbbbbbbbbbbb", 1, &[(5000, true, &[(0, 9)])]),
        ];
        let silent = vec![SilentWorkers {
            proxy: "00000000000000aa".to_owned(),
            document: DocumentVersion { number: 1, digest: "bbbbbbbbbbbb".to_owned() },
            at: Instant::now(),
        }];
        let published = DocumentVersion { number: 2, digest: "aaaaaaaaaaaa".to_owned() };
        let status = DocumentStatus::of(&seen, silent, Some(&published.into()), NOW);
        assert_eq!((status.proxies.len(), status.left_out), (MAX_ROWS, 77));
        assert_eq!(rows(&status)[0], (5000, 1, DocumentState::Behind));
        assert_eq!((status.taken_up.have, status.taken_up.live), (1100, 1101));
        assert_eq!(status.silent[0].last_ms, millis(NOW));
    }
}
