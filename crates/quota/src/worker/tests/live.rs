//! Published documents: when a worker asks for one, and what it does to requests under way.

use serde_json::{Value, json};

use super::*;
use crate::config::PublishedDocument;

/// A live worker with the policies `a` and `b`, quota 10,000 a minute each, whose leases hold
/// 100 ms of their traffic; `deny`.
fn live() -> TestWorker {
    let mut document = document(&["a", "b"]);
    document["live"] = true.into();
    document["store"] =
        json!({"cluster": "c", "timeout": "50ms", "on_failure": "deny", "token": "s3cret"});
    Worker::new(Arc::new(Config::parse(document.to_string().as_bytes()).unwrap()), 1)
}

/// A published document with these policies.
fn document(policies: &[&str]) -> Value {
    let lease = json!({"ahead": "100ms", "max": 1000});
    let policy = |name: &&str| json!({"name": name, "partition_by": [], "quota": 10_000, "window": "1m", "precision": "lease", "lease": lease});
    let policies: Vec<Value> = policies.iter().map(policy).collect();
    json!({"domain": "d", "policies": policies})
}

fn digest(document: &Value) -> String {
    PublishedDocument::check(document).unwrap().1.digest.to_string()
}

fn tells(version: u64, number: u64, digest: &str) -> Vec<u8> {
    let document = json!({"number": number, "digest": digest});
    json!({"version": version, "dials": [], "document": document}).to_string().into_bytes()
}

/// The worker fetches dials at `ms`, and the store names this document. Returns the fetch that
/// follows.
fn hears(worker: &mut TestWorker, number: u64, digest: &str, ms: u64) -> Option<OutgoingFetch> {
    worker.tick(at(ms));
    let dials = worker.next_fetch(at(ms)).expect("it asks without traffic");
    assert_eq!(dials.has_digest, None);
    worker.replied(dials.id, &tells(number, number, digest), at(ms));
    worker.next_fetch(at(ms))
}

/// The store sends this document.
fn comes(worker: &mut TestWorker, number: u64, document: &Value, ms: u64) {
    let fetch = hears(worker, number, &digest(document), ms).expect("it fetches the document");
    let reply = json!({"number": number, "digest": digest(document), "document": document});
    worker.replied(fetch.id, reply.to_string().as_bytes(), at(ms));
}

/// The adapter takes up what has come. Returns whether it is in force.
fn taken_up(worker: &mut TestWorker, ms: u64) -> bool {
    let document = Arc::clone(worker.document().expect("a document has come"));
    let config = document.config(worker.embedded().unwrap()).map_err(Vec::from);
    worker.take_up(&document, config, at(ms))
}

fn publishes(worker: &mut TestWorker, number: u64, policies: &[&str], ms: u64) {
    comes(worker, number, &document(policies), ms);
    assert!(taken_up(worker, ms));
}

/// The number, and the names of the policies.
fn in_force(worker: &TestWorker) -> String {
    let names = worker.config().policies.iter().map(|policy| &*policy.name);
    format!("{} {}", worker.config().number(), names.collect::<Vec<_>>().join(","))
}

fn lines(worker: &mut TestWorker) -> Vec<String> {
    worker.take_notices().iter().map(ToString::to_string).collect()
}

