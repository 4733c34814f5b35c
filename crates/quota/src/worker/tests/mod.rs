//! Given this configuration and these events, expect these calls and decisions.

mod bounds;
mod calls;
mod costs;
mod counting;
mod dials;
mod failure;
mod faults;
mod inspect;
mod lease;
mod live;
mod mark;
mod partial;
mod settling;
mod shadow;
mod slots;
mod statistics;
mod two_stores;

use std::num::NonZeroU64;

use quotagate_protocol::{Grant, Mode, OnFailure, ReserveReply, ReserveRequest, Window};

use super::*;
use crate::config::Count;
use crate::decision::{self, Admission, Balance, Refusal, Standing, Uncounted};
use crate::evaluate::Check;

/// How the calls of tests and models mostly end.
impl<W> Worker<W> {
    /// A call timed out.
    pub(crate) fn call_failed(&mut self, id: CallId, now: Monotonic) {
        self.call_not_sent(id, &CallFault::TimedOut, now);
    }

    /// The store answered a call with 200 and this body.
    pub(crate) fn replied(&mut self, id: CallId, body: &[u8], now: Monotonic) {
        let (body, size) = (body.to_vec(), body.len());
        let end = CallEnd::Answered { status: 200, by: AnsweredBy::Store, body, size };
        self.call_ended(id, &end, now);
    }
}

fn at(ms: u64) -> Monotonic {
    Monotonic::new(Duration::from_millis(ms))
}

/// Policies `a`, `b` (enforced) and `s` (shadow), quota 5 a minute each; timeout 50 ms.
fn config(on_failure: &str) -> Arc<Config> {
    let text = format!(
        r#"{{"domain":"d","store":{{"cluster":"c","timeout":"50ms","on_failure":"{on_failure}"}},"policies":[
            {{"name":"a","partition_by":[],"quota":5,"window":"1m"}},{{"name":"b","partition_by":[],"quota":5,"window":"1m"}},
            {{"name":"s","partition_by":[],"quota":5,"window":"1m","mode":"shadow"}}]}}"#
    );
    Arc::new(Config::parse(text.as_bytes()).unwrap())
}

/// A worker with this configuration, edited.
fn edited(on_failure: &str, edit: impl FnOnce(&mut Config)) -> TestWorker {
    let mut config = Arc::into_inner(config(on_failure)).unwrap();
    edit(&mut config);
    Worker::new(Arc::new(config), 1)
}

/// The checks of a request of `party` with this cost, for the policies at these indexes.
fn checks(policies: &[usize], party: &str, cost: u64) -> Vec<Check> {
    checks_of(&config("allow"), policies, party, cost)
}

fn checks_of(config: &Config, policies: &[usize], party: &str, cost: u64) -> Vec<Check> {
    let check = |&policy: &usize| {
        let p = &config.policies[policy];
        let counter = Counter {
            key: format!("d:{}:{{{party}}}", p.name).into(),
            quota: p.quota,
            window: p.window.clone(),
        };
        Check { policy, counter, cost: NonZeroU64::new(cost).unwrap(), mode: p.mode }
    };
    policies.iter().map(check).collect()
}

type TestWorker = Worker<&'static str>;

fn worker(on_failure: &str) -> TestWorker {
    Worker::new(config(on_failure), 1)
}

fn call(worker: &mut TestWorker, ms: u64) -> (CallId, ReserveRequest) {
    let call = worker.next_call(at(ms)).expect("a call is due");
    (call.id, serde_json::from_slice(&call.body()).unwrap())
}

/// What a reply says of one reservation.
type Granted = Result<Grant, String>;

fn grant(granted: u64, used: u64) -> Granted {
    Ok(Grant { granted, used, quota: 5, reset_ms: 30_000, window: 9, ..Grant::default() })
}

/// A grant whose window ends later than a window of the tests can.
fn impossible_grant() -> Granted {
    grant(1, 1).map(|grant| Grant { reset_ms: 60_001, ..grant })
}

fn reply(grants: &[Granted]) -> Vec<u8> {
    serde_json::to_vec(&ReserveReply { dials: 0, grants: grants.to_vec() }).unwrap()
}

fn decisions(worker: &mut TestWorker) -> Vec<(&'static str, Decision)> {
    std::iter::from_fn(|| worker.next_decision()).collect()
}

/// `+r` for an admission with the remaining units (`~r` if a shadow policy would have refused), `-`
/// for a refusal, `!` for 503.
fn brief(decision: &Decision) -> String {
    match decision {
        Decision::Admit(Admission { standings, .. }) => {
            let rest = |s: &Standing| {
                format!("{}{}", if s.granted { "" } else { "~" }, s.balance.remaining)
            };
            format!("+{}", standings.iter().map(rest).collect::<Vec<_>>().join("/"))
        }
        Decision::Refuse(_) => "-".to_owned(),
        Decision::Unavailable(_) => "!".to_owned(),
    }
}

/// The decisions of requests that waited, as `who=` and their [`brief`] form.
fn summary(worker: &mut TestWorker) -> String {
    let text = |(who, decision): (&str, Decision)| format!("{who}={}", brief(&decision));
    decisions(worker).into_iter().map(text).collect::<Vec<_>>().join(" ")
}

/// The [`brief`] form of a request that does not wait.
fn at_once(submitted: Submitted) -> String {
    match submitted {
        Submitted::Decided(decision) => brief(&decision),
        Submitted::Counting(admission) if admission.standings.is_empty() => "counting".to_owned(),
        Submitted::Counting(admission) => {
            format!("{} counting", brief(&Decision::Admit(admission)))
        }
        Submitted::Waiting(_) => "waiting".to_owned(),
    }
}

/// The call under way gets these grants.
fn answer(worker: &mut TestWorker, id: CallId, grants: &[Granted], ms: u64) {
    worker.replied(id, &reply(grants), at(ms));
}

/// A tick passes, and a call leaves with these refunds (key and units).
fn returned(worker: &mut TestWorker, ms: u64) -> Vec<(String, u64)> {
    worker.tick(at(ms));
    let Some(out) = worker.next_call(at(ms)) else { return Vec::new() };
    let request: ReserveRequest = serde_json::from_slice(&out.body()).unwrap();
    request.refunds.into_iter().map(|r| (r.key.to_string(), r.units)).collect()
}

fn violated(refusal: &Refusal) -> Vec<usize> {
    refusal.violated().map(|standing| standing.policy).collect()
}

/// A request arrives for party `x`.
fn ask(
    worker: &mut TestWorker,
    who: &'static str,
    policies: &[usize],
    cost: u64,
    ms: u64,
) -> Submitted {
    let checks = checks_of(&worker.config, policies, "x", cost);
    worker.submit(who, checks, at(ms))
}

fn tally(worker: &mut TestWorker) -> String {
    let text = |(counted, n): (Counted, u64)| {
        let Counted::Requests(policy, outcome) = counted else { return None };
        let name = ["a", "b", "s"][policy];
        Some(format!("{name}.{}={n}", outcome.name()))
    };
    worker.take_tally().into_iter().filter_map(text).collect::<Vec<_>>().join(" ")
}

fn unavailable() -> Submitted {
    Submitted::Decided(Decision::Unavailable(Uncounted { policy: 0, key: "d:a:{x}".into() }))
}

fn submit(worker: &mut TestWorker, who: &'static str, ms: u64) -> Ticket {
    match ask(worker, who, &[0], 1, ms) {
        Submitted::Waiting(ticket) => ticket,
        other => panic!("{who} should wait: {other:?}"),
    }
}
