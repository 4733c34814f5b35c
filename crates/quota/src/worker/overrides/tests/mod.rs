//! Given these replies, traffic and moments, expect these dials in force (`in_force`), these
//! fetches (`fetching`), these reports (`reports`).

mod fetching;
mod in_force;
mod reports;

use serde_json::{Value, json};

use super::super::{AnsweredBy, CallEnd, Worker};
use super::*;

fn at(ms: u64) -> Monotonic {
    Monotonic::new(Duration::from_millis(ms))
}

/// Policies `a` (enforced), `s` (shadow) and `o` (off), quota 5 a minute; `deny`.
fn configured() -> Arc<Config> {
    let text = r#"{"domain":"shop.d","store":{"cluster":"c","timeout":"50ms","on_failure":"deny","token":"s3cret"},
        "policies":[{"name":"a","partition_by":[],"quota":5,"window":"1m"},{"name":"s","partition_by":[],"quota":5,"window":"1m","mode":"shadow"},
                    {"name":"o","partition_by":[],"quota":5,"window":"1m","mode":"off"}]}"#;
    Arc::new(Config::parse(text.as_bytes()).unwrap())
}

fn worker() -> Worker<()> {
    Worker::new(configured(), 1)
}

/// The mode, dialed quota and `on_failure` of each policy, and `!` if it has runtime overrides.
fn in_force(worker: &Worker<()>) -> String {
    let policy = |policy: &crate::config::Policy| {
        let quota = policy.dialed_quota.map_or("-".to_owned(), |quota| quota.to_string());
        let overridden = if policy.is_overridden { "!" } else { "" };
        format!("{:?} {quota} {:?}{overridden}", policy.mode, policy.on_failure)
    };
    worker.config().policies.iter().map(policy).collect::<Vec<_>>().join(", ")
}

const CONFIGURED: &str = "Enforce - Deny, Shadow - Deny, Off - Deny";

fn ok(body: &[u8]) -> CallEnd {
    CallEnd::Answered { status: 200, by: AnsweredBy::Store, body: body.to_vec(), size: body.len() }
}

/// A request arrives, and the fetch that leaves then gets this reply.
fn fetched(worker: &mut Worker<()>, ms: u64, reply: &Value) {
    worker.observe_traffic(at(ms));
    let fetch = worker.next_fetch(at(ms)).expect("a fetch is due");
    worker.call_ended(fetch.id, &ok(reply.to_string().as_bytes()), at(ms));
}

fn reply(version: u64, dials: Value) -> Value {
    json!({"version": version, "dials": dials})
}

fn lines(worker: &mut Worker<()>) -> Vec<String> {
    worker.take_notices().iter().map(ToString::to_string).collect()
}

fn failures(worker: &mut Worker<()>) -> u64 {
    let of = |(counted, n): (super::super::Counted, u64)| match counted {
        super::super::Counted::Calls(CallOutcome::DialsFailed) => n,
        other => panic!("{other:?}"),
    };
    worker.take_tally().into_iter().map(of).sum()
}
