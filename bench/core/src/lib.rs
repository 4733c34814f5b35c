//! The pure core without a host: what its benches and the count of its instructions share.

use std::borrow::Cow;
use std::fmt;
use std::process::exit;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::{Grant, Holding, Reservation, ReserveReply, ReserveRequest};
use quotagate_quota::config::Config;
use quotagate_quota::decision::Decision;
use quotagate_quota::evaluate::Check;
use quotagate_quota::request::{HeaderValues, Request};
use quotagate_quota::response::Now;
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{AnsweredBy, CallEnd, CallId, Worker};

/// A policy that counts each request of the benches.
pub const CONFIGURATION: &str = r#"{
    "domain": "shop",
    "store": {"cluster": "quota_store", "timeout": "1s"},
    "identities": {"caller": [{"header": {"name": "x-user"}}, {"client_ip": {}}]},
    "policies": [{
        "name": "per-caller", "match": {"methods": ["GET", "POST"], "path": {"prefix": "/api/"}},
        "partition_by": ["caller"], "quota": 1000000, "window": "1h"
    }],
    "response": {"headers": ["ietf", "x_ratelimit"]}
}"#;

/// A request of a user, whose facts cost next to nothing.
pub struct User(pub usize);

impl Request for User {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        Some(b"GET".into())
    }
    fn path(&self) -> Option<Cow<'_, [u8]>> {
        Some(b"/api/items?page=2".into())
    }
    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        Some(b"shop.example.com".into())
    }
    fn header(&self, _name: &str) -> HeaderValues<'_> {
        HeaderValues::One(format!("user-{}", self.0).into_bytes().into())
    }
    fn metadata(&self, _filter: &str, _path: &[Box<str>]) -> Option<Vec<u8>> {
        None
    }
    fn attribute(&self, _path: &[&str]) -> Option<Vec<u8>> {
        None
    }
    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        Some(b"192.0.2.7:4711".into())
    }
    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        Some(b"items".into())
    }
}

/// The user that most benches send.
pub const SEVEN: &User = &User(7);

/// The configuration of [`CONFIGURATION`].
pub fn config() -> Config {
    Config::parse(CONFIGURATION.as_bytes()).unwrap_or_else(|faults| stop(faults))
}

/// The same with leases.
pub fn leased() -> Config {
    let text = CONFIGURATION.replace(
        r#""window": "1h""#,
        r#""window": "1h", "precision": "lease", "lease": {"ahead": "10s"}"#,
    );
    Config::parse(text.as_bytes()).unwrap_or_else(|faults| stop(faults))
}

/// The same with costs that a response's header says.
pub fn settled() -> Config {
    let text = CONFIGURATION.replace(
        r#""window": "1h""#,
        r#""window": "1h", "cost": {"reserve": 5, "settle": [{"response_header": "x-cost"}]}"#,
    );
    Config::parse(text.as_bytes()).unwrap_or_else(|faults| stop(faults))
}

/// The same with a limit of how many requests run at once.
pub fn limited() -> Config {
    let text = CONFIGURATION.replace(r#""quota": 1000000, "window": "1h""#, r#""in_flight": 1000"#);
    Config::parse(text.as_bytes()).unwrap_or_else(|faults| stop(faults))
}

/// The counters that count a request of this user.
pub fn checks(config: &Config, user: usize) -> Vec<Check> {
    config.evaluate(&User(user)).checks.unwrap_or_else(|missing| stop(format!("{missing:?}")))
}

/// A worker with so many requests that wait for a call.
pub fn waiting(config: &Arc<Config>, requests: usize) -> Worker<usize> {
    let mut worker = Worker::new(Arc::clone(config), 1);
    for user in 0..requests {
        worker.submit(user, checks(config, user), at(1));
    }
    worker
}

/// The same with their call under way.
pub fn called(config: &Arc<Config>, requests: usize) -> (Worker<usize>, CallId) {
    let mut worker = waiting(config, requests);
    match worker.next_call(at(1)) {
        Some(call) => (worker, call.id),
        None => stop("no call is due"),
    }
}

/// Lets the worker learn that user 7 has nothing left.
pub fn spend(worker: &mut Worker<usize>, config: &Config) {
    worker.submit(7, checks(config, 7), at(1));
    let Some(call) = worker.next_call(at(1)) else { stop("no call is due") };
    worker.call_ended(call.id, &reply(1, 0), at(1));
}

/// A worker that holds a thousand units of user 7, the most that a lease may, after many requests
/// at once.
pub fn holding(config: &Arc<Config>) -> Worker<usize> {
    let mut worker = Worker::new(Arc::clone(config), 1);
    for _ in 0..8000 {
        worker.submit(7, checks(config, 7), at(1));
    }
    let Some(call) = worker.next_call(at(1)) else { stop("no call is due") };
    let request: ReserveRequest =
        serde_json::from_slice(&call.body()).unwrap_or_else(|error| stop(error));
    let Some(reservation) = request.reservations.first() else { stop("nothing is asked for") };
    worker.call_ended(call.id, &reply(1, reservation.want + reservation.spare), at(1));
    worker
}

/// A worker that keeps ten idle slots of user 7, since ten requests have just ended.
pub fn keeping(config: &Arc<Config>) -> Worker<usize> {
    let mut worker = Worker::new(Arc::clone(config), 1);
    for _ in 0..10 {
        worker.submit(7, checks(config, 7), at(1));
    }
    let Some(call) = worker.next_call(at(1)) else { stop("no call is due") };
    let Some(Reservation { want, holding: Some(Holding { serial, .. }), .. }) =
        call.request.reservations.first()
    else {
        stop("no slots are asked for")
    };
    let (granted, window) = (*want, *serial);
    let grant =
        Grant { granted, used: granted, quota: 1000, reset_ms: 9000, window, ..Grant::default() };
    worker.carried_out(call.id, ReserveReply { dials: 17, grants: vec![Ok(grant)] }, at(1));
    while let Some((_, decision)) = worker.next_decision() {
        let Decision::Admit(admission) = decision else { stop("it is not admitted") };
        worker.free(admission.slots, at(1));
    }
    worker
}

/// The reply to a call, which grants everybody so many units.
pub fn reply(requests: usize, granted: u64) -> CallEnd {
    // A worker rejects a grant that is larger than the units in use.
    let used = if granted == 0 { 1_000_000 } else { granted.max(5_700) };
    let (quota, reset_ms, window) = (1_000_000, 1_234_567, 483_333);
    let grant = Grant { granted, used, quota, reset_ms, window, ..Grant::default() };
    let reply = ReserveReply { dials: 17, grants: vec![Ok(grant); requests] };
    let body = serde_json::to_vec(&reply).unwrap_or_else(|error| stop(error));
    let size = body.len();
    CallEnd::Answered { status: 200, by: AnsweredBy::Store, body, size }
}

/// What becomes of a request that gets so many units.
pub fn decision(config: &Arc<Config>, granted: u64) -> Decision {
    let (mut worker, call) = called(config, 1);
    worker.call_ended(call, &reply(1, granted), at(2));
    match worker.next_decision() {
        Some((_, decision)) => decision,
        None => stop("nothing is decided"),
    }
}

/// A time.
pub fn at(ms: u64) -> Monotonic {
    Monotonic::new(Duration::from_millis(ms))
}

/// The time of answers.
pub fn now() -> Now {
    Now { monotonic: at(3), epoch: Duration::from_secs(1_740_000_000) }
}

/// Ends the program, because the measurement cannot be set up.
pub fn stop(why: impl fmt::Display) -> ! {
    eprintln!("the bench cannot be set up: {why}");
    exit(1)
}
