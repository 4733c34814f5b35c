//! The files in `envoy/` that users copy, in the real Envoy: it accepts every file, and the claims
//! in the comments hold where a test is cheap.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Result;
use quotagate_support::edits::{self, ConfigEdit};
use quotagate_support::envoy::{self, Envoy, EnvoyOptions};
use quotagate_support::http::{Client, Request};
use quotagate_support::store::StoreProcess;
use quotagate_support::tls::Authority;
use quotagate_support::upstream::Upstream;
use quotagate_support::{jwt, paths, ports, yaml};
use serde_json::{Value, json};

/// Parts for `envoy.yaml`. (The others have tests beside those that use them.)
const SNIPPETS: [&str; 6] = [
    "access_log.yaml",
    "cors.yaml",
    "mtls.yaml",
    "native_access_log.yaml",
    "routes.yaml",
    "stats_tags.yaml",
];

/// The shipped configuration with the change `edit`, in front of a store in memory.
struct Rig {
    envoy: Envoy,
    upstream: Upstream,
    _store: StoreProcess,
}

impl Rig {
    fn start(edit: ConfigEdit) -> Result<Self> {
        let store = StoreProcess::start("memory:", &[])?;
        let upstream = Upstream::start()?;
        let options = EnvoyOptions::new(upstream.port(), store.port()).edit(edit).edit(patient);
        Ok(Self { envoy: Envoy::start(&options)?, upstream, _store: store })
    }

    fn client(&self) -> Result<Client> {
        Client::connect(self.envoy.port())
    }
}

/// Sets a timeout for a slow machine, and lets no request pass uncounted.
fn patient(config: &mut Value) -> Result<()> {
    let store = yaml::at(envoy::document(config)?, "/store")?;
    *store = json!({"cluster": "quota_store", "timeout": "60s", "on_failure": "deny"});
    Ok(())
}

#[test]
fn every_file_has_a_test() -> Result<()> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(paths::root().join("envoy"))? {
        let name = entry?.file_name().into_string().unwrap();
        files.extend(name.ends_with(".yaml").then_some(name));
    }
    let others = [
        "envoy.yaml",
        "native.yaml",
        "quota_store_several.yaml",
        "quota_store_tls.yaml",
        "quota_store_unix.yaml",
        "store_front.yaml",
    ];
    let known = SNIPPETS.into_iter().chain(others);
    assert_eq!(files, known.map(str::to_owned).collect());
    Ok(())
}

#[test]
fn envoy_accepts_every_part() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let authority = Authority::new(directory.path(), "clients")?;
    for name in SNIPPETS {
        let mut options = EnvoyOptions::new(1, 1).edit(edits::snippet(name)?);
        if name == "mtls.yaml" {
            // Envoy reads the certificates at startup.
            options = options.edit(authority.listener()?);
        }
        assert_eq!(Envoy::validate(&options.config()?), Ok(()), "{name}");
    }
    Ok(())
}

#[test]
fn routes_are_counted_by_name_and_probes_are_not() -> Result<()> {
    let routes = edits::snippet("routes.yaml")?;
    let rig = Rig::start(Box::new(move |config| {
        routes(config)?;
        *yaml::at(envoy::document(config)?, "/response/headers")? = json!(["ietf"]);
        Ok(())
    }))?;
    let mut client = rig.client()?;
    let mut policies = |path: &str| -> Result<String> {
        let response = client.send(&Request::get(path))?;
        Ok(response.header("ratelimit-policy").unwrap_or_default().to_owned())
    };
    assert_eq!(policies("/search?q=a")?, "\"search\";q=100;w=60");
    assert_eq!(
        policies("/reports/a")?,
        "\"reports-burst\";q=2;w=10, \"reports-daily\";q=50;w=86400"
    );
    assert_eq!(policies("/anything")?, "\"others\";q=1000;w=60");
    assert_eq!(policies("/healthz")?, "");
    Ok(())
}

#[test]
fn probes_are_answered_while_everything_else_is_down() -> Result<()> {
    let upstream = Upstream::start()?;
    let options = EnvoyOptions::new(upstream.port(), ports::free()?);
    let envoy = Envoy::start(&options.edit(edits::snippet("routes.yaml")?).edit(patient))?;
    let mut client = Client::connect(envoy.port())?;
    assert_eq!(client.send(&Request::get("/healthz"))?.status, 200);
    assert_eq!(client.send(&Request::get("/search"))?.status, 503);
    Ok(())
}

#[test]
fn pre_flights_spend_no_quota_and_scripts_may_read_a_refusal() -> Result<()> {
    let cors = edits::snippet("cors.yaml")?;
    let rig = Rig::start(Box::new(move |config| {
        cors(config)?;
        // So long that the window does not end during the test.
        let policy = yaml::at(envoy::document(config)?, "/policies/0/window")?;
        *policy = json!("366d");
        Ok(())
    }))?;
    let mut client = rig.client()?;
    let origin = "https://shop.example.com";
    let pre_flight = Request::new("OPTIONS", "/").header("origin", origin);
    let pre_flight = pre_flight.header("access-control-request-method", "GET");
    for _ in 0..20 {
        let response = client.send(&pre_flight)?;
        assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, None));
        assert_eq!(response.header("access-control-allow-origin"), Some(origin));
    }
    assert_eq!(rig.upstream.requests(), 0);
    // The five requests of the shipped quota, and the sixth.
    for status in [200, 200, 200, 200, 200, 429] {
        let response = client.send(&Request::get("/").header("origin", origin))?;
        assert_eq!(
            (response.status, response.header("access-control-allow-origin")),
            (status, Some(origin))
        );
        let readable = response.header("access-control-expose-headers").unwrap_or_default();
        assert!(
            readable.contains("x-ratelimit-limit") && readable.contains("retry-after"),
            "{readable}"
        );
    }
    // This is not a pre-flight but an ordinary request.
    assert_eq!(client.send(&Request::new("OPTIONS", "/"))?.status, 429);
    Ok(())
}

#[test]
fn envoy_accepts_every_change_that_tests_make() -> Result<()> {
    let options = EnvoyOptions::new(1, 1)
        .edit(edits::trusted_hops(1))
        .edit(edits::raw_paths)
        .edit(edits::websocket)
        .edit(edits::routes(&[("a", "/a"), ("b", "/b")]))
        .edit(edits::metadata("example", json!({"tenant": "shop"})))
        .edit(edits::metadata_from_header("x-plan", "example", "plan", "STRING"))
        .edit(edits::second_issuer);
    assert_eq!(Envoy::validate(&options.config()?), Ok(()));
    Ok(())
}

#[test]
fn tokens_of_both_issuers_are_verified() -> Result<()> {
    let upstream = Upstream::start()?;
    let options = EnvoyOptions::new(upstream.port(), 1).bare().edit(edits::second_issuer);
    let envoy = Envoy::start(&options)?;
    let other = jwt::OTHER.token(&json!({"sub": "bob"}))?;
    let forged = jwt::SigningKey { key: b"somebody else's key, not theirs", ..jwt::OTHER }
        .token(&json!({}))?;
    let mut client = Client::connect(envoy.port())?;
    for (token, status) in [(other, 200), (forged, 401)] {
        let request =
            Request::get("/").bearer(&jwt::token("alice")?).header("x-other-token", token);
        assert_eq!(client.send(&request)?.status, status);
    }
    Ok(())
}
