//! What the reader makes of a good configuration.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use quotagate_protocol::{Calendar, Kind, Mode, OnFailure, Unit, Window};
use quotagate_quota::config::{
    Abandoned, ClusterStore, Config, Count, CountedResponses, Denied, HeaderFamily, LogField,
    OnWrongDocument, Precision, Reach, RedisStore, Reset, StoreConfig,
};

use super::parse;

#[test]
fn every_field_is_read() {
    let config = parse("good").unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(&*config.domain, "shop.eu_1-a");
    let store = StoreConfig {
        reach: Reach::Cluster(ClusterStore {
            name: "quota_store".into(),
            token: Some("c2VjcmV0-._~+/==".into()),
        }),
        timeout: Duration::from_millis(100),
        on_failure: OnFailure::Deny,
        local_share: 0.25,
    };
    assert_eq!(config.store, store);
    assert_eq!(*config.access_log, [LogField::Used, LogField::Policy]);
    assert_eq!(config.on_wrong_document, OnWrongDocument::Reject);
    let policies: Vec<_> = config
        .policies
        .iter()
        .map(|p| (&*p.name, p.quota, p.window.seconds(), p.stagger, p.mode, p.on_failure))
        .collect();
    assert_eq!(
        policies,
        [
            ("per-caller", 100, 60, false, Mode::Enforce, OnFailure::Deny),
            ("off", 1, 3600, false, Mode::Off, OnFailure::Deny),
            ("off-in-yaml", 1, 3600, false, Mode::Off, OnFailure::Deny),
            ("per-key", 100, 366 * 86_400, false, Mode::Shadow, OnFailure::Deny),
            ("nobody", 0, 1, false, Mode::Enforce, OnFailure::Deny),
            ("everybody", (1 << 53) - 1, 7 * 86_400, false, Mode::Enforce, OnFailure::Deny),
            ("log-ins", 5, 600, false, Mode::Enforce, OnFailure::Allow),
            ("leased", 100_000, 1, true, Mode::Enforce, OnFailure::Deny),
            ("leased-as-usual", 100_000, 1, false, Mode::Enforce, OnFailure::Local),
            ("textbook", 100, 60, false, Mode::Enforce, OnFailure::Deny),
            ("tokens", 10_000, 3600, false, Mode::Enforce, OnFailure::Deny),
            ("queries", 1000, 3600, false, Mode::Enforce, OnFailure::Deny),
        ]
    );
    let counting: BTreeMap<_, _> = config
        .policies
        .iter()
        .map(|p| (&*p.name, (p.count.clone(), p.count_denied, p.precision)))
        .filter(|(_, counting)| *counting != (Count::All, false, Precision::Exact))
        .collect();
    let lease = |ms, max| Precision::Lease {
        ahead: Duration::from_millis(ms),
        max: NonZeroU64::new(max).unwrap(),
    };
    let answers = CountedResponses {
        statuses: [401, 403].into(),
        grpc_statuses: [7, 16].into(),
        abandoned: Abandoned::Refund,
    };
    assert_eq!(
        counting,
        BTreeMap::from([
            ("log-ins", (Count::Responses(answers), false, Precision::Exact)),
            ("leased", (Count::All, false, lease(250, 500))),
            ("leased-as-usual", (Count::All, false, lease(100, 1000))),
            ("textbook", (Count::All, true, Precision::Exact)),
        ])
    );
    assert!(config.reads_request_bodies() && config.reads_response_bodies());
    assert_eq!(config.response.grpc_pushback, Duration::from_secs(2));
}

