//! For any answer of the store: no panic, no request is admitted without a grant, and every request
//! is decided.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::dials::{MAX_REPORT, Report};
use quotagate_protocol::{MAX_BODY, MAX_ITEMS, MAX_UNITS, ReserveRequest};
use quotagate_quota::config::Config;
use quotagate_quota::decision::{Admission, Decision};
use quotagate_quota::evaluate::Check;
use quotagate_quota::exchange::counting::ResponseEvent;
use quotagate_quota::request::{HeaderValues, Request};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{AnsweredBy, CallEnd, CallFault, CallId, Submitted, Ticket, Worker};
use serde_json::{Value, json};

use crate::choices::Choices;

/// The store answered with 200 and this body.
fn replied(body: Vec<u8>) -> CallEnd {
    let size = body.len();
    CallEnd::Answered { status: 200, by: AnsweredBy::Store, body, size }
}

const TIMEOUT: Duration = Duration::from_millis(50);
const TICK: Duration = Duration::from_millis(10);

/// Every way to count, each for two callers. All fail closed, so that only grants admit.
const CLOSED: &str = r#"{
    "domain": "d",
    "store": {"cluster": "c", "timeout": "50ms", "on_failure": "deny"},
    "identities": {"party": [{"header": {"name": "x-party"}}]},
    "policies": [
        {"name": "exact", "quota": 8, "window": "1s", "partition_by": ["party"], "on_missing": "skip"},
        {"name": "leased", "match": {"methods": ["GET"]}, "partition_by": [], "quota": 2000, "window": "1m", "precision": "lease"},
        {"name": "failed", "match": {"methods": ["POST"]}, "partition_by": [], "quota": 5, "window": "1h", "count": {"status": [401], "abandoned": "refund"}},
        {"name": "denied", "match": {"methods": ["PUT"]}, "partition_by": [], "quota": 5, "window": "1m", "count_denied": true,
         "cost": {"header": {"name": "x-cost"}}},
        {"name": "shadow", "partition_by": [], "quota": 3, "window": "1m", "mode": "shadow"}
    ]
}"#;

/// Uses the bytes to choose what requests, the store and the clock do.
pub fn check(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    // If failures do not refuse, requests are admitted without grants too. Then only the other
    // conditions must hold.
    let failure = *choices.of(&["deny", "deny", "deny", "allow", "local"]);
    let config =
        Config::parse(CLOSED.replace("\"deny\"", &format!("{failure:?}")).as_bytes()).unwrap();
    let config = Arc::new(config);
    let mut world = World {
        worker: Worker::new(Arc::clone(&config), u64::from(choices.byte())),
        config,
        closed: failure == "deny",
        now: Monotonic::default() + Duration::from_secs(1000),
        serial: 0,
        waiting: BTreeMap::new(),
        calls: Vec::new(),
        fetch: None,
        past: Vec::new(),
        admitted: Vec::new(),
        units: HashMap::new(),
    };
    // Most steps take several choices. After the last byte all choices are the simplest.
    for _ in 0..bytes.len() / 3 {
        world.step(&mut choices);
    }
    world.end();
}

struct World {
    worker: Worker<u64>,
    config: Arc<Config>,
    closed: bool,
    now: Monotonic,
    serial: u64,
    waiting: BTreeMap<u64, Waiting>,
    calls: Vec<Call>,
    /// The pending fetch of dials.
    fetch: Option<(CallId, Monotonic)>,
    /// Finished calls: a confused host may deliver them again.
    past: Vec<CallId>,
    admitted: Vec<Admission>,
    units: HashMap<String, GrantedUnits>,
}

struct Waiting {
    ticket: Ticket,
    checks: Vec<Check>,
    since: Monotonic,
}

struct Call {
    id: CallId,
    request: ReserveRequest,
}

/// Units of one counter, over all its windows.
#[derive(Debug, Default)]
struct GrantedUnits {
    granted: u64,
    spent: u64,
    returned: u64,
}

