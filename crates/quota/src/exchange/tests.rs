//! A request settles its cost once, whatever happens to its stream.

use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::Mode;

use super::*;
use crate::evaluate::Counter;
use crate::request::facts::IdentityId;
use crate::request::findings::IdentityFindings;
use crate::worker::Counted;

/// For the exhaustive search, in which no bodies are read.
impl Clone for Exchange {
    fn clone(&self) -> Self {
        assert!(self.progress.is_none());
        let phase = match &self.phase {
            Phase::Uncounted => Phase::Uncounted,
            Phase::Reading(_) => unreachable!("a body is read"),
            Phase::Waiting(ticket, earlier) => Phase::Waiting(*ticket, earlier.clone()),
            Phase::Unreached(held) => Phase::Unreached(held.clone()),
            Phase::Decided(decision) => Phase::Decided(decision.clone()),
        };
        let arrived_under = self.arrived_under.clone();
        let Self { has_response, is_counting, .. } = *self;
        Self { phase, arrived_under, has_response, is_counting, progress: None }
    }
}

const POLICIES: &str = r#"
    {"name": "tokens", "partition_by": [], "quota": 100, "window": "1m", "cost": {
        "reserve": {"request_json": ["max_completion_tokens", "max_tokens"], "default": 20, "max": 40},
        "settle": [{"response_trailer": "x-cost"}, {"usage": "total"}, {"response_header": "x-cost"}]}},
    {"name": "plain", "partition_by": [], "quota": 100, "window": "1m"}"#;

fn at(ms: u64) -> Monotonic {
    Monotonic::new(Duration::from_millis(ms))
}

