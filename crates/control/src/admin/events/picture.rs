//! What the live page shows, as a JSON object.
//!
//! Everything that may change by itself has a name of its own, so that changes are small: policies
//! and dials by their names below their domain, steps of requests by their numbers, partitions by
//! domain, policy and partition. Times are those of the clock and whole seconds, because a
//! remaining time changes each second. Absent stands for `null`.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use quotagate_operate::FleetSight;
use quotagate_operate::api::{Board, PartitionSlots, Refused, Top, Usage};
use quotagate_operate::watch::{Pace, Wanted};
use quotagate_store::server::DomainScope;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::control::Control;

/// Most partitions in each list.
const LISTED: usize = 10;
/// When a policy was reported is shown only this exactly, in milliseconds.
const SEEN_MS: u64 = 30_000;

/// What the picture of any listener is made of, besides what the fleet saw.
pub struct PictureSource {
    at_ms: u64,
    step: u64,
    environment: Option<String>,
    faults: Vec<String>,
    warnings: Vec<String>,
    backend: String,
    pace: Pace,
    boards: Vec<Board>,
    slots: Vec<PartitionSlots>,
    losses: BTreeMap<String, Vec<String>>,
}

impl PictureSource {
    /// The current state; the calls of this process are `own`, and `fullest` are the partitions
    /// that the pictures list. Boards are read for at most a second, so that the page shows a
    /// backend's fault even while that fault prevents reading.
    pub async fn now(
        control: &Control,
        sight: &FleetSight<'_>,
        domains: &mut Vec<String>,
        own: Pace,
        fullest: impl Iterator<Item = &Usage>,
    ) -> Self {
        let boards = control.operate.boards.glance(domains);
        let (boards, slots) = tokio::join!(boards, sight.slots(fullest));
        let health = control.store.health();
        Self {
            at_ms: now_ms(),
            step: control.operate.fleet.step(),
            environment: control.environment.clone(),
            faults: health.faults,
            warnings: health.warnings,
            backend: control.store.control().backend().to_owned(),
            pace: sight.pace(own),
            boards,
            slots,
            losses: control.operate.boards.losses(),
        }
    }
}

/// The time in milliseconds since the Unix epoch.
pub fn now_ms() -> u64 {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(at.as_millis()).unwrap_or_default()
}

/// The partitions that the picture lists for a listener who may see these domains.
pub fn top(sight: &FleetSight<'_>, scope: &DomainScope) -> Top {
    let wanted = Some(scope).filter(|scope| **scope != DomainScope::All);
    sight.top(Wanted { scope: wanted, ..Wanted::default() }, LISTED)
}

