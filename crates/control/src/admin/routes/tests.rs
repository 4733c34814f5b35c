//! Every path with every role and in every domain. A path that is added needs a case here.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use axum::body::Body as RequestBody;
use http_body_util::BodyExt;
use quotagate_protocol::Reservation;
use quotagate_store::server::{Hooks, Tokens, digest_of};
use quotagate_store::store::{Batch, CheckedReservation};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

use super::*;
use crate::admin::guard::{Guard, Reach};

const OWN: &str = "shop";
const OTHER: &str = "other-domain";

/// A request for each method of each path, and the role that it needs.
fn cases() -> Vec<(OperatorRole, Method, &'static str, Option<Value>)> {
    use OperatorRole::{Admin, Operate, Publish, View};
    let allow =
        || json!({"policy": "p", "partition": "jwt.sub=new", "allow": "blocked", "by": "x"});
    let party = || json!({"policy": "p", "partition": "jwt.sub=new", "by": "x"});
    vec![
        (View, Method::GET, "/v1/boards", None),
        (Operate, Method::PUT, "/v1/dials", Some(json!({"policy": "p", "quota": 7, "by": "x"}))),
        (Operate, Method::DELETE, "/v1/dials", Some(json!({"policy": "p", "by": "x"}))),
        (View, Method::GET, "/v1/overrides", None),
        (Operate, Method::PUT, "/v1/overrides", Some(allow())),
        (Operate, Method::DELETE, "/v1/overrides", Some(party())),
        (View, Method::GET, "/v1/history", None),
        (View, Method::GET, "/v1/usage?partition=jwt.sub%3Dmallory", None),
        (View, Method::GET, "/v1/parties?policy=p", None),
        (Operate, Method::POST, "/v1/reset", Some(party())),
        (Operate, Method::POST, "/v1/release", Some(party())),
        (View, Method::GET, "/v1/top", None),
        (View, Method::GET, "/v1/requests?policy=p", None),
        (View, Method::GET, "/v1/domains", None),
        (Admin, Method::DELETE, "/v1/domains", Some(json!({"by": "x"}))),
        (View, Method::GET, "/v1/events", None),
        (View, Method::GET, "/v1/documents", None),
        (View, Method::GET, "/v1/documents/text", None),
        (
            Publish,
            Method::POST,
            "/v1/documents",
            Some(json!({"document": document(OWN, "p", 9), "by": "x"})),
        ),
        (Publish, Method::DELETE, "/v1/documents", Some(json!({"by": "x"}))),
    ]
}

/// A document with one policy.
fn document(domain: &str, policy: &str, quota: u64) -> Value {
    let policy = json!({"name": policy, "partition_by": [], "quota": quota, "window": "1h"});
    json!({"domain": domain, "policies": [policy]})
}

/// A store with two domains. Both have a policy, a dial, an override and refusals, and all names in
/// the other one are its own.
async fn two_domains() -> (Router, AbortOnDropHandle<()>) {
    let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
    let control = Arc::new(Control::new(store, Arc::default(), None));
    for (domain, policy, party) in [(OWN, "p", "alice"), (OTHER, "hidden-policy", "mallory")] {
        let report = json!({
            "policies": [{"name": policy, "quota": 5, "window_s": 3600, "stagger": false, "mode": "enforce",
                "on_failure": "allow", "admitted": 3, "missing_identity": 2}],
            "refused": [{"key": format!("{domain}:{policy}:{{jwt.sub={party}}}"), "requests": 7}],
            "wrong_document": {"fault": format!("{policy} is wrong"), "faults": 1},
        });
        control.dials(domain, report.to_string().as_bytes()).await.unwrap();
        let dial = json!({"domain": domain, "policy": policy, "quota": 9, "by": party});
        control.operate.dials.set(&serde_json::from_value(dial).unwrap()).await.unwrap();
        let partition = format!("jwt.sub={party}");
        let over = json!({"domain": domain, "policy": policy, "partition": partition, "allow": "blocked", "by": party});
        control.operate.overrides.set(&serde_json::from_value(over).unwrap()).await.unwrap();
        let document =
            json!({"domain": domain, "document": document(domain, policy, 5), "by": party});
        let document = serde_json::from_value(document).unwrap();
        control.operate.documents.publish(&document).await.unwrap();
        // A counter of a policy with the same name in both domains.
        let ask = Reservation {
            key: format!("{domain}:p:{{jwt.sub={party}-2}}").into(),
            window_s: 3600,
            quota: 5,
            want: 1,
            min: 1,
            ..Reservation::default()
        };
        let reservations = vec![CheckedReservation::new(ask).unwrap()];
        let deadline = Instant::now() + Duration::from_secs(60);
        let batch = Batch { deadline, refunds: vec![], charges: vec![], reservations };
        control.store.reserve(&batch).await.remove(0).unwrap();
    }
    let mut lines = String::new();
    for (role, name) in OperatorRole::ALL {
        for domains in ["*", OWN, OTHER, "shop,absent"] {
            let token = format!("{role}-{domains}");
            let digest = digest_of(token.as_bytes());
            let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            lines += &format!("{name}-{} {role} {domains} {digest}\n", domains.len());
        }
    }
    let tokens = Tokens::new(lines.as_bytes());
    assert!(tokens.is_some(), "{lines}");
    let guard = Guard { tokens, ..Guard::default() };
    let router = crate::admin::router(Arc::clone(&control), guard, Reach::Machine);
    let publish = tokio::spawn(async move { events::publish(&control).await });
    (router, AbortOnDropHandle::new(publish))
}