#[test]
fn store_inside_the_filter_is_read_and_never_shown() {
    let read = |store: &str| {
        let text = format!(r#"{{"domain":"d","store":{store},"policies":[]}}"#);
        Config::parse(text.as_bytes()).unwrap_or_else(|faults| panic!("{faults}"))
    };
    let config = read(
        r#"{"redis": "redis://shop:s3cret@r1/2", "password_file": "/run/secrets/redis", "prefix": "shop.eu"}"#,
    );
    let expected = RedisStore {
        url: "redis://shop:s3cret@r1/2".into(),
        password_file: Some("/run/secrets/redis".into()),
        prefix: "shop.eu".into(),
    };
    assert_eq!(config.store.reach, Reach::Redis(expected));
    let fault = config.store.reach.called_by_envoy().unwrap_err();
    assert!(fault.to_string().starts_with("store.redis: needs the native form"), "{fault}");
    assert!(!format!("{config:?}{:?}", config.warnings()).contains("s3cret"), "{config:?}");
    for url in [
        "memory:",
        "redis://h",
        "rediss://h",
        "redis+unix:///h",
        "redis-cluster://a,b",
        "rediss-cluster://a",
        "redis-sentinel://s/m",
        "rediss-sentinel://s/m",
    ] {
        let Reach::Redis(read) = read(&format!(r#"{{"redis":"{url}"}}"#)).store.reach else {
            panic!("{url}")
        };
        assert_eq!((&*read.url, read.password_file, &*read.prefix), (url, None, "qg"));
    }
    let config = read(r#"{"cluster": "c", "token": "s3cret"}"#);
    assert_eq!(config.store.reach.called_by_envoy().unwrap().token.as_deref(), Some("s3cret"));
    assert!(!format!("{config:?}").contains("s3cret"), "{config:?}");
}

#[test]
fn absent_fields_have_their_defaults() {
    let text = r#"{"domain":"d","store":{"cluster":"c"},"policies":[{"name":"p","partition_by":[],"quota":1,"window":"1s"}]}"#;
    let config = Config::parse(text.as_bytes()).unwrap();
    assert_eq!(config.store.timeout, Duration::from_millis(50));
    assert_eq!(config.store.on_failure, OnFailure::Allow);
    assert_eq!((config.store.local_share, config.store.reach.token()), (0.1, None));
    let Denied { status, content_type, body, headers } = config.response.denied;
    assert_eq!((status, content_type, body, headers), (429, None, None, Vec::new()));
    assert_eq!(*config.response.families, [HeaderFamily::XRateLimit]);
    assert_eq!(config.response.reset, Reset::Epoch);
    assert_eq!(config.response.grpc_pushback, Duration::from_secs(5));
    assert_eq!(*config.access_log, []);
    let policy = &config.policies[0];
    assert_eq!((policy.mode, policy.on_failure), (Mode::Enforce, OnFailure::Allow));
    assert_eq!((&policy.count, policy.count_denied, policy.stagger), (&Count::All, false, false));
    assert_eq!(policy.precision, Precision::Exact);
    assert_eq!(policy.window, Window::new(1, 0).unwrap());
}

#[test]
fn windows_are_fixed_sliding_or_of_the_calendar() {
    let with = |window: &str| {
        let text = format!(
            r#"{{"domain":"d","store":{{"cluster":"c"}},"policies":[{{"name":"p","partition_by":[],"quota":1,"window":{window}}}]}}"#
        );
        Config::parse(text.as_bytes()).unwrap().policies[0].window.parts()
    };
    let day = |zone: &str| Kind::Calendar(Calendar { unit: Unit::Day, time_zone: zone.into() });
    assert_eq!(with(r#""1h", "sliding": true"#), (Kind::Sliding, 3600, 0));
    assert_eq!(with(r#""1h", "sliding": false"#), (Kind::Fixed, 3600, 0));
    assert_eq!(with(r#"{"calendar": "day"}"#), (day("UTC"), 0, 0));
    let berlin = r#"{"calendar": "day", "time_zone": "Europe/Berlin"}, "precision": "lease""#;
    assert_eq!(with(berlin), (day("Europe/Berlin"), 0, 0));
}

#[test]
fn share_may_be_a_string_as_envoy_writes_it() {
    let with = |share: &str| {
        let text = format!(
            r#"{{"domain":"d","store":{{"cluster":"c","on_failure":"local","local_share":{share}}},"policies":[]}}"#
        );
        Config::parse(text.as_bytes()).map(|config| config.store.local_share).ok()
    };
    for (share, read) in [
        ("0.25", Some(0.25)),
        (r#""0.25""#, Some(0.25)),
        (r#""1""#, Some(1.0)),
        (r#""0.0""#, None),
        (r#""1.1""#, None),
        (r#""-0.1""#, None),
        (r#""1e-1""#, None),
        (r#""inf""#, None),
        (r#"".""#, None),
        (r#""""#, None),
    ] {
        assert_eq!(with(share), read, "{share}");
    }
}

#[test]
fn secrets_are_never_shown() {
    let config = parse("good").unwrap_or_else(|faults| panic!("{faults}"));
    for secret in ["c2VjcmV0", "well-kept"] {
        assert!(!format!("{config:?}").contains(secret), "{secret}");
    }
    for (name, secret) in [("token-characters", "s3cret"), ("override-secret", "hunter2")] {
        let faults = parse(&format!("bad/{name}")).map(|_| ()).expect_err(name);
        assert!(!format!("{faults} {faults:?}").contains(secret), "{faults}");
    }
}
