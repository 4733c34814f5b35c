//! Named tokens: what history and the audit log say of them, and when a stream ends.

use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use quotagate_control::{App, AuditLog};
use quotagate_store::server::{Tokens, digest_of};
use serde_json::{Value, json};

use crate::common::{open, until};
use crate::http::{host, read, send};
use crate::served::{REPORT, Served};

/// A line for a token that is its name.
fn line(name: &str, role: &str, domains: &str) -> String {
    let digest: String =
        digest_of(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{name} {role} {domains} {digest}\n")
}

async fn ask(
    server: &Served,
    method: Method,
    path: &str,
    token: &str,
    body: Option<Value>,
) -> Response<Incoming> {
    let request = Request::builder().method(method).uri(path).header("host", host(&server.admin));
    let request = request.header("content-type", "application/json");
    let request = request.header("authorization", format!("Bearer {token}"));
    let body = Bytes::from(body.map(|body| body.to_string()).unwrap_or_default());
    send(&server.admin, request.body(Full::new(body)).unwrap()).await
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn stream_ends_when_its_token_goes_or_changes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    let all = [line("ann", "view", "*"), line("bob", "view", "test"), line("eve", "view", "*")];
    fs::write(&path, all.concat()).unwrap();
    let tokens = Tokens::from_file(&path).unwrap();
    let app = App::new(open("memory:").await, None).admin_tokens(Some(tokens.clone()));
    let server = Served::app(app).await;
    server.dials("test", Some(REPORT)).await;
    let listen = async |token: &str| {
        let mut events = ask(&server, Method::GET, "/v1/events", token, None).await;
        assert_eq!(events.status(), 200, "{token}");
        assert!(events.frame().await.unwrap().is_ok(), "{token}");
        events
    };
    let [ann, bob, mut eve] = [listen("ann").await, listen("bob").await, listen("eve").await];
    // A file that is wrong ends nothing. Ann's token then goes, and Bob's gets another domain.
    fs::write(&path, "two words\n").unwrap();
    tokens.read_again();
    assert!(eve.frame().await.unwrap().is_ok());
    fs::write(&path, [line("bob", "view", "other"), line("eve", "view", "*")].concat()).unwrap();
    tokens.read_again();
    for mut stream in [ann, bob] {
        let ended = async { while stream.frame().await.is_some_and(|frame| frame.is_ok()) {} };
        tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap();
    }
    for _ in 0..3 {
        assert!(eve.frame().await.unwrap().is_ok());
    }
    assert_eq!(ask(&server, Method::GET, "/v1/events", "ann", None).await.status(), 401);
}

#[tokio::test]
async fn listener_of_one_domain_sees_its_slots_although_those_of_another_are_fuller() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    fs::write(&path, line("bob", "view", "quiet")).unwrap();
    let tokens = Tokens::from_file(&path).unwrap();
    let app = App::new(open("memory:").await, None).admin_tokens(Some(tokens));
    let server = Served::app(app).await;
    let say = async |key: String, quota: u64| {
        let holding = json!({"worker": "w", "serial": 1, "held": 0, "waiting": 1});
        let ask = json!({"key": key, "kind": "in_flight", "quota": quota, "want": 1, "min": 1,
            "holding": holding});
        let call = json!({"budget_ms": 5000, "reservations": [ask]}).to_string();
        let request = Request::post("/v1/reserve").header("host", "store");
        let request = request.body(Full::new(call.into())).unwrap();
        assert_eq!(read(send(&server.calls, request).await).await.0, 200);
    };
    for number in 0..120 {
        say(format!("busy:p:{{jwt.sub={number}}}"), 1).await;
    }
    say("quiet:p:{*}".to_owned(), 4).await;
    let mut events = ask(&server, Method::GET, "/v1/events", "bob", None).await;
    let first = events.frame().await.unwrap().unwrap().into_data().unwrap();
    let text = String::from_utf8(first.to_vec()).unwrap();
    let picture = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let picture: Value = serde_json::from_str(picture).unwrap();
    let rows = picture["fullest"].as_object().unwrap();
    assert_eq!(rows.keys().collect::<Vec<_>>(), ["quiet p *"]);
    assert!(rows["quiet p *"]["longest_begun_ms"].is_u64(), "{rows:?}");
}