#[test]
fn published_document_replaces_policies_and_the_embedded_one_says_where_the_store_is() {
    let mut w = live();
    assert_eq!(in_force(&w), "0 a,b");
    let published = document(&["c", "b"]);
    let fetch = hears(&mut w, 1, &digest(&published), 0).unwrap();
    assert_eq!(
        fetch.path(),
        format!("/v1/document?domain=d&digest={}&number=1", w.config().digest)
    );
    assert!(w.next_fetch(at(1)).is_none(), "one at a time");
    let reply = json!({"number": 1, "digest": digest(&published), "document": published});
    w.replied(fetch.id, reply.to_string().as_bytes(), at(1));
    assert_eq!(in_force(&w), "0 a,b", "the adapter has not checked it");
    assert!(taken_up(&mut w, 2));
    assert_eq!(in_force(&w), "1 c,b");
    assert_eq!(w.config().store, live().config().store);
    assert_eq!(*w.config().digest, *digest(&published));
    let line = format!("the published document number 1 ({}) is in force", digest(&published));
    assert_eq!(lines(&mut w), [line]);
    assert!(hears(&mut w, 1, &digest(&published), 6_000).is_none(), "it has that one");
    let report = {
        w.tick(at(12_000));
        w.next_fetch(at(12_000)).unwrap().report.unwrap()
    };
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["number"], &report["digest"]), (&json!(1), &json!(digest(&published))));
    assert_eq!((&report["live"], &report["in_force_s"]), (&json!(true), &json!(11)));
}

#[test]
fn report_says_which_worker_it_is_and_since_when_its_document_has_its_number() {
    let mut w = live().with_index(3);
    let reported = |w: &mut TestWorker, number: u64, digest: &str, ms: u64| {
        w.tick(at(ms));
        let fetch = w.next_fetch(at(ms)).unwrap();
        w.replied(fetch.id, &tells(number, number, digest), at(ms));
        let report: Value = serde_json::from_str(&fetch.report.unwrap()).unwrap();
        assert_eq!(report["worker"], 3);
        (report["number"].as_u64().unwrap_or(0), report["in_force_s"].as_u64().unwrap_or(0))
    };
    let own = w.config().digest.to_string();
    assert_eq!(reported(&mut w, 0, "", 1_000), (0, 0));
    assert_eq!(reported(&mut w, 1, &own, 9_000), (0, 8), "since the first report");
    assert_eq!(reported(&mut w, 1, &own, 15_000), (1, 6), "the same content under a number");
    publishes(&mut w, 2, &["c"], 21_000);
    assert_eq!(reported(&mut w, 2, "", 30_000), (2, 9));
    w = w.successor(7);
    assert_eq!(reported(&mut w, 2, "", 36_000).0, 2, "of the same index");
}

#[test]
fn document_that_is_not_live_takes_nothing_up() {
    let mut w: TestWorker = Worker::new(config("deny"), 1);
    w.observe_traffic(at(0));
    let fetch = w.next_fetch(at(0)).unwrap();
    w.replied(fetch.id, &tells(1, 1, "0123456789ab"), at(0));
    w.tick(at(10_000));
    assert!(w.next_fetch(at(10_000)).is_none() && w.is_idle());
}

#[test]
fn document_stays_while_the_store_has_no_record_of_any() {
    let mut w = live();
    publishes(&mut w, 4, &["c"], 0);
    // A store that lost everything names number 0, and a version that is settled as one after 10 s.
    for ms in [6_000, 12_000, 18_000, 24_000] {
        w.tick(at(ms));
        let dials = w.next_fetch(at(ms)).unwrap();
        w.replied(dials.id, &tells(0, 0, ""), at(ms));
        assert!(w.next_fetch(at(ms)).is_none() && w.document().is_none());
        assert_eq!(in_force(&w), "4 c");
    }
    // Neither does a document that this filter had before give way, nor one that has just come.
    let inherited = {
        comes(&mut w, 5, &document(&["d"]), 30_000);
        Arc::clone(w.document().unwrap())
    };
    let mut next = live();
    next.inherit(inherited);
    assert!(hears(&mut next, 0, "", 0).is_none());
    assert!(taken_up(&mut next, 1));
    assert_eq!(in_force(&next), "5 d");
    // A withdrawal has a number.
    assert!(hears(&mut next, 6, "", 6_000).is_none());
    assert!(taken_up(&mut next, 6_000));
    assert_eq!(in_force(&next), "0 a,b");
}