fn worker(count: &str) -> Worker<()> {
    worker_missing(count, r#""reserved""#)
}

/// The same, with this cost of a response that does not say it.
fn worker_missing(count: &str, if_missing: &str) -> Worker<()> {
    let policies = POLICIES.replacen("\"cost\"", &format!("{count} \"cost\""), 1).replacen(
        "\"settle\"",
        &format!("\"if_missing\": {if_missing}, \"settle\""),
        1,
    );
    let document =
        format!(r#"{{"domain": "d", "store": {{"cluster": "c"}}, "policies": [{policies}]}}"#);
    Worker::new(Arc::new(Config::parse(document.as_bytes()).unwrap()), 1)
}

/// Checks of the policies at these indexes.
fn evaluation(worker: &Worker<()>, policies: &[usize]) -> Evaluation {
    let check = |&policy: &usize| {
        let config = &worker.config().policies[policy];
        let (key, window) = (format!("d:{}:{{*}}", config.name).into(), config.window.clone());
        let cost = std::num::NonZeroU64::new([20, 1][policy]).unwrap();
        Check { policy, counter: Counter { key, quota: 100, window }, cost, mode: Mode::Enforce }
    };
    let checks = Ok(policies.iter().map(check).collect());
    Evaluation { checks, missing: vec![], findings: IdentityFindings::default() }
}

/// The next call is granted as a whole. Returns the units that it reserves.
fn granted(worker: &mut Worker<()>, exchange: &mut Exchange) -> Vec<u64> {
    let wants = answered(worker);
    let ((), decision) = worker.next_decision().unwrap();
    assert!(exchange.decided(decision, StreamState::Open, worker, at(0)));
    wants
}

/// The store grants the next call as a whole. Returns the units that it reserves.
fn answered(worker: &mut Worker<()>) -> Vec<u64> {
    let call = worker.next_call(at(0)).expect("a call is due");
    let wants: Vec<u64> = call.request.reservations.iter().map(|r| r.want).collect();
    let grant = |want: &u64| {
        format!(
            r#"{{"granted": {want}, "used": {want}, "quota": 100, "reset_ms": 9000, "window": 7}}"#
        )
    };
    let grants: Vec<_> = wants.iter().map(grant).collect();
    worker.replied(call.id, format!(r#"{{"grants": [{}]}}"#, grants.join(",")).as_bytes(), at(0));
    wants
}

/// A request that reserves 20 units of `tokens` is admitted.
fn admitted(worker: &mut Worker<()>) -> Exchange {
    let mut exchange = waiting(worker);
    assert_eq!(granted(worker, &mut exchange), [20]);
    exchange
}

/// A request that reserves 20 units of `tokens` waits.
fn waiting(worker: &mut Worker<()>) -> Exchange {
    let mut exchange = Exchange::default();
    let evaluation = evaluation(worker, &[0]);
    assert_eq!(exchange.arrive((), evaluation, None, worker, at(0)), Arrival::Reading);
    let arrival = exchange.request_body((), b"{}", true, worker, at(0));
    assert_eq!(arrival, Some(Arrival::Waiting));
    exchange
}

/// The units that the worker refunds (negative) or charges.
fn adjusted(worker: &mut Worker<()>) -> Vec<i64> {
    worker.tick(at(20));
    let Some(call) = worker.next_call(at(20)) else { return vec![] };
    let units = |units: u64| i64::try_from(units).unwrap();
    let refunds = call.request.refunds.iter().map(|refund| -units(refund.units));
    refunds.chain(call.request.charges.iter().map(|charge| units(charge.units))).collect()
}

struct FakeResponse(
    &'static [(&'static str, &'static str)],
    &'static [(&'static str, &'static str)],
);

impl Upstream for FakeResponse {
    fn status(&self) -> Option<u16> {
        Some(200)
    }

    fn header(&self, name: &str) -> Vec<Vec<u8>> {
        let named = self.0.iter().filter(|(known, _)| *known == name);
        named.map(|(_, value)| value.as_bytes().to_vec()).collect()
    }

    fn trailer(&self, name: &str) -> Vec<Vec<u8>> {
        let named = self.1.iter().filter(|(known, _)| *known == name);
        named.map(|(_, value)| value.as_bytes().to_vec()).collect()
    }
}

const JSON: FakeResponse =
    FakeResponse(&[("content-type", "application/json")], &[("x-cost", "3")]);
const EVENTS: FakeResponse = FakeResponse(&[("content-type", "text/event-stream")], &[]);
const COST: FakeResponse = FakeResponse(&[("x-cost", "25")], &[]);
const USAGE: &[u8] = br#"{"usage": {"total_tokens": 5}}"#;

/// What happens to the stream of an admitted request.
#[derive(Clone, Copy)]
enum StreamEvent {
    Headers(&'static FakeResponse, bool),
    Body(&'static [u8]),
    Ends,
    Trailers(&'static FakeResponse),
    Gone,
}

fn happen(exchange: &mut Exchange, event: StreamEvent, worker: &mut Worker<()>) {
    let now = at(1);
    match event {
        StreamEvent::Headers(response, whole) => {
            exchange.response_begins();
            let event = ResponseEvent::headers(200, None, None, whole);
            exchange.count_response(|_| Some(event), worker, now);
            exchange.response_headers(response, whole, worker, now);
        }
        StreamEvent::Body(chunk) => {
            assert!(exchange.reads_body());
            exchange.body(chunk);
        }
        StreamEvent::Ends => exchange.response_ends(&(), worker, now),
        StreamEvent::Trailers(response) => {
            exchange.count_response(|_| Some(ResponseEvent::trailers(None)), worker, now);
            exchange.response_trailers(response, worker, now);
        }
        StreamEvent::Gone => exchange.end(&(), worker, now),
    }
}

#[test]
fn every_end_settles_once() {
    use StreamEvent::{Body, Ends, Gone, Headers, Trailers};
    let ends: [(&str, &[StreamEvent], &[i64]); 10] = [
        ("headers are the response", &[Headers(&COST, true), Gone], &[5]),
        ("body", &[Headers(&JSON, false), Body(USAGE), Ends, Gone], &[-15]),
        (
            "body in two chunks",
            &[
                Headers(&JSON, false),
                Body(USAGE.split_at(9).0),
                Body(USAGE.split_at(9).1),
                Ends,
                Gone,
            ],
            &[-15],
        ),
        ("trailers", &[Headers(&JSON, false), Body(USAGE), Trailers(&JSON), Gone], &[-17]),
        (
            "the end is reported twice",
            &[Headers(&JSON, false), Body(USAGE), Ends, Trailers(&JSON), Gone, Gone],
            &[-15],
        ),
        ("nothing says the cost", &[Headers(&JSON, false), Body(b"{}"), Ends, Gone], &[]),
        ("client gone before the response", &[Gone], &[]),
        (
            "client gone within the body",
            &[Headers(&JSON, false), Body(br#"{"usage": {"total_tokens": 5}, "#), Gone],
            &[],
        ),
        ("a header is known when the body breaks off", &[Headers(&COST, false), Gone], &[5]),
        (
            "Envoy replaces the response",
            &[Headers(&JSON, false), Body(USAGE), Headers(&COST, true), Gone],
            &[5],
        ),
    ];
    for (name, events, expected) in ends {
        let mut worker = worker("");
        let mut exchange = admitted(&mut worker);
        for event in events {
            happen(&mut exchange, *event, &mut worker);
        }
        assert!(exchange.is_settled() || !exchange.has_response, "{name}");
        assert_eq!(adjusted(&mut worker), expected, "{name}");
        exchange.end(&(), &mut worker, at(30));
        assert_eq!(adjusted(&mut worker), [0_i64; 0], "{name}: once");
    }
}

#[test]
fn costs_that_no_response_says_are_counted() {
    use StreamEvent::{Body, Ends, Gone, Headers};
    let events: [(&[StreamEvent], u64); 4] = [
        (&[Headers(&JSON, false), Body(USAGE), Ends, Gone], 0),
        (&[Headers(&JSON, false), Body(b"{}"), Ends, Gone], 1),
        (&[Headers(&JSON, false), Body(br#"{"usage": {"total_tokens": 5}, "#), Gone], 1),
        (&[Gone], 1),
    ];
    for (events, expected) in events {
        let mut worker = worker("");
        let mut exchange = admitted(&mut worker);
        for event in events {
            happen(&mut exchange, *event, &mut worker);
        }
        let tally = worker.take_tally();
        let settled = Counted::Requests(0, Outcome::SettledIfMissing);
        let counted = tally.iter().find(|(counted, _)| *counted == settled);
        assert_eq!(counted.map_or(0, |(_, requests)| *requests), expected);
    }
}

/// What a stream reports when its client leaves after `last`: 20 units are reserved.
fn left_after(last: &'static [u8]) -> Vec<i64> {
    let trailer = r#"{"response_trailer": "x-cost"}, "#;
    let document = format!(
        r#"{{"domain": "d", "store": {{"cluster": "c"}}, "policies": [{}]}}"#,
        POLICIES.replacen(trailer, "", 1)
    );
    let mut worker = Worker::new(Arc::new(Config::parse(document.as_bytes()).unwrap()), 1);
    let mut exchange = admitted(&mut worker);
    for event in [StreamEvent::Headers(&EVENTS, false), StreamEvent::Body(last), StreamEvent::Gone]
    {
        happen(&mut exchange, event, &mut worker);
    }
    adjusted(&mut worker)
}

#[test]
fn usage_of_the_event_that_ends_a_stream_counts_although_the_client_leaves() {
    let nothing: [i64; 0] = [];
    let text = b"data: {\"choices\":[{}],\"usage\":{\"total_tokens\":5}}\n\n";
    assert_eq!(left_after(text), nothing, "more may have come");
    for last in [
        &b"data: {\"choices\":[{}]}\n\ndata: {\"choices\":[],\"usage\":{\"total_tokens\":5}}\n\n"[..],
        b"data: {\"choices\":[{}],\"usage\":{\"total_tokens\":5}}\n\ndata: [DONE]\n\n",
    ] {
        assert_eq!(left_after(last), [-15]);
    }
    assert_eq!(left_after(b"data: [DONE]\n\n"), nothing, "it did not say");
}

#[test]
fn answer_that_does_not_count_refunds_all_and_settles_nothing() {
    for (count, expected) in
        [(r#""count": {"status": [200]},"#, -15), (r#""count": {"status": [500]},"#, -20)]
    {
        let mut worker = worker(count);
        let mut exchange = admitted(&mut worker);
        for event in [
            StreamEvent::Headers(&JSON, false),
            StreamEvent::Body(USAGE),
            StreamEvent::Ends,
            StreamEvent::Gone,
        ] {
            // Nobody needs the body of a response that does not count.
            if !matches!(event, StreamEvent::Body(_)) || exchange.reads_body() {
                happen(&mut exchange, event, &mut worker);
            }
        }
        assert_eq!(adjusted(&mut worker), [expected], "{count}");
    }
}

#[test]
fn invariant_3_request_that_is_admitted_after_its_stream_is_gone_gets_its_units_back() {
    // Whatever the policy says of requests that are abandoned at the upstream.
    for count in ["", r#""count": {"status": [200]},"#] {
        let mut worker = worker(count);
        let mut exchange = waiting(&mut worker);
        answered(&mut worker);
        let ((), decision) = worker.next_decision().unwrap();
        let is_held = exchange.decided(decision, StreamState::Gone, &mut worker, at(0));
        assert!(!is_held && exchange.decision().is_none(), "nothing is to be resumed or shown");
        exchange.end(&(), &mut worker, at(1));
        assert_eq!(adjusted(&mut worker), [-20], "{count}");
    }
}

#[test]
fn redirected_request_is_counted_by_a_policy_that_matches_only_now() {
    let mut worker = worker("");
    let earlier = admitted(&mut worker).redirected(|| true).unwrap();
    let mut second = Exchange::default();
    let evaluation = evaluation(&worker, &[0, 1]);
    let arrival = second.arrive((), evaluation, Some(earlier), &mut worker, at(1));
    assert_eq!(arrival, Arrival::Waiting, "it waits for the other policy");
    assert_eq!(granted(&mut worker, &mut second), [1]);
    let standings = second.admission().unwrap().standings.iter();
    let shown: Vec<_> = standings.map(|of| (of.policy, of.balance.remaining)).collect();
    assert_eq!(shown, [(0, 80), (1, 99)]);
}

#[test]
fn redirected_request_settles_by_its_last_response() {
    let mut worker = worker("");
    let mut first = admitted(&mut worker);
    let earlier = first.redirected(|| true).unwrap();
    first.end(&(), &mut worker, at(1));
    let mut second = Exchange::default();
    let evaluation = evaluation(&worker, &[0]);
    let arrival = second.arrive((), evaluation, Some(earlier), &mut worker, at(1));
    assert_eq!(arrival, Arrival::Decided, "it counts once, and its body is not read again");
    for event in [StreamEvent::Headers(&COST, true), StreamEvent::Gone] {
        happen(&mut second, event, &mut worker);
    }
    assert_eq!(adjusted(&mut worker), [5]);
}

/// What happens to the second pass of a redirected request.
#[derive(Clone, Copy, Debug)]
enum SecondPass {
    /// Another policy refuses it.
    Refused,
    MissingIdentity,
    /// Its client leaves while it waits for a call.
    Left,
    /// Nobody knows of it.
    Lost,
}

/// `meanwhile` happens while it waits for a call.
fn second_pass(
    worker: &mut Worker<()>,
    earlier: Admission,
    how: SecondPass,
    meanwhile: fn(&mut Worker<()>),
) {
    let mut exchange = Exchange::default();
    let now = at(1);
    match how {
        SecondPass::Lost => abandon(Some(earlier), worker, now),
        SecondPass::MissingIdentity => {
            let missing = MissingIdentity { policy: 1 };
            let evaluation = Evaluation {
                checks: Err(missing),
                missing: vec![1],
                findings: IdentityFindings::default(),
            };
            let arrival = exchange.arrive((), evaluation, Some(earlier), worker, now);
            assert_eq!(arrival, Arrival::MissingIdentity(missing));
        }
        SecondPass::Refused | SecondPass::Left => {
            let evaluation = evaluation(worker, &[0, 1]);
            let arrival = exchange.arrive((), evaluation, Some(earlier), worker, now);
            assert_eq!(arrival, Arrival::Waiting);
            meanwhile(worker);
            let call = worker.next_call(now).expect("a call of the other policy");
            assert_eq!(call.request.reservations.len(), 1);
            if matches!(how, SecondPass::Left) {
                exchange.end(&(), worker, now);
            }
            let spent =
                r#"{"granted": 0, "used": 100, "quota": 100, "reset_ms": 9000, "window": 7}"#;
            worker.replied(call.id, format!(r#"{{"grants": [{spent}]}}"#).as_bytes(), now);
            if let Some(((), decision)) = worker.next_decision() {
                assert!(exchange.decided(decision, StreamState::Open, worker, now));
                assert!(matches!(exchange.decision(), Some(Decision::Refuse(_))));
            }
        }
    }
    exchange.end(&(), worker, now);
}

#[test]
fn redirected_request_costs_what_its_policy_says_although_its_second_pass_does_not_count() {
    use SecondPass::{Left, Lost, MissingIdentity, Refused};
    // 20 units are reserved.
    for (count, if_missing, expected) in [
        ("", r#""reserved""#, vec![]),
        ("", "5", vec![-15]),
        ("", r#""nothing""#, vec![-20]),
        (r#""count": {"status": [200]},"#, r#""reserved""#, vec![]),
        (r#""count": {"status": [200]},"#, "30", vec![10]),
        (r#""count": {"status": [200], "abandoned": "refund"},"#, r#""reserved""#, vec![-20]),
    ] {
        for how in [Refused, MissingIdentity, Left, Lost] {
            let mut worker = worker_missing(count, if_missing);
            let mut first = admitted(&mut worker);
            let earlier = first.redirected(|| true).unwrap();
            first.end(&(), &mut worker, at(1));
            second_pass(&mut worker, earlier, how, |_| ());
            assert_eq!(adjusted(&mut worker), expected, "{how:?} {count} {if_missing}");
        }
    }
}

#[test]
fn admission_from_before_a_redirect_stands_for_the_same_counter_cost_and_window_only() {
    type CheckEdit = fn(&mut Check);
    let changes: [(&str, CheckEdit, u64, &[u64]); 4] = [
        ("the same", |_| {}, 1, &[]),
        ("another party", |check| check.counter.key = "d:plain:{ip=2}".into(), 1, &[1]),
        ("another cost", |check| check.cost = std::num::NonZeroU64::new(100).unwrap(), 1, &[100]),
        ("another window", |_| {}, 9_000, &[1]),
    ];
    for (name, change, ms, expected) in changes {
        let mut worker = worker("");
        let mut first = Exchange::default();
        let evaluated = evaluation(&worker, &[1]);
        assert_eq!(first.arrive((), evaluated, None, &mut worker, at(0)), Arrival::Waiting);
        assert_eq!(granted(&mut worker, &mut first), [1]);
        let earlier = first.redirected(|| true).unwrap();
        let mut evaluated = evaluation(&worker, &[1]);
        evaluated.checks.as_mut().unwrap().iter_mut().for_each(change);
        let mut second = Exchange::default();
        second.arrive((), evaluated, Some(earlier), &mut worker, at(ms));
        let call = worker.next_call(at(ms));
        let wants: Vec<u64> = call
            .iter()
            .flat_map(|call| call.request.reservations.iter().map(|reservation| reservation.want))
            .collect();
        assert_eq!(wants, expected, "{name}");
        assert_eq!(second.is_waiting(), !expected.is_empty(), "{name}");
    }
}

#[test]
fn pass_that_another_one_replaces_is_settled_as_abandoned() {
    let mut worker = worker_missing("", "5");
    let mut first = admitted(&mut worker);
    let earlier = first.redirected(|| true).unwrap();
    let mut evaluated = evaluation(&worker, &[0]);
    evaluated.checks.as_mut().unwrap()[0].counter.key = "d:tokens:{ip=2}".into();
    let mut second = Exchange::default();
    let arrival = second.arrive((), evaluated, Some(earlier), &mut worker, at(1));
    assert_eq!(arrival, Arrival::Reading, "it counts on its own");
    assert_eq!(adjusted(&mut worker), [-15]);
}

#[test]
fn request_without_such_a_policy_reads_no_bodies() {
    let mut worker = worker("");
    let mut exchange = Exchange::default();
    let evaluation = evaluation(&worker, &[1]);
    let arrival = exchange.arrive((), evaluation, None, &mut worker, at(0));
    assert_eq!(arrival, Arrival::Waiting);
    granted(&mut worker, &mut exchange);
    happen(&mut exchange, StreamEvent::Headers(&JSON, false), &mut worker);
    assert!(!exchange.reads_body() && exchange.progress.is_none() && exchange.is_settled());
}

/// The units that a request with this body reserves, if it comes in chunks of `size` bytes.
fn reserved(body: &[u8], size: usize, late: bool) -> u64 {
    let mut worker = worker("");
    let mut exchange = Exchange::default();
    let evaluation = evaluation(&worker, &[0, 1]);
    assert_eq!(exchange.arrive((), evaluation, None, &mut worker, at(0)), Arrival::Reading);
    assert!(exchange.is_reading() && exchange.is_waiting() && exchange.decision().is_none());
    assert!(worker.next_call(at(0)).is_none(), "the body comes first");
    let mut arrival = None;
    for chunk in body.chunks(size) {
        arrival = arrival.or(exchange.request_body((), chunk, false, &mut worker, at(0)));
    }
    let end = if late {
        exchange.request_body_late((), &mut worker, at(0))
    } else {
        exchange.request_body((), b"", true, &mut worker, at(0))
    };
    assert!(arrival.is_none() || end.is_none(), "decided once");
    assert_eq!(arrival.or(end), Some(Arrival::Waiting));
    let wants = granted(&mut worker, &mut exchange);
    assert_eq!(wants[1], 1);
    wants[0]
}

#[test]
fn request_that_ends_while_its_body_is_read_asks_the_store_for_nothing() {
    let mut worker = worker("");
    let mut exchange = Exchange::default();
    let evaluation = evaluation(&worker, &[0]);
    assert_eq!(exchange.arrive((), evaluation, None, &mut worker, at(0)), Arrival::Reading);
    exchange.end(&(), &mut worker, at(0));
    assert!(exchange.request_body_late((), &mut worker, at(1)).is_none(), "its timer was due");
    assert!(exchange.request_body((), b"", true, &mut worker, at(1)).is_none());
    assert!(worker.next_call(at(1)).is_none());
}

#[test]
fn body_of_a_request_says_what_to_reserve() {
    for (body, expected) in [
        (r#"{"model": "m", "max_tokens": 7}"#, 7),
        (r#"{"max_tokens": 41}"#, 40),
        (r#"{"max_tokens": 0}"#, 20),
        (r#"{"max_tokens": "7"}"#, 20),
        (r#"{"max_tokens": 7, "max_tokens": 9}"#, 9),
        (r#"{"max_tokens": 7, "MAX_TOKENS": 30}"#, 30),
        (r#"{"max_tokens": 1, "max_completion_tokens": 30}"#, 30),
        (r#"{"max_tokens": 7, "max_completion_tokens": null}"#, 20),
        (r#"{"max_tokens": 30, "max_completion_tokens": "x"}"#, 30),
        (r#"{"nested": {"max_tokens": 7}}"#, 20),
        ("", 20),
        ("garbage", 20),
    ] {
        for size in [1, 5, 100] {
            assert_eq!(reserved(body.as_bytes(), size, false), expected, "{body} by {size}");
        }
    }
}

#[test]
fn part_of_a_body_reserves_at_least_the_default() {
    let long = |number: u64| {
        format!(r#"{{"max_tokens": {number}, "prompt": "{}"}}"#, "a".repeat(MAX_REQUEST_BODY))
    };
    for (number, expected) in [(7, 20), (30, 30), (99, 40)] {
        for size in [1000, MAX_REQUEST_BODY, 100_000] {
            assert_eq!(reserved(long(number).as_bytes(), size, false), expected, "by {size}");
        }
        let late = format!(r#"{{"max_tokens": {number}, "#);
        assert_eq!(reserved(late.as_bytes(), 100, true), expected, "late");
    }
    // What is read ends within this number.
    let cut = format!(r#"{{"max_tokens": {}30}}"#, " ".repeat(MAX_REQUEST_BODY - 16));
    for size in [1, 100_000] {
        assert_eq!(reserved(cut.as_bytes(), size, false), 20, "by {size}");
    }
}

#[test]
fn client_that_leaves_while_its_body_is_read_costs_nothing() {
    let mut worker = worker("");
    let mut exchange = Exchange::default();
    let evaluation = evaluation(&worker, &[0]);
    exchange.arrive((), evaluation, None, &mut worker, at(0));
    exchange.end(&(), &mut worker, at(1));
    assert!(worker.next_call(at(1)).is_none() && worker.is_idle());
    exchange.body(USAGE);
    exchange.response_ends(&(), &mut worker, at(2));
    assert!(worker.is_idle());
}

#[test]
fn identity_without_a_token_in_its_first_thousand_requests_is_logged_once() {
    let document = r#"{"domain": "d", "store": {"cluster": "c"},
        "identities": {"user": [{"jwt": {"claim": "sub"}}, {"client_ip": {}}]},
        "policies": [{"name": "p", "partition_by": ["user"], "quota": 1, "window": "1m"}]}"#;
    let config = Arc::new(Config::parse(document.as_bytes()).unwrap());
    // The request of this number, from 1, has a token.
    let lines = |number: Option<u32>| {
        let mut worker = Worker::new(Arc::clone(&config), 1);
        let mut lines = Vec::new();
        for request in 1..=3_000 {
            let findings = IdentityFindings::default().with_token(1, Some(request) == number);
            let evaluation = Evaluation { checks: Ok(vec![]), missing: vec![], findings };
            Exchange::default().arrive((), evaluation, None, &mut worker, at(0));
            lines.extend(worker.take_notices().iter().map(|line| format!("{request} {line}")));
        }
        lines
    };
    let [line] = &lines(None)[..] else { panic!("one line: {:?}", lines(None)) };
    assert!(
        line.starts_with("1000 none of the first 1000 requests had a verified token"),
        "{line}"
    );
    assert!(line.contains(" identity user: ") && line.contains("payload_in_metadata"), "{line}");
    assert_eq!(lines(Some(1_000)), Vec::<String>::new());
    assert_eq!(lines(Some(1_001)).len(), 1);
}

#[test]
fn identity_whose_number_is_rounded_is_logged_once() {
    let document = r#"{"domain": "d", "store": {"cluster": "c"},
        "identities": {"user": [{"metadata": {"filter": "f", "path": ["id"], "type": "number"}}]},
        "policies": [{"name": "p", "partition_by": ["user"], "quota": 1, "window": "1m"}]}"#;
    let mut worker = Worker::new(Arc::new(Config::parse(document.as_bytes()).unwrap()), 1);
    let mut lines = Vec::new();
    for _ in 0..100 {
        let findings =
            IdentityFindings { rounded: Some(IdentityId(0)), ..IdentityFindings::default() };
        let evaluation = Evaluation { checks: Ok(vec![]), missing: vec![0], findings };
        Exchange::default().arrive((), evaluation, None, &mut worker, at(0));
        lines.extend(worker.take_notices().iter().map(ToString::to_string));
    }
    let [line] = &lines[..] else { panic!("one line: {lines:?}") };
    assert!(line.starts_with("the identity user read a number above 2^53 - 1"), "{line}");
}

/// The same worker, whose document another one may replace.
fn live_worker() -> Worker<()> {
    live_worker_with("")
}

fn live_worker_with(count: &str) -> Worker<()> {
    let mut config = (**worker(count).config()).clone();
    config.live = Some(crate::config::LiveDocument::default());
    Worker::new(Arc::new(config), 1)
}

#[test]
fn long_stream_keeps_the_configuration_under_which_it_arrived_only_while_it_needs_it() {
    let mut w = live_worker();
    let swap = |w: &mut Worker<()>| w.swap((**w.config()).clone(), at(0));
    // The embedded one stays.
    swap(&mut w);
    let config = Arc::downgrade(w.config());
    let uncounted = {
        let (mut exchange, evaluation) = (Exchange::default(), evaluation(&w, &[]));
        assert_eq!(exchange.arrive((), evaluation, None, &mut w, at(0)), Arrival::Uncounted);
        exchange
    };
    let plain = {
        let (mut exchange, evaluation) = (Exchange::default(), evaluation(&w, &[1]));
        assert_eq!(exchange.arrive((), evaluation, None, &mut w, at(0)), Arrival::Waiting);
        granted(&mut w, &mut exchange);
        exchange
    };
    let mut settles = admitted(&mut w);
    swap(&mut w);
    w.tick(at(0));
    let is_kept = || config.strong_count() > 0;
    let mut plain = plain;
    assert!(!plain.release_config(), "no response has come");
    plain.response_begins();
    assert!(plain.release_config() && is_kept(), "the other one has a cost to settle");
    settles.response_begins();
    settles.response_headers(&JSON, false, &mut w, at(0));
    assert!(!settles.release_config() && is_kept());
    settles.body(USAGE);
    settles.response_ends(&JSON, &mut w, at(0));
    assert!(settles.release_config());
    assert!(!is_kept(), "nobody holds the configuration that was replaced");
    drop((uncounted, plain, settles));
}

#[test]
fn response_that_shadow_policies_still_count_keeps_its_configuration() {
    for is_answered in [true, false] {
        let mut w = live_worker();
        let mut evaluation = evaluation(&w, &[1]);
        evaluation.checks.as_mut().unwrap()[0].mode = Mode::Shadow;
        let mut exchange = Exchange::default();
        assert_eq!(exchange.arrive((), evaluation, None, &mut w, at(0)), Arrival::Counting);
        exchange.response_begins();
        assert!(!exchange.release_config());
        if is_answered {
            answered(&mut w);
        } else {
            let call = w.next_call(at(0)).unwrap();
            w.call_failed(call.id, at(0));
        }
        let ((), decision) = w.next_decision().unwrap();
        exchange.decided(decision, StreamState::Open, &mut w, at(0));
        assert!(exchange.release_config(), "nothing more will be said");
    }
}

/// A request of `plain` is admitted and redirected.
fn redirected(worker: &mut Worker<()>) -> Admission {
    let (mut exchange, evaluation) = (Exchange::default(), evaluation(worker, &[1]));
    assert_eq!(exchange.arrive((), evaluation, None, worker, at(0)), Arrival::Waiting);
    granted(worker, &mut exchange);
    exchange.redirected(|| true).unwrap()
}

#[test]
fn redirected_request_counts_once_under_one_document_and_twice_under_two() {
    let again = |w: &mut Worker<()>, earlier| {
        let (mut exchange, evaluation) = (Exchange::default(), evaluation(w, &[1]));
        exchange.arrive((), evaluation, Some(earlier), w, at(0))
    };
    let mut w = live_worker();
    let swap = |w: &mut Worker<()>| w.swap((**w.config()).clone(), at(0));
    swap(&mut w);
    let earlier = redirected(&mut w);
    assert_eq!(again(&mut w, earlier), Arrival::Decided);
    let earlier = redirected(&mut w);
    swap(&mut w);
    assert_eq!(again(&mut w, earlier), Arrival::Waiting);
}

#[test]
fn abandoned_pass_is_settled_by_the_document_under_which_it_counted_or_not_at_all() {
    use SecondPass::{Left, Lost, MissingIdentity, Refused};
    // In another document, the policies have each other's index.
    let reverse = |w: &mut Worker<()>| {
        let mut config = (**w.config()).clone();
        config.policies.reverse();
        w.swap(config, at(1));
    };
    for (how, is_swapped_between, expected) in [
        (Left, false, vec![-20]),
        (Refused, false, vec![-20]),
        (Lost, true, vec![]),
        (MissingIdentity, true, vec![]),
    ] {
        let mut w = live_worker_with(r#""count": {"status": [200], "abandoned": "refund"},"#);
        let earlier = admitted(&mut w).redirected(|| true).unwrap();
        if is_swapped_between {
            w.swap((**w.config()).clone(), at(0));
        }
        second_pass(&mut w, earlier, how, reverse);
        assert_eq!(adjusted(&mut w), expected, "{how:?}");
    }
}

#[test]
fn identities_of_another_document_are_watched_anew() {
    let mut w = live_worker();
    let lines_of = |w: &mut Worker<()>, requests: u32| {
        for _ in 0..requests {
            w.saw_findings(IdentityFindings::default().with_token(1, false));
        }
        w.take_notices().len()
    };
    let document = r#"{"domain": "d", "store": {"cluster": "c"}, "live": true,
        "identities": {"user": [{"jwt": {"claim": "sub"}}]},
        "policies": [{"name": "p", "partition_by": ["user"], "quota": 1, "window": "1m"}]}"#;
    let config = Config::parse(document.as_bytes()).unwrap();
    let swap = |w: &mut Worker<()>| {
        w.swap(config.clone(), at(0));
        w.take_notices();
    };
    swap(&mut w);
    assert_eq!(lines_of(&mut w, 999), 0);
    swap(&mut w);
    assert_eq!(lines_of(&mut w, 999), 0, "those of the other one do not count");
    assert_eq!(lines_of(&mut w, 1), 1);
    swap(&mut w);
    assert_eq!(lines_of(&mut w, 1_000), 1, "a line for each document");
}
