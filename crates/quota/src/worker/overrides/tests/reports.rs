//! What a fetch reports.

use quotagate_protocol::OnFailure;
use quotagate_protocol::dials::{MAX_REPORT, Report};
use serde_json::json;

use super::*;
use crate::config::WrongDocument;
use crate::worker::Counted;

#[test]
fn fetch_names_the_domain_and_reports_counts() {
    let mut w = worker();
    w.count(0, crate::decision::Outcome::MissingIdentity);
    w.take_tally();
    w.observe_traffic(at(0));
    let fetch = w.next_fetch(at(0)).unwrap();
    assert_eq!(fetch.path(), "/v1/telemetry?domain=shop.d");
    let text = fetch.report.unwrap();
    assert!(text.len() <= MAX_REPORT && !text.contains("s3cret"));
    let report: Report = serde_json::from_str(&text).unwrap();
    let sent: Vec<_> =
        report.policies.iter().map(|p| (&*p.name, p.mode, p.missing_identity)).collect();
    assert_eq!(sent, [("a", Mode::Enforce, 1), ("s", Mode::Shadow, 0), ("o", Mode::Off, 0)]);
    assert!(report.policies.iter().all(|p| p.quota == 5 && p.on_failure == OnFailure::Deny));
}

#[test]
fn refused_document_is_reported_and_counted_with_each_report() {
    let wrong = |store: &str| {
        let text = format!(r#"{{"domain":"shop.d","store":{{{store}}},"policies":7}}"#);
        let faults = ["policies: must be a list, is a number".to_owned()];
        let config = WrongDocument::read(text.as_bytes()).instead(&faults, |_| None).unwrap();
        Worker::<()>::new(Arc::new(config), 1)
    };
    let refusals = |w: &mut Worker<()>| -> u64 {
        let taken = w.take_tally().into_iter();
        taken.filter(|(counted, _)| *counted == Counted::RefusedDocument).map(|(_, n)| n).sum()
    };
    let mut w = wrong(r#""cluster":"c""#);
    assert_eq!(refusals(&mut w), 1);
    w.observe_traffic(at(0));
    assert!(!w.is_idle(), "no call of this worker would bring a host to fetch");
    let fetch = w.next_fetch(at(0)).unwrap();
    let report: Report = serde_json::from_str(&fetch.report.unwrap()).unwrap();
    let refused = report.wrong_document.unwrap();
    assert_eq!(refused.fault, "policies: must be a list, is a number");
    assert_eq!((refused.faults, refused.keeps_last_good), (1, false));
    assert_eq!(refusals(&mut w), 1);
    let mut w = wrong("");
    for second in 0..30 {
        w.observe_traffic(at(second * 1000));
        w.tick(at(second * 1000));
        assert!(w.next_fetch(at(second * 1000)).is_none(), "it knows no store");
    }
    assert_eq!(refusals(&mut w), 1 + 6, "every 5 s");
    assert!(w.is_idle() && w.take_notices().is_empty());
}

#[test]
fn report_shows_the_configuration_without_dials() {
    let mut w = worker();
    fetched(
        &mut w,
        0,
        &reply(1, json!([{"policy": "*", "mode": "off"}, {"policy": "a", "quota": 8}])),
    );
    w.observe_traffic(at(5_000));
    let report: Report =
        serde_json::from_str(&w.next_fetch(at(5_000)).unwrap().report.unwrap()).unwrap();
    assert_eq!((report.policies[0].mode, report.policies[0].quota), (Mode::Enforce, 5));
}

/// The number of requests without an identity that the fetch reports for policy `a`. `None` if no
/// fetch leaves now.
fn reported(w: &mut Worker<()>, ms: u64) -> Option<(CallId, u64)> {
    let fetch = w.next_fetch(at(ms))?;
    let report: Report = serde_json::from_str(&fetch.report.unwrap()).unwrap();
    Some((fetch.id, report.policies[0].missing_identity))
}

/// A request without an identity arrives and is counted, and metrics take the count.
fn counted(w: &mut Worker<()>, ms: u64) {
    w.observe_traffic(at(ms));
    w.count(0, crate::decision::Outcome::MissingIdentity);
    w.take_tally();
}

#[test]
fn last_traffic_is_reported_without_further_traffic_and_then_no_fetch_leaves() {
    for answer in [ok(br#"{"version":0,"dials":[]}"#), CallEnd::Reset] {
        let mut w = worker();
        let mut left = Vec::new();
        for ms in 0..60_000 {
            if ms < 7_000 && ms % 1_000 == 0 {
                counted(&mut w, ms);
            }
            w.tick(at(ms));
            w.take_notices();
            w.take_tally();
            if let Some((id, requests)) = reported(&mut w, ms) {
                left.push((ms, requests));
                w.call_ended(id, &answer, at(ms));
            }
        }
        let expected = match answer {
            CallEnd::Reset => [(0, 1), (5_000, 6), (10_000, 7)],
            _ => [(0, 1), (5_000, 5), (10_000, 1)],
        };
        assert_eq!(left, expected, "lost counts are reported again, but not without end");
        w.take_tally();
        assert!(w.is_idle());
    }
}

#[test]
fn worker_needs_ticks_while_counts_are_unreported_but_not_for_an_uncounted_request() {
    let mut w = worker();
    fetched(&mut w, 0, &reply(0, json!([])));
    w.observe_traffic(at(100));
    assert!(w.is_idle(), "no policy counted it");
    counted(&mut w, 200);
    assert!(!w.is_idle());
    w.tick(at(5_000));
    let (id, requests) = reported(&mut w, 5_000).expect("it is due");
    assert_eq!(requests, 1);
    w.call_ended(id, &ok(br#"{"version":0,"dials":[]}"#), at(5_001));
    assert!(w.is_idle());
}

#[test]
fn counts_of_a_lost_or_unsent_report_are_reported_again() {
    let mut w = worker();
    counted(&mut w, 0);
    let (_, requests) = reported(&mut w, 0).unwrap();
    assert_eq!(requests, 1);
    w.tick(at(2_000));
    counted(&mut w, 5_000);
    let (id, requests) = reported(&mut w, 5_000).unwrap();
    assert_eq!(requests, 2);
    w.call_not_sent(id, &CallFault::NoHost, at(5_000));
    counted(&mut w, 10_000);
    let (id, requests) = reported(&mut w, 10_000).unwrap();
    assert_eq!(requests, 3);
    w.call_ended(id, &ok(br#"{"version":0,"dials":[]}"#), at(10_000));
    counted(&mut w, 15_000);
    assert_eq!(reported(&mut w, 15_000).unwrap().1, 1);
}