/// Sends a request, and returns the status and the text of the answer: the first event of a stream.
async fn ask(
    router: &Router,
    (_, method, path, body): &(OperatorRole, Method, &str, Option<Value>),
    domain: Option<&str>,
    token: &str,
) -> (u16, String) {
    let mut path = (*path).to_owned();
    let mut body = body.clone();
    if let Some(domain) = domain {
        match &mut body {
            Some(body) => body["domain"] = domain.into(),
            None => {
                path += &format!("{}domain={domain}", if path.contains('?') { '&' } else { '?' })
            }
        }
    }
    let request = Request::builder().method(method).uri(&path).header("host", "localhost");
    let request = request.header("content-type", "application/json");
    let request = request.header("authorization", format!("Bearer {token}"));
    let body = body.map_or_else(RequestBody::empty, |body| body.to_string().into());
    let response = router.clone().oneshot(request.body(body).unwrap()).await.unwrap();
    let status = response.status();
    let is_stream = status == 200 && path.starts_with(api::EVENTS);
    let mut body = response.into_body();
    let bytes = if is_stream {
        body.frame().await.unwrap().unwrap().into_data().unwrap()
    } else {
        body.collect().await.unwrap().to_bytes()
    };
    (status.as_u16(), String::from_utf8(bytes.to_vec()).unwrap())
}

#[test]
fn every_path_has_a_role_and_a_case() {
    let routes: BTreeSet<_> = routes()
        .into_iter()
        .map(|Route { role, method, path, .. }| (path, method.to_string(), role))
        .collect();
    let cases: BTreeSet<_> = cases()
        .into_iter()
        .map(|(role, method, path, _)| (path.split('?').next().unwrap(), method.to_string(), role))
        .collect();
    assert_eq!(routes, cases);
}

#[tokio::test]
async fn every_path_needs_its_role_in_the_domain() {
    let (router, _publish) = two_domains().await;
    for case in cases() {
        for (role, _) in OperatorRole::ALL {
            for domains in ["*", OWN, OTHER, "shop,absent"] {
                let token = format!("{role}-{domains}");
                let scope: DomainScope = domains.parse().unwrap();
                for domain in [OWN, OTHER] {
                    // The list of domains has no parameter, and is filtered.
                    let is_list =
                        case.1 == Method::GET && [api::DOMAINS, api::EVENTS].contains(&case.2);
                    let domain = Some(domain).filter(|_| !is_list);
                    let (status, text) = ask(&router, &case, domain, &token).await;
                    let may = role >= case.0 && domain.is_none_or(|domain| scope.has(domain));
                    assert!(status != 401 && status != 500, "{case:?} {token} {text}");
                    assert_eq!(status != 403, may, "{case:?} {domain:?} {token}: {status} {text}");
                }
            }
        }
        let (status, text) = ask(&router, &case, Some(OWN), "wrong").await;
        assert_eq!(status, 401, "{case:?} {text}");
    }
}