#[test]
fn withdrawal_brings_the_embedded_document_back_and_the_same_content_only_its_number() {
    let mut w = live();
    publishes(&mut w, 1, &["c"], 0);
    let embedded = live().config().digest.to_string();
    assert!(hears(&mut w, 2, "", 6_000).is_none());
    assert!(taken_up(&mut w, 6_000));
    assert_eq!(in_force(&w), "0 a,b");
    let generation = w.config().generation();
    assert!(hears(&mut w, 3, &embedded, 12_000).is_none(), "the embedded one says the same");
    assert_eq!((in_force(&w).as_str(), w.config().generation()), ("3 a,b", generation));
    // A store that lost everything.
    assert!(hears(&mut w, 0, "", 30_000).is_none() && w.document().is_none());
    assert_eq!(in_force(&w), "3 a,b");
}

#[test]
fn document_with_faults_is_refused_as_a_whole_and_reported() {
    let mut w = live();
    publishes(&mut w, 1, &["a"], 0);
    lines(&mut w);
    let newer = json!({"domain": "d", "policies": [], "polices": {}});
    for (number, document, digest_of, fault) in [
        (2, &newer, "", "polices: unknown field: did you mean \"policies\"?"),
        (3, &json!([7]), "", "configuration: must be an object"),
        (4, &json!({"domain": "e", "policies": []}), "", "domain: must be d, as embedded"),
        (
            5,
            &json!({"domain": "d", "policies": [], "live": true}),
            "",
            "live: must be left out: the embedded document decides it",
        ),
        (6, &document(&["b"]), "0123456789ab", "configuration: has the digest"),
    ] {
        let ms = 10_000 * number;
        let digest = match digest_of {
            "" => PublishedDocument::digest_of(document),
            digest => digest.to_owned(),
        };
        let fetch = hears(&mut w, number, &digest, ms).unwrap();
        let reply = json!({"number": number, "digest": digest, "document": document});
        w.replied(fetch.id, reply.to_string().as_bytes(), at(ms));
        assert!(!taken_up(&mut w, ms), "{fault}");
        assert_eq!(in_force(&w), "1 a");
        let refused = w.config().refused.clone().unwrap();
        assert!(refused.fault.starts_with(fault) && refused.keeps_last_good, "{refused:?}");
        assert_eq!(refused.number, number);
        assert!(lines(&mut w)[0].contains(fault));
        assert!(hears(&mut w, number, &digest, ms + 5_000).is_none(), "it was refused");
    }
    publishes(&mut w, 7, &["b"], 80_000);
    assert_eq!((in_force(&w).as_str(), &w.config().refused), ("7 b", &None));
}

#[test]
fn store_that_cannot_send_the_document_is_asked_again() {
    let mut w = live();
    let published = document(&["c"]);
    let fetch = hears(&mut w, 1, &digest(&published), 0).unwrap();
    w.call_failed(fetch.id, at(10));
    assert!(w.next_fetch(at(500)).is_none());
    let again = w.next_fetch(at(1_000)).expect("a second later");
    w.replied(again.id, b"{\"number\": \"x\"}", at(1_001));
    assert_eq!(in_force(&w), "0 a,b");
    // A host that forgot the fetch.
    let lost = w.next_fetch(at(2_000)).unwrap();
    w.tick(at(9_000));
    assert!(w.next_fetch(at(9_000)).is_some());
    w.replied(lost.id, b"{}", at(9_000));
    assert_eq!(lines(&mut w).len(), 1, "one line in ten seconds");
}

/// A request of `party` for the policies at these indexes of the worker's configuration.
fn asks(worker: &mut TestWorker, who: &'static str, policies: &[usize], ms: u64) -> Submitted {
    let checks = checks_of(&Arc::clone(worker.config()), policies, "x", 1);
    worker.submit(who, checks, at(ms))
}

