//! Tokens and passwords are rotated while `quotagate serve` runs, without refusing calls.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quotagate_protocol::MAX_WINDOW_S;
use quotagate_support::http::{self, Client, Request};
use quotagate_support::redis::Redis;
use quotagate_support::store::{StoreOptions, StoreProcess};
use quotagate_support::wait;
use serde_json::json;

/// A store reads its token files every two seconds. A slow machine may take longer.
const LIMIT: Duration = Duration::from_secs(20);

fn start(store: &str, arguments: &[&str]) -> StoreProcess {
    let options =
        StoreOptions::new(store).program(env!("CARGO_BIN_EXE_quotagate")).arguments(arguments);
    StoreProcess::start_with(&options).unwrap()
}

fn hang_up(store: &StoreProcess) {
    assert!(
        Command::new("kill").arg("-HUP").arg(store.pid().to_string()).status().unwrap().success()
    );
}

/// The statuses of a call and of the admin API, with this token.
fn statuses(store: &StoreProcess, token: &str) -> (u16, u16) {
    let call =
        Request::post("/v1/reserve", br#"{"budget_ms": 5000, "reservations": []}"#).bearer(token);
    let called = Client::connect(store.port()).unwrap().send(&call).unwrap().status;
    let looked = Client::connect(store.admin_port())
        .unwrap()
        .send(&Request::get("/v1/boards").bearer(token));
    (called, looked.unwrap().status)
}

#[test]
fn tokens_are_rotated_while_the_store_runs() {
    let directory = tempfile::tempdir().unwrap();
    let [calls, admin] = ["calls", "admin"].map(|name| directory.path().join(name));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    fs::write(&calls, "the-old-call-token-of-all\n").unwrap();
    fs::write(&admin, "the-old-admin-token-of-all\n").unwrap();
    let store =
        start("memory:", &["--token-file", &path(&calls), "--admin-token-file", &path(&admin)]);
    let valid = |token: &str| statuses(&store, token);
    assert_eq!(
        [
            valid("the-old-call-token-of-all"),
            valid("the-old-admin-token-of-all"),
            valid("the-new-call-token-of-all")
        ],
        [(200, 401), (401, 200), (401, 401)]
    );
    // Without a signal. Both tokens are valid while callers change from one to the other.
    fs::write(&calls, "the-old-call-token-of-all\nthe-new-call-token-of-all\n").unwrap();
    wait::until_true("the new token is valid", LIMIT, || {
        Ok(valid("the-new-call-token-of-all") == (200, 401))
    })
    .unwrap();
    assert_eq!(valid("the-old-call-token-of-all"), (200, 401));
    // An invalid token file changes nothing.
    fs::write(&admin, "").unwrap();
    hang_up(&store);
    let says =
        |text: &str| wait::until_true(text, LIMIT, || Ok(store.log().contains(text))).unwrap();
    says("its last good content stays in use");
    assert_eq!(valid("the-old-admin-token-of-all"), (401, 200));
    fs::write(&calls, "the-new-call-token-of-all\n").unwrap();
    fs::write(&admin, "the-new-admin-token-of-all\n").unwrap();
    hang_up(&store);
    wait::until_true("the old tokens are gone", LIMIT, || {
        Ok((valid("the-old-call-token-of-all"), valid("the-old-admin-token-of-all"))
            == ((401, 401), (401, 401)))
    })
    .unwrap();
    assert_eq!(
        [valid("the-new-call-token-of-all"), valid("the-new-admin-token-of-all")],
        [(200, 401), (401, 200)]
    );
    for secret in [
        "the-old-call-token-of-all",
        "the-new-call-token-of-all",
        "the-old-admin-token-of-all",
        "the-new-admin-token-of-all",
    ] {
        assert!(!store.log().contains(secret), "{}", store.log());
    }
}

/// Takes one of nine units, and returns the used units.
fn reserve(store: &StoreProcess) -> Option<u64> {
    let reservation =
        json!({"key": "shop:p:{a}", "window_s": MAX_WINDOW_S, "quota": 9, "want": 1, "min": 1});
    let body = json!({"budget_ms": 5000, "reservations": [reservation]}).to_string();
    let reply = Client::connect(store.port())
        .unwrap()
        .send(&Request::post("/v1/reserve", body.as_bytes()))
        .unwrap();
    reply.json().ok()?["grants"][0]["used"].as_u64()
}

#[test]
fn new_connections_to_redis_use_the_current_password_in_the_file() {
    let redis = Redis::start().unwrap();
    let allow = |passwords: &[&str]| {
        let command = ["ACL", "SETUSER", "shop", "on", "resetpass", "~*", "+@all"];
        redis.cli(&[&command, passwords].concat()).unwrap();
    };
    allow(&[">0ld-secret"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    fs::write(&file, "0ld-secret\n").unwrap();
    let url = redis.url().replace("redis://", "redis://shop@");
    let store = start(&url, &["--password-file", file.to_str().unwrap()]);
    wait::until_true("the store is ready", LIMIT, || {
        Ok(http::get(store.admin_port(), "/readyz")?.status == 200)
    })
    .unwrap();
    assert_eq!(reserve(&store), Some(1));
    allow(&[">n3w-secret"]);
    fs::write(&file, "n3w-secret\n").unwrap();
    assert_eq!(reserve(&store), Some(2), "a connection that stands is not touched");
    redis.cli(&["CLIENT", "KILL", "USER", "shop"]).unwrap();
    wait::until_true("it counts with the new password", LIMIT, || Ok(reserve(&store) == Some(3)))
        .unwrap();
    for secret in ["0ld-secret", "n3w-secret"] {
        assert!(!store.log().contains(secret), "{}", store.log());
    }
}