impl World {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.below(9) {
            0..=2 => self.arrive(choices),
            3 => {
                let ms = *choices.of(&[1, 0, 5, 10, 49, 50, 250, 999, 1000, 60_000]);
                self.now = self.now + Duration::from_millis(ms);
                self.tick();
            }
            4 | 5 => self.reply(choices),
            6 => self.leave(choices),
            7 => self.fetched(choices),
            _ => self.answer(choices),
        }
        self.settle();
    }

    fn arrive(&mut self, choices: &mut Choices<'_>) {
        let request = Plain {
            party: choices.below(3),
            method: choices.of::<&str>(&["GET", "POST", "PUT"]),
            cost: choices.of::<&str>(&["1", "2", "9", "9007199254740991"]),
        };
        let config = Arc::clone(self.worker.observe_traffic(self.now));
        let Ok(checks) = config.evaluate(&request).checks else { return };
        self.serial += 1;
        match self.worker.submit(self.serial, checks.clone(), self.now) {
            Submitted::Waiting(ticket) => {
                self.waiting.insert(self.serial, Waiting { ticket, checks, since: self.now });
            }
            Submitted::Decided(decision) => self.decided(&checks, decision),
            Submitted::Counting(admission) => {
                let is_known =
                    |check: &Check| admission.standings.iter().any(|s| s.policy == check.policy);
                let known: Vec<Check> = checks.into_iter().filter(is_known).collect();
                self.decided(&known, Decision::Admit(admission));
            }
        }
    }

    fn reply(&mut self, choices: &mut Choices<'_>) {
        if self.calls.is_empty() {
            if let Some(&id) = self.past.last() {
                self.worker.call_ended(id, &replied(b"{\"grants\":[]}".to_vec()), self.now);
                self.worker.call_not_sent(id, &CallFault::TimedOut, self.now);
            }
            return;
        }
        let Call { id, request } = self.calls.swap_remove(choices.below(self.calls.len()));
        self.past.push(id);
        let body = match choices.below(6) {
            0 => return self.fail(id, choices),
            1 => choices.bytes(),
            kind => {
                let mut text = sensible(&request, choices).to_string().into_bytes();
                for _ in 0..kind.saturating_sub(4) {
                    let at = usize::from(u16::from_be_bytes([choices.byte(), choices.byte()]))
                        % text.len();
                    text[at] = choices.byte();
                }
                text
            }
        };
        self.grant(&request, &body);
        self.worker.call_ended(id, &replied(body), self.now);
    }

    /// The call fails in some way.
    fn fail(&mut self, id: CallId, choices: &mut Choices<'_>) {
        let by = *choices.of(&[AnsweredBy::Store, AnsweredBy::Host]);
        let status = *choices.of(&[503, 504, 401, 302, 0, u16::MAX]);
        match choices.below(5) {
            0 => self.worker.call_not_sent(id, &CallFault::TimedOut, self.now),
            1 => self.worker.call_not_sent(
                id,
                choices.of(&[CallFault::NoCluster, CallFault::NoHost]),
                self.now,
            ),
            2 => self.worker.call_ended(id, &CallEnd::Reset, self.now),
            3 => {
                let end = CallEnd::Answered { status: 200, by, body: Vec::new(), size: usize::MAX };
                self.worker.call_ended(id, &end, self.now)
            }
            _ => {
                let body = choices.bytes();
                let end = CallEnd::Answered { status, by, size: body.len(), body };
                self.worker.call_ended(id, &end, self.now)
            }
        };
    }

    /// The pending fetch is answered or fails.
    fn fetched(&mut self, choices: &mut Choices<'_>) {
        let Some((id, _)) = self.fetch.take() else { return };
        self.past.push(id);
        if choices.below(6) == 0 {
            return self.fail(id, choices);
        }
        let mut body = dials(self.closed, choices).to_string().into_bytes();
        match choices.below(6) {
            0 => body = choices.bytes(),
            1 => {
                let at =
                    usize::from(u16::from_be_bytes([choices.byte(), choices.byte()])) % body.len();
                body[at] = choices.byte();
            }
            _ => {}
        }
        // A changed byte may produce the name of another failure.
        self.closed &= body.windows(5).all(|word| word != b"allow" && word != b"local");
        let end = CallEnd::Answered { status: 200, by: AnsweredBy::Store, size: body.len(), body };
        self.worker.call_ended(id, &end, self.now);
        assert_eq!(self.worker.config().policies.len(), self.config.policies.len());
    }

    /// Counts the units that a reply grants. Parses it without the product's code.
    fn grant(&mut self, request: &ReserveRequest, body: &[u8]) {
        let reply: Value = serde_json::from_slice(body).unwrap_or_default();
        let grants = reply["grants"].as_array().cloned().unwrap_or_default();
        for (reservation, grant) in request.reservations.iter().zip(grants) {
            let granted = grant["granted"].as_u64().unwrap_or_default();
            if granted <= reservation.want + reservation.spare {
                self.units.entry(reservation.key.to_string()).or_default().granted += granted;
            }
        }
    }

    fn leave(&mut self, choices: &mut Choices<'_>) {
        let who: Vec<u64> = self.waiting.keys().copied().collect();
        if !who.is_empty()
            && let Some(gone) = self.waiting.remove(&who[choices.below(who.len())])
        {
            self.worker.cancel(gone.ticket, self.now);
        }
    }

    /// The upstream answers an admitted request.
    fn answer(&mut self, choices: &mut Choices<'_>) {
        if self.admitted.is_empty() {
            return;
        }
        let mut admission = self.admitted.swap_remove(choices.below(self.admitted.len()));
        let head = |status| ResponseEvent::headers(status, None, None, true);
        let ending = *choices.of(&[ResponseEvent::Abandoned, head(200), head(401)]);
        let back = admission.count_response(ending, &self.config);
        let enforced =
            |policy| admission.standings.iter().any(|s| s.policy == policy && s.enforced());
        for held in back.iter().filter(|held| enforced(held.policy)) {
            self.units.entry(held.counter.key.to_string()).or_default().spent -= held.units.amount;
        }
        self.worker.refund(back, self.now);
    }

    fn settle(&mut self) {
        while let Some(call) = self.worker.next_call(self.now) {
            let request: ReserveRequest = serde_json::from_slice(&call.body()).unwrap();
            assert!(call.body().len() <= MAX_BODY);
            assert!(request.refunds.len() + request.reservations.len() <= MAX_ITEMS);
            for back in &request.refunds {
                back.check().unwrap();
                self.units.entry(back.key.to_string()).or_default().returned += back.units;
            }
            for reservation in &request.reservations {
                reservation.check().unwrap();
            }
            self.calls.push(Call { id: call.id, request });
        }
        if let Some(fetch) = self.worker.next_fetch(self.now) {
            if let Some((lost, since)) = self.fetch.replace((fetch.id, self.now)) {
                assert!(self.now.since(since) > fetch.timeout, "one at a time");
                self.past.push(lost);
            }
            let report = fetch.report.unwrap();
            assert!(
                report.len() <= MAX_REPORT && !report.contains(|c: char| !(' '..='~').contains(&c))
            );
            let _: Report = serde_json::from_str(&report).unwrap();
        }
        while let Some((who, decision)) = self.worker.next_decision() {
            // A request that only shadow policies count does not wait.
            if let Some(waited) = self.waiting.remove(&who) {
                self.decided(&waited.checks, decision);
            }
        }
        self.balance();
    }

    fn decided(&mut self, checks: &[Check], decision: Decision) {
        let Decision::Admit(admission) = decision else { return };
        if self.closed {
            assert_eq!(admission.uncounted, None);
            for check in checks.iter().filter(|check| check.enforced()) {
                let units = self.units.entry(check.counter.key.to_string()).or_default();
                units.spent += check.cost.get();
            }
        }
        if !admission.held.is_empty() && self.closed {
            self.admitted.push(admission);
        }
    }

    fn balance(&self) {
        for (key, units) in
            self.units.iter().filter(|(key, _)| self.closed && !key.starts_with("d:shadow:"))
        {
            assert!(units.spent <= units.granted, "admitted without a grant: {key} {units:?}");
            // With count_denied, refused units are counted and perhaps refunded, without a grant.
            let kept = units.spent + units.returned;
            assert!(
                kept <= units.granted || key.starts_with("d:denied:"),
                "refunded and kept: {key} {units:?}"
            );
        }
    }

    fn tick(&mut self) {
        self.worker.tick(self.now);
        for notice in self.worker.take_notices() {
            let line = notice.to_string();
            assert!(
                line.len() < 2_000 && !line.contains(char::is_control),
                "not one log line: {line:?}"
            );
        }
        self.settle();
        for waiting in self.waiting.values() {
            assert!(self.now.since(waiting.since) < TIMEOUT + TICK, "stuck");
        }
    }

    /// The store stops answering.
    fn end(&mut self) {
        for _ in 0..7 {
            self.now = self.now + TICK;
            self.tick();
        }
        assert!(self.waiting.is_empty(), "a request was never decided");
        for call in std::mem::take(&mut self.calls) {
            self.worker.call_not_sent(call.id, &CallFault::TimedOut, self.now);
        }
        self.settle();
        self.worker.take_tally();
    }
}