#[test]
fn request_that_waits_ends_by_the_document_under_which_it_arrived() {
    let mut w = live();
    assert!(matches!(asks(&mut w, "old", &[0, 1], 0), Submitted::Waiting(_)));
    let old = w.next_call(at(0)).unwrap();
    // Both policies go, and `c` comes at the index of `a`.
    publishes(&mut w, 1, &["c", "d", "b"], 10);
    assert!(matches!(asks(&mut w, "new", &[0], 11), Submitted::Waiting(_)));
    w.tick(at(50));
    let decided = decisions(&mut w);
    let [("old", Decision::Unavailable(Uncounted { policy: 0, key }))] = decided.as_slice() else {
        panic!("{decided:?}")
    };
    assert_eq!(&**key, "d:a:{x}", "on_failure of the old document");
    let new = w.next_call(at(50)).unwrap();
    let keys: Vec<_> = new.request.reservations.iter().map(|r| &*r.key).collect();
    assert_eq!(keys, ["d:c:{x}"]);
    answer(&mut w, new.id, &[grant(1, 1)], 51);
    assert_eq!(summary(&mut w), "new=+4");
    // What the old call brings is refunded: nobody spends it any more.
    answer(&mut w, old.id, &[grant(1, 1), grant(1, 1)], 52);
    let mut back = returned(&mut w, 60);
    back.sort();
    assert_eq!(back, [("d:a:{x}".to_owned(), 1), ("d:b:{x}".to_owned(), 1)]);
    // Requests of `a` are in no metric any more, and those of the others are under their own name.
    let tally = w.take_tally();
    let requests = |(counted, n): &(Counted, u64)| match counted {
        Counted::Requests(policy, outcome) => Some((*policy, *outcome, *n)),
        _ => None,
    };
    let requests: Vec<_> = tally.iter().filter_map(requests).collect();
    assert_eq!(requests, [(0, Outcome::Admitted, 1), (2, Outcome::StoreError, 1)]);
}

#[test]
fn requests_of_several_documents_are_counted_by_the_policies_that_are_left_of_each() {
    let mut w = live();
    let waits = |w: &mut TestWorker, who, policy| {
        assert!(matches!(asks(w, who, &[policy], 0), Submitted::Waiting(_)));
    };
    let swap = |w: &mut TestWorker, policies: &[usize]| {
        let mut config = (**w.config()).clone();
        config.policies = policies.iter().map(|i| config.policies[*i].clone()).collect();
        w.swap(config, at(0));
    };
    waits(&mut w, "a of a, b", 0);
    swap(&mut w, &[1, 0]);
    waits(&mut w, "a of b, a", 1);
    waits(&mut w, "b of b, a", 0);
    swap(&mut w, &[1]);
    waits(&mut w, "a of a", 0);
    w.tick(at(60));
    assert_eq!(decisions(&mut w).len(), 4);
    let all = w.take_tally();
    let requests = all.iter().filter(|(counted, _)| matches!(counted, Counted::Requests(..)));
    let requests: Vec<_> = requests.copied().collect();
    assert_eq!(requests, [(Counted::Requests(0, Outcome::StoreError), 3)]);
}

/// A demand for these policies for 200 ms, and calls that bring units ahead of it.
fn holds_leases(worker: &mut TestWorker, policies: &[usize]) {
    let brings = |r: &quotagate_protocol::Reservation| {
        let (granted, quota) = (r.want + r.spare, 10_000);
        Ok(Grant { granted, used: 100, quota, reset_ms: 30_000, window: 9, ..Grant::default() })
    };
    for ms in 0..200 {
        asks(worker, "r", policies, ms);
        if let Some(call) = worker.next_call(at(ms)) {
            let grants: Vec<Granted> = call.request.reservations.iter().map(brings).collect();
            answer(worker, call.id, &grants, ms);
        }
        decisions(worker);
    }
}

