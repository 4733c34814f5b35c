//! Which client a request counts for: verified subject before address, secrets as digests, hostile
//! bytes as data.

use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::envoy::manager;
use quotagate_support::http::Request;
use quotagate_support::{jwt, wait, yaml};
use serde_json::json;

use crate::rig::{Rig, document, per_caller};

#[test]
fn users_have_separate_quotas_and_the_subject_wins_over_the_address() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(1)])))?;
    let (alice, bob) = (jwt::token("alice")?, jwt::token("bob")?);
    let statuses = rig.statuses(&[
        Request::get("/").bearer(&alice),
        Request::get("/").bearer(&alice),
        Request::get("/").bearer(&bob),
        Request::get("/"),
        Request::get("/"),
        Request::get("/").bearer(&bob),
    ])?;
    assert_eq!(statuses, [200, 429, 200, 200, 429, 429]);
    Ok(())
}

#[test]
fn unverified_token_identifies_no_client() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(1)])))?;
    let forged = jwt::forged("alice")?;
    let statuses = rig.statuses(&[
        Request::get("/").bearer(&forged),
        Request::get("/").bearer(&forged),
        Request::get("/").bearer(&jwt::token("alice")?),
    ])?;
    assert_eq!(statuses, [401, 401, 200], "refused by jwt_authn, and alice's quota is untouched");
    Ok(())
}

/// As many requests without a token as it takes until the filter tells of it.
const FIRST: usize = 1_000;

#[test]
fn tokens_whose_payload_nothing_keeps_are_told_of_in_the_log() -> Result<()> {
    let rig = Rig::start_with(document(json!([per_caller(1_000_000)])), |options| {
        options.edit(|config| {
            let jwt = yaml::at(manager(config)?, "/http_filters/0/typed_config/providers/demo")?;
            jwt.as_object_mut().context("no provider")?.remove("payload_in_metadata");
            Ok(())
        })
    })?;
    let mut client = rig.client()?;
    let request = Request::get("/").bearer(&jwt::token("alice")?);
    let logged = "had a verified token for the identity caller: ";
    for _ in 1..FIRST {
        assert_eq!(client.send(&request)?.status, 200);
    }
    assert!(!rig.envoy.log().contains(logged), "{}", rig.envoy.log());
    wait::until_true("the line in the log", Duration::from_secs(60), || {
        assert_eq!(client.send(&request)?.status, 200);
        Ok(rig.envoy.log().contains(logged))
    })
}

#[test]
fn client_cannot_forge_its_address() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(1)])))?;
    let from = |address: &str| Request::get("/").header("x-forwarded-for", address);
    assert_eq!(rig.statuses(&[from("192.0.2.1"), from("192.0.2.2")])?, [200, 429]);
    Ok(())
}

#[test]
fn invariant_5_secret_key_never_leaves_the_filter_in_clear() -> Result<()> {
    let policy = json!({"name": "per-key", "partition_by": ["key"], "quota": 1, "window": "366d"});
    let rig = Rig::start(document(json!([policy])))?;
    let with = |key: &str| Request::get("/").header("x-api-key", key);
    let mut client = rig.client()?;
    let mut seen = String::new();
    for (key, status) in [("s3cret-one", 200), ("s3cret-one", 429), ("s3cret-two", 200)] {
        let response = client.send(&with(key))?;
        assert_eq!(response.status, status);
        seen += &format!("{:?}", response.headers);
        seen += &response.text();
    }
    let keys = rig.redis.cli(&["KEYS", "*"])?.lines();
    assert_eq!(keys.matches("qg:shop:per-key:{header.x-api-key=~").count(), 2, "{keys}");
    seen += &keys;
    seen += &rig.envoy.log();
    seen += &rig.store.log();
    assert!(!seen.contains("s3cret"), "{seen}");
    Ok(())
}

#[test]
fn invariant_4_hostile_bytes_are_data() -> Result<()> {
    let policy =
        json!({"name": "per-tenant", "partition_by": ["tenant"], "quota": 1, "window": "366d"});
    let rig = Rig::start(document(json!([policy])))?;
    let values: [&[u8]; 8] =
        [b"\xff\xfe", b"a}:{b", b"a,b=c", b"a%2Cb", b"\" \\ '", b"{", b"~abc", &[b'x'; 20_000]];
    for value in values {
        let request = Request::get("/").raw_header(b"x-tenant", value);
        assert_eq!(rig.statuses(&[request.clone(), request])?, [200, 429], "{value:?}");
    }
    let keys = rig.redis.cli(&["KEYS", "qg:shop:*"])?.lines();
    assert_eq!(keys.lines().count(), values.len(), "{keys}");
    Ok(())
}