/// A reply in the right form, with numbers that may be wrong.
fn sensible(request: &ReserveRequest, choices: &mut Choices<'_>) -> Value {
    let grants = request.reservations.iter().map(|r| {
        let most = r.want + r.spare;
        let mut number = |plain: u64| match choices.byte() {
            200..=255 => *choices.of(&[
                0,
                1,
                plain / 2,
                plain.saturating_add(1),
                MAX_UNITS,
                MAX_UNITS + 1,
                u64::MAX,
            ]),
            _ => plain,
        };
        let granted = number(most.min(r.quota));
        let used = number(granted);
        match choices.byte() {
            240..=255 => json!({"error": "down"}),
            224..=239 => json!({"granted": granted}),
            _ => json!({
                "granted": granted,
                "used": used,
                "quota": *choices.of(&[r.quota, r.quota, 0, 1, MAX_UNITS, u64::MAX]),
                "reset_ms": *choices.of(&[1, 1000, 0, 10, u64::from(r.window_s) * 1000, u64::MAX]),
                "window": *choices.of(&[7, 0, MAX_UNITS, u64::MAX]),
            }),
        }
    });
    let mut grants: Vec<Value> = grants.collect();
    match choices.byte() {
        255 => drop(grants.pop()),
        254 => grants.push(json!({"error": ""})),
        _ => {}
    }
    json!({"dials": *choices.of(&[0, 1, u64::MAX]), "grants": grants})
}