#[test]
fn leases_of_policies_that_stay_go_on_and_those_of_others_are_refunded() {
    let mut w = live();
    holds_leases(&mut w, &[0, 1]);
    let held = |w: &TestWorker, policy: &str| {
        let mut counter = checks_of(&live().config, &[0], "x", 1)[0].counter.clone();
        counter.key = format!("d:{policy}:{{x}}").into();
        w.leases.load(&counter).0
    };
    let (a, b) = (held(&w, "a"), held(&w, "b"));
    assert!(a > 0 && b > 0, "{a} {b}");
    publishes(&mut w, 1, &["c", "b"], 200);
    assert_eq!((held(&w, "a"), held(&w, "b")), (0, b));
    assert!(matches!(asks(&mut w, "r", &[1], 201), Submitted::Decided(Decision::Admit(_))));
    assert_eq!(returned(&mut w, 210), [("d:a:{x}".to_owned(), a)]);
}

#[test]
fn dials_stay_with_their_policies() {
    let mut w = live();
    w.tick(at(0));
    let fetch = w.next_fetch(at(0)).unwrap();
    let dials = json!([{"policy": "b", "quota": 7}, {"policy": "*", "mode": "shadow"}]);
    let reply = json!({"version": 1, "dials": dials, "overridden": ["b"]});
    w.replied(fetch.id, reply.to_string().as_bytes(), at(0));
    publishes(&mut w, 2, &["c", "a", "b"], 6_000);
    let dialed = |w: &TestWorker| -> Vec<(String, Option<u64>, Mode, bool)> {
        let of = |p: &crate::config::Policy| {
            (p.name.to_string(), p.dialed_quota, p.mode, p.is_overridden)
        };
        w.config().policies.iter().map(of).collect()
    };
    // The reply that named the document had no dials.
    assert!(dialed(&w).iter().all(|(_, quota, mode, _)| (*quota, *mode) == (None, Mode::Enforce)));
    let fetch = w.next_fetch(at(6_600)).expect("a new policy may have a dial: it asks at once");
    let reply = json!({"version": 3, "dials": dials, "overridden": ["b"]});
    w.replied(fetch.id, reply.to_string().as_bytes(), at(6_600));
    assert_eq!(
        dialed(&w),
        [
            ("c".to_owned(), None, Mode::Shadow, false),
            ("a".to_owned(), None, Mode::Shadow, false),
            ("b".to_owned(), Some(7), Mode::Shadow, true),
        ]
    );
    let published = document(&["b"]);
    let digest = digest(&published);
    // Without a reply with dials between.
    let document = json!({"number": 4, "digest": digest, "document": published});
    w.live.arrived_for_test(document.to_string().as_bytes());
    assert!(taken_up(&mut w, 7_000));
    assert_eq!(dialed(&w), [("b".to_owned(), Some(7), Mode::Shadow, true)]);
}

#[test]
fn worker_inherits_what_its_filter_took_up() {
    let mut w = live();
    publishes(&mut w, 7, &["c"], 0);
    let kept = {
        let published = document(&["c"]);
        json!({"number": 7, "digest": digest(&published), "document": published}).to_string()
    };
    let mut next = live();
    next.inherit(Arc::new(PublishedDocument::read(kept.as_bytes()).unwrap().unwrap()));
    assert!(taken_up(&mut next, 0));
    assert_eq!(in_force(&next), "7 c");
    // Until a store says otherwise, it has what is published.
    next.tick(at(0));
    let dials = next.next_fetch(at(0)).unwrap();
    next.call_not_sent(dials.id, &CallFault::TimedOut, at(0));
    assert!(next.next_fetch(at(0)).is_none_or(|fetch| fetch.has_digest.is_none()));
    assert!(hears(&mut next, 7, &digest(&document(&["c"])), 2_000).is_none());
}