#[tokio::test]
async fn no_path_shows_another_domain() {
    let (router, _publish) = two_domains().await;
    for domains in [OWN, "shop,absent"] {
        for case in cases() {
            let token = format!("admin-{domains}");
            for domain in [None, Some(OWN), Some("absent"), Some(OTHER)] {
                let (status, text) = ask(&router, &case, domain, &token).await;
                assert_ne!(status, 500, "{case:?} {text}");
                let is_echo = domain == Some(OTHER);
                for hidden in ["hidden-policy", "mallory", OTHER] {
                    let shows = text.contains(hidden) && !(is_echo && hidden == OTHER);
                    assert!(!shows, "{case:?} {domain:?} {token}: {text}");
                }
            }
        }
    }
    let parties = cases().into_iter().find(|case| case.2.starts_with(api::PARTIES)).unwrap();
    let (status, text) = ask(&router, &parties, Some(OWN), "view-shop").await;
    assert!(status == 200 && text.contains("jwt.sub=alice-2"), "{status} {text}");
    // What they hide is there. Parties and requests are asked for by the policy of the own domain.
    let is_list = |(_, method, path, _): &(OperatorRole, Method, &'static str, Option<Value>)| {
        let is_of_policy = [api::PARTIES, api::REQUESTS].iter().any(|of| path.starts_with(of));
        *method == Method::GET && !is_of_policy
    };
    for case in cases().into_iter().filter(is_list) {
        let is_of_one = [api::HISTORY, api::DOCUMENTS, api::DOCUMENT_TEXT].contains(&case.2);
        let domain = is_of_one.then_some(OTHER);
        let (status, text) = ask(&router, &case, domain, "view-*").await;
        assert_eq!(status, 200, "{case:?} {text}");
        assert!(text.contains("hidden-policy") || text.contains(OTHER), "{case:?} {text}");
    }
}

#[tokio::test]
async fn token_of_one_domain_need_not_name_it() {
    let (router, _publish) = two_domains().await;
    for case in cases() {
        let (status, text) = ask(&router, &case, None, "admin-shop").await;
        let expected = match (&case.1, case.2) {
            // Only here the domain is what is removed.
            (&Method::DELETE, api::DOMAINS) => 409,
            (_, api::RESET) => 404,
            // The policy has no slots.
            (_, api::RELEASE) => 400,
            (_, path) if path.starts_with(api::USAGE) => 404,
            _ => 200,
        };
        assert_eq!(status, expected, "{case:?} {text}");
    }
    let case = &cases()[1];
    let (status, text) = ask(&router, case, None, "admin-*").await;
    assert!(status == 400 && text.contains("several domains"), "{status} {text}");
}

#[tokio::test]
async fn change_that_is_no_object_cannot_hide_its_domain() {
    let (router, _publish) = two_domains().await;
    let list = json!([OTHER, "hidden-policy", "x"]);
    let case = (OperatorRole::Operate, Method::DELETE, api::DIALS, Some(list));
    let (status, text) = ask(&router, &case, None, "admin-shop").await;
    assert!(status == 400 && text.contains("must be a JSON object"), "{status} {text}");
    for domain in [json!(7), json!([OTHER])] {
        let body = json!({"policy": "hidden-policy", "by": "x", "domain": domain});
        let case = (OperatorRole::Operate, Method::DELETE, api::DIALS, Some(body));
        assert_eq!(ask(&router, &case, None, "admin-shop").await.0, 400);
    }
}

#[tokio::test]
async fn misspelt_policy_is_looked_for_in_all_domains() {
    let (router, _publish) = two_domains().await;
    let asked = (OperatorRole::View, Method::GET, "/v1/top?policy=hidden-polcy", None);
    let (status, text) = ask(&router, &asked, None, "admin-*").await;
    assert!(status == 404 && text.contains("hidden-policy") && text.contains("\"p\""), "{text}");
    let (status, text) = ask(&router, &asked, None, "admin-shop").await;
    assert!(status == 404 && !text.contains("hidden-policy"), "{text}");
}

#[tokio::test]
async fn request_beyond_the_permits_of_its_operator_gets_429_with_the_reason() {
    use axum::http::Request;

    let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
    let control = Arc::new(Control::new(store, Arc::default(), None));
    let router = crate::admin::router(Arc::clone(&control), Guard::default(), Reach::Machine);
    let ask = async |path: &str| {
        let request = Request::get(path).header("host", "localhost").body(RequestBody::empty());
        let answer = router.clone().oneshot(request.unwrap()).await.unwrap();
        let (status, retry) = (answer.status(), answer.headers().get("retry-after").cloned());
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status.as_u16(), retry.is_some(), String::from_utf8(body.to_vec()).unwrap())
    };
    // All operators without a token are one.
    let access = Access::new(&Request::get("/").body(()).unwrap());
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(control.permits.acquire(api::USAGE, &access).await.unwrap());
    }
    let (usage, parties) = ("/v1/usage?partition=jwt.sub%3Da", "/v1/parties?policy=p");
    for (status, retry, text) in [ask(usage).await, ask(parties).await] {
        assert_eq!((status, retry), (429, true), "{text}");
        assert!(text.contains("as many searches as it allows"), "{text}");
    }
    assert_eq!(ask("/v1/boards").await.0, 200, "other requests have permits of their own");
    drop(held);
    assert_ne!(ask(usage).await.0, 429);
}