/// Dials as the store may hold them, many of them malformed. If `closed`, no dial changes
/// `on_failure` from `deny`.
fn dials(closed: bool, choices: &mut Choices<'_>) -> Value {
    let count = choices.below(4);
    let dials: Vec<Value> = (0..count)
        .map(|_| {
            let policy =
                *choices.of(&["exact", "*", "leased", "failed", "denied", "shadow", "none", ""]);
            let mut dial = json!({"policy": policy});
            if choices.below(2) == 0 {
                let modes = [
                    json!("shadow"),
                    json!("off"),
                    json!("enforce"),
                    json!("OFF"),
                    json!(false),
                    json!(null),
                ];
                dial["mode"] = choices.of(&modes).clone();
            }
            if choices.below(2) == 0 {
                let quotas = [
                    json!(3),
                    json!(0),
                    json!(MAX_UNITS),
                    json!(u64::MAX),
                    json!(-1),
                    json!("5"),
                    json!(1.5),
                ];
                dial["quota"] = choices.of(&quotas).clone();
            }
            if choices.below(2) == 0 {
                let failures = [json!("deny"), json!(7), json!("allow"), json!("local")];
                let most = if closed { 2 } else { failures.len() };
                dial["on_failure"] = choices.of(&failures[..most]).clone();
            }
            if choices.below(2) == 0 {
                dial["for_ms"] = choices
                    .of(&[json!(100), json!(0), json!(u64::MAX), json!("1h"), json!(-5)])
                    .clone();
            }
            dial
        })
        .collect();
    let overridden =
        [json!(["exact", "denied"]), json!([]), json!(["none", 7]), json!(null), json!("exact")];
    json!({
        "version": *choices.of(&[1, 2, 0, 17, u64::MAX]),
        "dials": dials,
        "overridden": choices.of(&overridden).clone(),
    })
}

struct Plain {
    party: usize,
    method: &'static str,
    cost: &'static str,
}

impl Request for Plain {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        Some(self.method.as_bytes().into())
    }
    fn path(&self) -> Option<Cow<'_, [u8]>> {
        None
    }
    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        None
    }
    fn header(&self, name: &str) -> HeaderValues<'_> {
        match name {
            "x-cost" => HeaderValues::One(self.cost.as_bytes().into()),
            // The third caller has no identity.
            _ => ["a", "b"]
                .get(self.party)
                .map(|party| party.as_bytes().into())
                .into_iter()
                .collect(),
        }
    }
    fn metadata(&self, _: &str, _: &[Box<str>]) -> Option<Vec<u8>> {
        None
    }
    fn attribute(&self, _: &[&str]) -> Option<Vec<u8>> {
        None
    }
    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        None
    }
    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        None
    }
}