/// The picture for a listener who may see these domains, with their [`top`]. Every field is named,
/// so that a new one is not shown to those who may not see it.
pub fn of(
    seen: &PictureSource,
    sight: &FleetSight<'_>,
    scope: &DomainScope,
    top: Top,
) -> Map<String, Value> {
    let in_force = sight.in_force();
    let (mut domains, mut mixed) = (Map::new(), Vec::new());
    for board in seen.boards.iter().filter(|board| scope.has(&board.domain)) {
        let documents = in_force.get(&board.domain).cloned().unwrap_or_default();
        let documents = documents.compared(&board.policies);
        mixed.extend(documents.sentence(&board.domain));
        let policies = board.policies.iter().map(|policy| {
            let mut row = row(policy, seen.at_ms);
            round_seen(&mut row);
            if let Some(Value::Array(also)) = row.get_mut("also") {
                also.iter_mut().filter_map(Value::as_object_mut).for_each(round_seen);
            }
            (policy.name.clone(), Value::Object(row))
        });
        let dials = board
            .dials
            .iter()
            .map(|dial| (dial.policy.clone(), Value::Object(row(dial, seen.at_ms))));
        let domain = json!({
            "version": board.version,
            "durable": board.durable,
            "overrides": board.overrides,
            "policies": policies.collect::<Map<_, _>>(),
            "dials": dials.collect::<Map<_, _>>(),
            "documents": documents,
            "requests": {},
        });
        domains.insert(board.domain.clone(), domain);
    }
    let requests = sight.requests();
    let last = requests.last();
    for of in requests.steps(last) {
        let steps = of.steps.iter().map(|(number, counts)| (number.to_string(), counted(counts)));
        let domain = domains.get_mut(of.domain).and_then(|domain| domain.get_mut("requests"));
        if let Some(Value::Object(all)) = domain {
            all.insert(of.policy.to_owned(), Value::Object(steps.collect()));
        }
    }
    let fullest = top.fullest.iter().map(|of| {
        let name = format!("{} {} {}", of.domain, of.policy, of.partition);
        let mut row = row(of, seen.at_ms);
        let name_of = |of: &PartitionSlots| format!("{} {} {}", of.domain, of.policy, of.partition);
        if let Some(slots) = seen.slots.iter().find(|slots| name_of(slots) == name) {
            row.insert("waiting".to_owned(), slots.waiting.into());
            if slots.held > 0 {
                let since_ms = seen.at_ms.saturating_sub(slots.longest_ms);
                row.insert("longest_begun_ms".to_owned(), seconds(since_ms));
            }
            if slots.left_out > 0 {
                row.insert("left_out".to_owned(), slots.left_out.into());
            }
        }
        (name, Value::Object(row))
    });
    let publishers =
        top.publishers.iter().map(|of| (of.id.clone(), Value::Object(row(of, seen.at_ms))));
    let losses = seen.losses.iter().filter(|(domain, _)| scope.has(domain));
    let losses = losses.flat_map(|(_, sentences)| sentences.iter().cloned());
    let documents: Vec<String> = losses.chain(sight.refused_documents(scope)).collect();
    let mut picture = json!({
        "at_ms": seen.at_ms,
        "step": seen.step,
        "last_step": last,
        "faults": seen.faults,
        "warnings": seen.warnings,
        "documents": documents,
        "mixed": mixed,
        "backend": seen.backend,
        "calls_per_s": rounded(seen.pace.per_s),
        "domains": domains,
        "fullest": fullest.collect::<Map<_, _>>(),
        "refused": beyond(&top.refused, seen.at_ms),
        "would_refuse": beyond(&top.would_refuse, seen.at_ms),
        "publishers": publishers.collect::<Map<_, _>>(),
    });
    let Value::Object(picture) = &mut picture else { return Map::new() };
    let optional = [
        ("environment", seen.environment.clone().map(Value::from)),
        ("call_ms", seen.pace.ms.map(|ms| rounded(ms).into())),
        ("incomplete", top.incomplete.map(Value::from)),
    ];
    let present = optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    picture.extend(present);
    std::mem::take(picture)
}

fn beyond(list: &[Refused], at_ms: u64) -> Map<String, Value> {
    let rows = list.iter().map(|of| {
        (format!("{} {} {}", of.domain, of.policy, of.partition), Value::Object(row(of, at_ms)))
    });
    rows.collect()
}

/// A row, with times of the clock.
fn row(of: &impl Serialize, at_ms: u64) -> Map<String, Value> {
    let Ok(Value::Object(mut row)) = serde_json::to_value(of) else { return Map::new() };
    row.retain(|_, value| !value.is_null());
    let ends = ["reset_ms", "remaining_ms"].into_iter().find_map(|name| row.remove(name));
    if let Some(left) = ends.as_ref().and_then(Value::as_u64) {
        row.insert("ends_ms".to_owned(), seconds(at_ms.saturating_add(left)));
    }
    if let Some(ago) = row.remove("for_ms").as_ref().and_then(Value::as_u64) {
        row.insert("begun_ms".to_owned(), seconds(at_ms.saturating_sub(ago)));
    }
    row
}

/// Rounds when a policy was reported, which each report changes.
fn round_seen(row: &mut Map<String, Value>) {
    if let Some(seen) = row.get("seen_ms").and_then(Value::as_u64) {
        row.insert("seen_ms".to_owned(), (seen / SEEN_MS * SEEN_MS).into());
    }
}

/// A time in milliseconds, rounded to a second.
fn seconds(ms: u64) -> Value {
    (ms.saturating_add(500) / 1000 * 1000).into()
}

/// A number with three digits after the point.
fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// Requests by outcome, without the zeros at the end.
fn counted(counts: &[u64; 7]) -> Value {
    let length = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts.iter().take(length).copied().collect()
}
