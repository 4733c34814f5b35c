//! The worked timeline of a lease in `docs/concepts.md`, replayed by a worker.

use std::collections::BTreeMap;

use super::*;

/// The document whose table is checked.
const DOCUMENT: &str = include_str!("../../../../../../docs/concepts.md");
/// The timeline goes on until every unit is refunded.
const END_MS: u64 = 1_000;
/// The caller's last request.
const LAST_MS: u64 = 455;

/// What a worker did.
#[derive(Default)]
struct Story {
    /// By the time of each call: its units as `want + spare`, or what it refunds.
    calls: BTreeMap<u64, String>,
    /// Units of the pool at the end of each millisecond.
    pool: Vec<u64>,
    requests: u64,
}

/// A request every 10 ms from 5 ms to [`LAST_MS`], a tick every 10 ms, and calls of 1 ms. The store
/// keeps a window of 10,000 units, and grants at most an eighth of what is left as spare units.
fn story() -> Story {
    let (mut worker, mut story, mut used) = (leased(), Story::default(), 0);
    let mut under_way: Option<(CallId, ReserveRequest)> = None;
    for ms in 0..END_MS {
        if let Some((id, request)) = under_way.take() {
            used -= request.refunds.iter().map(|refund| refund.units).sum::<u64>();
            let grants = request.reservations.iter().map(|asked| {
                let spare = asked.spare.min((10_000 - used - asked.want) / 8);
                used += asked.want + spare;
                brought(asked.want + spare, used)
            });
            answer(&mut worker, id, &grants.collect::<Vec<_>>(), ms);
        }
        if ms % 10 == 0 {
            worker.tick(at(ms));
        }
        if ms % 10 == 5 && ms <= LAST_MS {
            story.requests += 1;
            ask(&mut worker, "x", &[0], 1, ms);
        }
        if let Some(call) = worker.next_call(at(ms)) {
            let request: ReserveRequest = serde_json::from_slice(&call.body()).unwrap();
            let asked = request.reservations.iter().map(|r| format!("{} + {}", r.want, r.spare));
            let refunds = request.refunds.iter().map(|refund| format!("refund {}", refund.units));
            story.calls.insert(ms, asked.chain(refunds).collect::<Vec<_>>().join(", "));
            under_way = Some((call.id, request));
        }
        decisions(&mut worker);
        story.pool.push(load(&worker).0);
    }
    assert_eq!(used, story.requests, "every unit that no request spent was refunded");
    story
}

#[test]
fn timeline_of_the_documentation_is_what_a_worker_does() {
    let story = story();
    let rows: Vec<Vec<&str>> = DOCUMENT
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains(" ms | "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 10, "{rows:?}");
    for row in rows {
        let [time, _, call, pool] = row[..] else { panic!("{row:?}") };
        let ms: u64 = time.trim_end_matches(" ms").parse().unwrap();
        let expected = story.calls.get(&ms).map_or("none", String::as_str);
        assert_eq!(call, expected, "the call at {time}");
        // The reply takes a millisecond.
        assert_eq!(pool, story.pool[ms as usize + 1].to_string(), "the pool after {time}");
    }
    let summary = format!("{} requests cost {} calls", story.requests, story.calls.len());
    assert!(DOCUMENT.contains(&summary), "{summary}: {:?}", story.calls);
}