#[test]
fn answer_of_a_store_that_lags_is_ignored_and_the_document_fetched_again() {
    let mut w = live();
    publishes(&mut w, 1, &["a"], 0);
    let newest = document(&["c"]);
    let fetch = hears(&mut w, 3, &digest(&newest), 6_000).unwrap();
    let old = document(&["b"]);
    let reply = json!({"number": 2, "digest": digest(&old), "document": old});
    w.replied(fetch.id, reply.to_string().as_bytes(), at(6_000));
    assert!(w.document().is_none(), "number 2 was replaced");
    let again = w.next_fetch(at(7_000)).expect("a second later");
    let reply = json!({"number": 3, "digest": digest(&newest), "document": newest});
    w.replied(again.id, reply.to_string().as_bytes(), at(7_000));
    assert!(taken_up(&mut w, 7_000));
    assert_eq!(in_force(&w), "3 c");
}

#[test]
fn document_that_is_withdrawn_while_it_is_checked_is_not_taken_up() {
    let mut w = live();
    comes(&mut w, 1, &document(&["c"]), 0);
    let unchecked = Arc::clone(w.document().unwrap());
    assert!(hears(&mut w, 2, "", 6_000).is_none());
    let config = unchecked.config(w.embedded().unwrap()).map_err(Vec::from);
    assert!(!w.take_up(&unchecked, config, at(6_000)));
    assert_eq!(in_force(&w), "0 a,b");
}

#[test]
fn store_that_names_no_document_is_asked_no_more_often_than_others() {
    let (seldom, often) = ((0..20_000).step_by(5_000), (0..20_000).step_by(1_000));
    for (status, times) in [(200, seldom.clone()), (404, seldom), (503, often)] {
        let mut w = live();
        let mut asked = Vec::new();
        for ms in (0..20_000).step_by(10) {
            w.tick(at(ms));
            if let Some(fetch) = w.next_fetch(at(ms)) {
                asked.push(ms);
                let body = br#"{"version": 0, "dials": []}"#.to_vec();
                let size = body.len();
                let end = CallEnd::Answered { status, by: AnsweredBy::Store, body, size };
                w.call_ended(fetch.id, &end, at(ms));
            }
        }
        assert_eq!(asked, times.collect::<Vec<u64>>(), "{status}");
    }
}

#[test]
fn order_of_members_changes_no_quota_as_it_changes_no_digest() {
    let of = |tiers: &str| {
        let text = format!(
            r#"{{"domain":"d","identities":{{"u":[{{"jwt":{{"claim":"sub"}}}}]}},"policies":[{{"name":"a","partition_by":["u"],
                "on_missing":"shared","quota":1,"window":"1m","tiers":{{"source":{{"jwt":{{"claim":"plan"}}}},"quotas":{tiers}}}}}]}}"#
        );
        let (_, config) = PublishedDocument::check(&serde_json::from_str(&text).unwrap()).unwrap();
        (config.digest.clone(), format!("{:?}", config.policies[0].quotas))
    };
    let (one, other) = (of(r#"{"free":100,"premium":9}"#), of(r#"{"premium":9,"free":100}"#));
    assert_eq!(one, other);
}

#[test]
fn embedded_document_that_is_live_has_no_order_as_published_ones_have_none() {
    let quotas = |live: bool| {
        let text = format!(
            r#"{{"domain":"d","store":{{"cluster":"c"}},"live":{live},"identities":{{"u":[{{"jwt":{{"claim":"sub"}}}}]}},
                "policies":[{{"name":"a","partition_by":["u"],"on_missing":"shared","quota":1,"window":"1m",
                "tiers":{{"source":{{"jwt":{{"claim":"roles"}}}},"quotas":{{"free":9,"premium":100}}}}}}]}}"#
        );
        format!("{:?}", Config::parse(text.as_bytes()).unwrap().policies[0].quotas)
    };
    let (live, ordered) = (quotas(true), quotas(false));
    // The position of a tier, and its quota.
    assert!(live.contains("(0, 100)"), "the largest quota that matches counts: {live}");
    assert!(ordered.contains("(0, 9)"), "the first one of the document counts: {ordered}");
}