#[tokio::test]
async fn token_of_a_domain_publishes_before_a_proxy_reports_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tokens");
    let lines = [line("pia", "publish", "new,other"), line("uma", "admin", "new")];
    fs::write(&path, lines.concat()).unwrap();
    let tokens = Tokens::from_file(&path).unwrap();
    let app = App::new(open("memory:").await, None).admin_tokens(Some(tokens));
    let server = Served::app(app).await;
    let asks_as = async |token: &str, method, path: &str, body| {
        let answer = ask(&server, method, path, token, body).await;
        let (status, body) = read(answer).await;
        (status.as_u16(), body)
    };
    let asks = async |method, path: &str, body| asks_as("pia", method, path, body).await;
    let publish = |domain: &str| {
        let document = json!({"domain": domain, "policies": []});
        Some(json!({"domain": domain, "document": document, "by": "pia"}))
    };
    let (status, listed) = asks(Method::GET, "/v1/documents?domain=new", None).await;
    assert_eq!(status, 200, "{listed}");
    let (status, made) = asks(Method::POST, "/v1/documents", publish("new")).await;
    assert_eq!(status, 200, "{made}");
    let (status, text) = asks(Method::GET, "/v1/documents/text?domain=new", None).await;
    assert_eq!((status, &text["document"]["domain"]), (200, &json!("new")));
    let withdraw = json!({"domain": "new", "by": "pia"});
    let (status, made) = asks(Method::DELETE, "/v1/documents", Some(withdraw)).await;
    assert_eq!(status, 200, "{made}");
    // The domain of another team stays closed, whether it is known or not.
    assert_eq!(asks(Method::POST, "/v1/documents", publish("pay")).await.0, 403);
    assert_eq!(asks(Method::GET, "/v1/documents?domain=pay", None).await.0, 403);
    let mixed =
        json!({"domain": "new", "by": "pia", "document": {"domain": "pay", "policies": []}});
    assert_eq!(asks(Method::POST, "/v1/documents", Some(mixed)).await.0, 400);
    // A token of a single domain need not name it, and may forget it.
    let (status, listed) = asks_as("uma", Method::GET, "/v1/documents", None).await;
    assert_eq!((status, &listed["domain"]), (200, &json!("new")), "{listed}");
    assert_eq!(asks(Method::GET, "/v1/documents", None).await.0, 404, "it has two");
    let forget = json!({"domain": "new", "by": "uma"});
    let forgets =
        async || asks_as("uma", Method::DELETE, "/v1/domains", Some(forget.clone())).await;
    let (status, made) = forgets().await;
    assert_eq!((status, &made["done"]), (200, &json!("forgot domain new")), "{made}");
    let (status, again) = forgets().await;
    assert!(status == 404 && again["known"].is_null(), "{again}");
}

#[tokio::test]
async fn history_and_audit_log_name_the_token_and_what_it_changed() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let tokens = [line("ann", "operate", "test"), line("eve", "view", "*")].concat();
    let app = App::new(open("memory:").await, None)
        .admin_tokens(Tokens::new(tokens.as_bytes()))
        .audit(Some(AuditLog::open(&audit).unwrap()));
    let server = Served::app(app).await;
    server.dials("test", Some(REPORT)).await;
    let put = async |token: &str, body: Value| {
        read(ask(&server, Method::PUT, "/v1/dials", token, Some(body)).await).await
    };
    let set =
        |quota: u64| json!({"policy": "p", "quota": quota, "by": "root", "reason": "INC-7\n"});
    assert_eq!(put("ann", set(8)).await.0, 200);
    assert_eq!(put("ann", set(9)).await.0, 200);
    assert_eq!(put("eve", set(1)).await.0, 403);
    assert_eq!(put("mallory", set(1)).await.0, 401);
    let (status, _) = put("ann", json!({"policy": "q", "quota": 7, "by": "root"})).await;
    assert_eq!(status, 404);
    let (_, history) = read(ask(&server, Method::GET, "/v1/history", "eve", None).await).await;
    let last = &history[0];
    assert_eq!(
        (&last["by"], &last["remark"], &last["role"], &last["reason"], &last["policy"]),
        (&json!("ann"), &json!("root"), &json!("operate"), &json!("INC-7"), &json!("p")),
        "{history}"
    );
    assert!(last["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{last}");
    assert_eq!((&last["before"]["quota"], &last["after"]["quota"]), (&json!(8), &json!(9)));
    assert_eq!(history.as_array().unwrap().len(), 2, "{history}");

    let written = lines(&audit);
    let outcomes: Vec<_> = written.iter().map(|line| (&line["outcome"], &line["actor"])).collect();
    let [done, refused] = ["done", "refused"].map(Value::from);
    let [ann, eve, nobody] = [json!("ann"), json!("eve"), Value::Null];
    assert_eq!(
        outcomes,
        [(&done, &ann), (&done, &ann), (&refused, &eve), (&refused, &nobody), (&refused, &ann)],
        "{written:?}"
    );
    let second = &written[1];
    assert_eq!(
        (&second["action"], &second["domain"], &second["policy"], &second["text"]),
        (&json!("PUT /v1/dials"), &json!("test"), &json!("p"), &json!("set dial p: quota 9"))
    );
    assert_eq!((&second["before"]["quota"], &second["after"]["quota"]), (&json!(8), &json!(9)));
    assert!(second["time"].as_str().unwrap().ends_with('Z'), "{second}");
    assert!(written[2]["text"].as_str().unwrap().contains("has the role view"), "{written:?}");
    assert_eq!((&written[4]["policy"], &written[4]["role"]), (&json!("q"), &json!("operate")));
    assert!(written.iter().all(|line| line["address"].is_string()), "{written:?}");
    let filter = async |query: &str| {
        let path = format!("/v1/history?{query}");
        let (status, found) = read(ask(&server, Method::GET, &path, "eve", None).await).await;
        assert_eq!(status, 200, "{query} {found}");
        found.as_array().unwrap().len()
    };
    for (query, count) in [
        ("by=ann", 2),
        ("by=root", 0),
        ("policy=p", 2),
        ("policy=q", 0),
        ("since_ms=0", 2),
        ("since_ms=99999999999999", 0),
        ("policy=p&limit=1", 1),
        ("partition=jwt.sub%3Da", 0),
    ] {
        assert_eq!(filter(query).await, count, "{query}");
    }
}

