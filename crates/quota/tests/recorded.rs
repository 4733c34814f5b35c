//! Messages that earlier versions sent. `fixtures/recorded` has one file for each version, which
//! `cargo xtask versions --record` wrote and nobody edits: a test that fails here means that this
//! version breaks with that one.

#![cfg(test)]

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::dials::{DialsReply, Report};
use quotagate_protocol::{Kind, ReserveReply, ReserveRequest};
use quotagate_quota::config::Config;
use quotagate_quota::decision::Decision;
use quotagate_quota::request::{HeaderValues, Request};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{AnsweredBy, CallEnd, Submitted, Worker};
use serde_json::Value;

const RECORDED: [&str; 1] = [include_str!("fixtures/recorded/e5bfeff.json")];

struct Exchange {
    is_reserve: bool,
    call: String,
    status: u16,
    reply: String,
}

/// The policy document of a record, and its exchanges.
fn read(text: &str) -> (String, Vec<Exchange>) {
    let record: Value = serde_json::from_str(text).unwrap();
    let exchange = |exchange: &Value| {
        let text = |field: &str| exchange[field].as_str().unwrap().to_owned();
        Exchange {
            is_reserve: text("path") == "/v1/reserve",
            call: text("call"),
            status: u16::try_from(exchange["status"].as_u64().unwrap()).unwrap(),
            reply: text("reply"),
        }
    };
    let exchanges = record["exchanges"].as_array().unwrap().iter().map(exchange).collect();
    (record["document"].to_string(), exchanges)
}

/// A request of the tenant of the record.
struct Recorded(String);

impl Request for Recorded {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        Some(b"GET".into())
    }
    fn path(&self) -> Option<Cow<'_, [u8]>> {
        Some(format!("/{}/x", self.0).into_bytes().into())
    }
    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        None
    }
    fn header(&self, name: &str) -> HeaderValues<'_> {
        if name == "x-tenant" { HeaderValues::One(b"t".into()) } else { HeaderValues::None }
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

#[test]
fn every_record_is_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/recorded");
    let files = std::fs::read_dir(folder).unwrap().count();
    let missing = "add each file to RECORDED, here and in crates/store/tests/store/recorded.rs";
    assert_eq!(files, RECORDED.len(), "{missing}");
}

#[test]
fn recorded_calls_and_reports_are_valid_for_this_version() {
    for text in RECORDED {
        let (mut kinds, mut refunds, mut charges, mut reports) = ([false; 3], 0, 0, 0);
        for exchange in read(text).1 {
            if !exchange.is_reserve {
                let report: Report = serde_json::from_str(&exchange.call).unwrap();
                assert_eq!(report.policies.len(), 10, "each policy is understood");
                reports += 1;
                continue;
            }
            let call: ReserveRequest = serde_json::from_str(&exchange.call).unwrap();
            (refunds, charges) = (refunds + call.refunds.len(), charges + call.charges.len());
            for adjustment in call.refunds.iter().chain(&call.charges) {
                adjustment.check().unwrap();
            }
            for reservation in &call.reservations {
                reservation.check().unwrap();
                kinds[match reservation.kind {
                    Kind::Fixed => 0,
                    Kind::Sliding => 1,
                    Kind::Calendar(_) => 2,
                    Kind::InFlight | Kind::Unknown => panic!("{}", exchange.call),
                }] = true;
            }
        }
        assert_eq!(kinds, [true; 3]);
        assert!(refunds > 0 && charges > 0 && reports > 0, "{refunds} {charges} {reports}");
    }
}

#[test]
fn this_filter_decides_by_recorded_replies() {
    for text in RECORDED {
        let (document, exchanges) = read(text);
        let (mut admitted, mut refused, mut unavailable) = (0, 0, 0);
        for exchange in exchanges.into_iter().filter(|exchange| exchange.is_reserve) {
            let recorded: ReserveRequest = serde_json::from_str(&exchange.call).unwrap();
            let [reservation] = &*recorded.reservations else { continue };
            let policy = reservation.key.split(':').nth(1).unwrap();
            // How much a lease prefetches depends on the requests before.
            if policy == "leased" {
                continue;
            }
            let mut worker = worker(&document);
            submit(&mut worker, policy);
            let call = worker.next_call(now()).unwrap();
            let sent: ReserveRequest = serde_json::from_slice(&call.body()).unwrap();
            assert_eq!(sent.reservations, recorded.reservations);
            worker.call_ended(call.id, &end(&exchange), now());
            let (_, decision) = worker.next_decision().unwrap();
            let reply = serde_json::from_str::<ReserveReply>(&exchange.reply).ok();
            match reply.map(|reply| reply.grants[0].clone()) {
                Some(Ok(grant)) if grant.granted >= reservation.want => {
                    assert!(matches!(decision, Decision::Admit(_)), "{}", exchange.reply);
                    admitted += 1;
                }
                Some(Ok(_)) => {
                    assert!(matches!(decision, Decision::Refuse(_)), "{}", exchange.reply);
                    refused += 1;
                }
                Some(Err(_)) | None => {
                    assert!(matches!(decision, Decision::Unavailable(_)), "{}", exchange.reply);
                    unavailable += 1;
                }
            }
        }
        assert!(admitted > 20 && refused > 2 && unavailable > 2, "{admitted} {refused}");
    }
}

#[test]
fn this_filter_takes_recorded_dials() {
    for text in RECORDED {
        let (document, exchanges) = read(text);
        let fetched = exchanges.iter().filter(|exchange| !exchange.is_reserve);
        let dialed = fetched.filter_map(|exchange| {
            let reply: DialsReply = serde_json::from_str(&exchange.reply).unwrap();
            (!reply.dials.is_empty()).then_some((exchange, reply))
        });
        let mut taken = 0;
        for (exchange, reply) in dialed {
            let mut worker = worker(&document);
            submit(&mut worker, "dialed");
            let fetch = worker.next_fetch(now()).unwrap();
            worker.call_ended(fetch.id, &end(exchange), now());
            for dial in reply.dials {
                let policies = &worker.config().policies;
                let policy = policies.iter().find(|policy| *policy.name == *dial.policy).unwrap();
                assert_eq!(policy.dialed_quota, dial.fields.quota);
                taken += 1;
            }
        }
        assert!(taken > 0);
    }
}

fn now() -> Monotonic {
    Monotonic::default() + Duration::from_secs(1000)
}

fn worker(document: &str) -> Worker<u8> {
    Worker::new(Arc::new(Config::parse(document.as_bytes()).unwrap()), 7)
}

fn submit(worker: &mut Worker<u8>, policy: &str) {
    let config = Arc::clone(worker.observe_traffic(now()));
    let checks = config.evaluate(&Recorded(policy.to_owned())).checks.unwrap();
    assert!(matches!(worker.submit(0, checks, now()), Submitted::Waiting(_)));
}

fn end(exchange: &Exchange) -> CallEnd {
    let body = exchange.reply.clone().into_bytes();
    let (status, size) = (exchange.status, body.len());
    CallEnd::Answered { status, by: AnsweredBy::Store, body, size }
}