/// A live worker with policies that hold units, count refused requests and only count, all failing
/// closed; and a document with as many others, which fail open.
fn replaced() -> (TestWorker, Config) {
    let config = |policies: &str, on_failure: &str| {
        let text = format!(
            r#"{{"domain":"d","live":true,"store":{{"cluster":"c","timeout":"50ms","on_failure":"{on_failure}"}},
                "policies":[{policies}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap()
    };
    let policy = |name: &str, more: &str| {
        format!(r#"{{"name":"{name}","partition_by":[],"quota":10,"window":"1m"{more}}}"#)
    };
    let old = [
        policy("holds", r#","count":{"status":[401],"abandoned":"refund"}"#),
        policy("denied", r#","count_denied":true"#),
        policy("shadow", r#","mode":"shadow""#),
    ];
    let new = ["q", "r", "s"].map(|name| policy(name, ""));
    let worker = Worker::new(Arc::new(config(&old.join(","), "deny")), 1);
    (worker, config(&new.join(","), "allow"))
}

#[test]
fn call_and_its_end_follow_the_document_under_which_the_request_arrived() {
    let (mut w, new) = replaced();
    assert!(matches!(asks(&mut w, "granted", &[0, 1], 0), Submitted::Waiting(_)));
    w.swap(new, at(0));
    let call = w.next_call(at(0)).unwrap();
    let counts_denied: Vec<_> =
        call.request.reservations.iter().map(|of| (&*of.key, of.count_denied)).collect();
    assert_eq!(counts_denied, [("d:holds:{x}", false), ("d:denied:{x}", true)]);
    answer(&mut w, call.id, &[grant(1, 1), grant(1, 1)], 1);
    let Some((_, Decision::Admit(admission))) = w.next_decision() else { panic!("refused") };
    assert_eq!(admission.held.len(), 1, "until its response comes");

    let (mut w, new) = replaced();
    asks(&mut w, "failed", &[1], 0);
    let call = w.next_call(at(0)).unwrap();
    w.swap(new, at(0));
    w.call_failed(call.id, at(1));
    assert!(matches!(w.next_decision(), Some((_, Decision::Unavailable(_)))), "on_failure");
}

#[test]
fn request_whose_body_is_read_during_a_swap_waits_under_its_own_document() {
    let (mut w, new) = replaced();
    let old = Arc::clone(w.config());
    w.swap(new, at(0));
    let waits = checks_of(&old, &[1], "x", 1);
    assert!(matches!(w.submit_under(Some(&old), "waits", waits, at(0)), Submitted::Waiting(_)));
    let counts = checks_of(&old, &[2], "x", 1);
    let counting = w.submit_under(Some(&old), "counts", counts, at(0));
    assert!(matches!(counting, Submitted::Counting(_)));
    w.tick(at(50));
    let decided = decisions(&mut w);
    assert!(decided.iter().any(|(_, decision)| matches!(decision, Decision::Unavailable(_))));
    let tally = w.take_tally();
    let is_request = |(counted, _): &(Counted, u64)| matches!(counted, Counted::Requests(..));
    assert!(!tally.iter().any(is_request), "of policies that are gone: {tally:?}");
}

#[test]
fn lease_of_a_policy_that_has_another_window_is_refunded() {
    let mut w = live();
    holds_leases(&mut w, &[0]);
    let mut config = (**w.config()).clone();
    config.policies[0].window = quotagate_protocol::Window::new(3_600, 0).unwrap();
    w.swap(config, at(200));
    let back = returned(&mut w, 210);
    assert!(
        matches!(back.as_slice(), [(key, units)] if key == "d:a:{x}" && *units > 0),
        "{back:?}"
    );
}

#[test]
fn counts_that_nobody_has_taken_before_a_swap_stay_with_the_name_of_their_policy() {
    let mut w = live();
    let is_decided = |w: &mut TestWorker, ms| {
        asks(w, "r", &[0], ms);
        w.tick(at(ms + 50));
        assert_eq!(decisions(w).len(), 1);
    };
    is_decided(&mut w, 0);
    w.take_tally();
    is_decided(&mut w, 60);
    let mut config = (**w.config()).clone();
    config.policies.reverse();
    w.swap(config, at(120));
    let all = w.take_tally();
    let requests: Vec<_> =
        all.iter().filter(|(counted, _)| matches!(counted, Counted::Requests(..))).collect();
    assert_eq!(requests, [&(Counted::Requests(1, Outcome::StoreError), 1)]);
    let reported = w.telemetry.tally.take_unreported();
    assert_eq!(reported.iter().map(|counts| counts.iter().sum()).collect::<Vec<u64>>(), [0, 2]);
}

#[test]
fn refund_of_a_policy_that_is_gone_is_known_when_it_comes_back() {
    let mut w = live();
    holds_leases(&mut w, &[0]);
    let whole = (**w.config()).clone();
    // Of these two, only the first one holds a lease.
    for party in ["x", "y"] {
        let counter = checks_of(&whole, &[0], party, 1).remove(0).counter;
        let spent = Balance { quota: 10_000, remaining: 0, resets: at(30_000), window_s: 60 };
        w.known.ledger.learn(&counter, 9, spent, true, at(200));
    }
    let mut without = whole.clone();
    without.policies.remove(0);
    w.swap(without, at(200));
    w.swap(whole.clone(), at(200));
    assert!(matches!(asks(&mut w, "r", &[0], 200), Submitted::Waiting(_)), "units are left");
    let without_lease = w.submit("r", checks_of(&whole, &[0], "y", 1), at(200));
    assert!(matches!(without_lease, Submitted::Decided(Decision::Refuse(_))), "none are");
}

#[test]
fn counts_of_a_report_that_is_lost_after_a_swap_are_reported_again_by_name() {
    let mut w = live();
    asks(&mut w, "r", &[0], 0);
    w.tick(at(50));
    decisions(&mut w);
    w.take_tally();
    w.tick(at(51));
    let fetch = w.next_fetch(at(51)).unwrap();
    assert!(fetch.report.unwrap().contains(r#""name":"a""#));
    let mut config = (**w.config()).clone();
    config.policies.reverse();
    w.swap(config, at(52));
    w.call_not_sent(fetch.id, &CallFault::TimedOut, at(60));
    let reported = w.telemetry.tally.take_unreported();
    assert_eq!(reported.iter().map(|counts| counts.iter().sum()).collect::<Vec<u64>>(), [0, 1]);
}

#[test]
fn store_that_sends_the_document_to_many_others_is_asked_again_a_second_later() {
    let mut w = live();
    let published = document(&["c"]);
    let fetch = hears(&mut w, 1, &digest(&published), 0).unwrap();
    let body = b"{\"error\": \"busy\"}".to_vec();
    let (by, size) = (AnsweredBy::Store, body.len());
    w.call_ended(fetch.id, &CallEnd::Answered { status: 503, by, body, size }, at(10));
    assert!(w.next_fetch(at(990)).is_none());
    let again = w.next_fetch(at(1_000)).unwrap();
    w.call_not_sent(again.id, &CallFault::Declined("busy".to_owned()), at(1_010));
    let again = w.next_fetch(at(2_000)).unwrap();
    let reply = json!({"number": 1, "digest": digest(&published), "document": published});
    w.replied(again.id, reply.to_string().as_bytes(), at(2_010));
    assert!(taken_up(&mut w, 2_010));
    // Neither the breaker nor the metrics of calls know of it.
    assert!(w.take_tally().is_empty());
    assert!(matches!(asks(&mut w, "r", &[0], 2_020), Submitted::Waiting(_)));
}