#[tokio::test]
async fn refused_try_shows_no_secret_that_was_typed() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let app = App::new(open("memory:").await, None)
        .admin_tokens(Tokens::new(line("ann", "operate", "*").as_bytes()))
        .audit(Some(AuditLog::open(&audit).unwrap()));
    let server = Served::app(app).await;
    server.dials("test", Some(REPORT)).await;
    let body = json!({"policy": "absent", "partition": "header.x-key=TOPSECRET", "allow": "blocked", "by": "x"});
    let refused = ask(&server, Method::PUT, "/v1/overrides", "ann", Some(body)).await;
    assert_eq!(refused.status(), 404);
    let body = json!({"policy": "p", "partition": "header.x-key=TOPSECRET", "by": "x"});
    let absent = ask(&server, Method::DELETE, "/v1/overrides", "ann", Some(body)).await;
    let (status, answer) = read(absent).await;
    assert!(status == 404 && answer.to_string().contains("TOPSECRET"), "{answer}");
    let wrong = ask(&server, Method::GET, "/v1/boards?x=TOPSECRET", "TOPSECRET", None).await;
    assert_eq!(wrong.status(), 401);
    let text = fs::read_to_string(&audit).unwrap();
    assert_eq!(lines(&audit).len(), 3, "{text}");
    assert!(!text.contains("TOPSECRET") && text.contains("absent"), "{text}");
}

#[tokio::test]
async fn end_of_dials_and_overrides_is_recorded_once_with_what_they_were() {
    let directory = tempfile::tempdir().unwrap();
    let audit = directory.path().join("audit");
    let app = App::new(open("memory:").await, None).audit(Some(AuditLog::open(&audit).unwrap()));
    let server = Served::app(app).await;
    server.dials("test", Some(REPORT)).await;
    let dial = json!({"policy": "p", "quota": 8, "for_ms": 1000, "by": "ann"});
    assert_eq!(server.admin(Method::PUT, "/v1/dials", Some(dial)).await.0, 200);
    let over = json!({"policy": "p", "partition": "jwt.sub=a", "allow": "blocked", "for_ms": 1000, "by": "ann"});
    assert_eq!(server.admin(Method::PUT, "/v1/overrides", Some(over)).await.0, 200);
    let history = until("both have ended", Duration::from_secs(60), async || {
        let (_, history) = server.get("/v1/history").await;
        (history.as_array().unwrap().len() == 4).then_some(history)
    })
    .await;
    let mut ended: Vec<_> = history.as_array().unwrap()[..2].iter().collect();
    ended.sort_by_key(|event| event["done"].as_str().unwrap());
    assert_eq!(
        (&ended[0]["done"], &ended[0]["by"], &ended[0]["before"]["quota"]),
        (&json!("dial p ended: quota 8"), &json!("-"), &json!(8)),
        "{history}"
    );
    assert_eq!(
        (&ended[1]["done"], &ended[1]["partition"]),
        (&json!("override p jwt.sub=a ended: blocked"), &json!("jwt.sub=a")),
        "{history}"
    );
    // The audit log has it after the history.
    let expired = until("both in the audit log", Duration::from_secs(60), async || {
        let lines = lines(&audit).into_iter().filter(|line| line["action"] == "expiry");
        Some(lines.count()).filter(|count| *count >= 2)
    });
    assert_eq!(expired.await, 2);
    let (_, of_party) = server.get("/v1/history?partition=jwt.sub%3Da").await;
    assert_eq!(of_party.as_array().unwrap().len(), 2, "{of_party}");
}
