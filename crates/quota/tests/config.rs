//! Configurations that are served, and one that is refused for every rule.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quotagate_quota::config::{
    Abandoned, Answers, Config, Count, Denied, Family, Faults, Piece, Precision, Reset, StoreConfig, Template,
};
use quotagate_quota::protocol::{Mode, OnFailure, Window};

#[test]
fn every_supported_field_is_read() {
    let config = parse("good").unwrap_or_else(|faults| panic!("{faults}"));
    assert_eq!(&*config.domain, "shop.eu_1-a");
    let store = StoreConfig {
        cluster: "quota_store".into(),
        timeout: Duration::from_millis(100),
        on_failure: OnFailure::Deny,
        local_share: 0.25,
        token: Some("c2VjcmV0-._~+/==".into()),
    };
    assert_eq!(config.store, store);
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
        ]
    );
    let counting: BTreeMap<_, _> = config
        .policies
        .iter()
        .map(|p| (&*p.name, (p.count.clone(), p.count_denied, p.precision)))
        .filter(|(_, counting)| *counting != (Count::All, false, Precision::Exact))
        .collect();
    let lease =
        |ms, max| Precision::Lease { ahead: Duration::from_millis(ms), max: NonZeroU64::new(max).unwrap() };
    let answers =
        Answers { statuses: [401, 403].into(), grpc_statuses: [7, 16].into(), abandoned: Abandoned::Refund };
    assert_eq!(
        counting,
        BTreeMap::from([
            ("log-ins", (Count::Answered(answers), false, Precision::Exact)),
            ("leased", (Count::All, false, lease(250, 500))),
            ("leased-as-usual", (Count::All, false, lease(100, 1000))),
            ("textbook", (Count::All, true, Precision::Exact)),
        ])
    );
}

#[test]
fn a_refusal_of_ones_own_is_read() {
    let response = parse("good").unwrap_or_else(|faults| panic!("{faults}")).response;
    assert_eq!((&*response.families, response.reset), (&[Family::XRateLimit][..], Reset::Delta));
    let Denied { status, content_type, body, headers } = response.denied;
    assert_eq!((status, content_type.as_deref()), (503, Some("application/json")));
    let text = |text: &str| Piece::Text(text.into());
    let pieces = [
        text("{\"error\": \""),
        Piece::Policy,
        text(" allows "),
        Piece::Quota,
        text("\", \"wait\": "),
        Piece::RetryAfter,
        text("}"),
    ];
    assert_eq!(body.as_ref().map(Template::pieces), Some(&pieces[..]));
    let headers: Vec<_> = headers.iter().map(|(name, value)| (&**name, value.fill("p", 7, 100))).collect();
    assert_eq!(
        headers,
        [("x-denied-by", "quotagate p".to_owned()), ("cache-control", "no-store".to_owned())]
    );
}

#[test]
fn a_body_has_the_type_that_is_said_or_that_it_is_of() {
    for (denied, content_type) in [
        (r#"{"body": "slow down"}"#, Some("text/plain; charset=utf-8")),
        (r#"{"body": "{\"wait\": {retry_after}}"}"#, Some("application/json")),
        (r#"{"body": "{\"policy\": {policy}}"}"#, Some("text/plain; charset=utf-8")),
        (r#"{"body": "0{quota}"}"#, Some("text/plain; charset=utf-8")),
        (r#"{"body": "{quota}"}"#, Some("application/json")),
        (r#"{"body": "{quota}", "content_type": "text/html"}"#, Some("text/html")),
        (r#"{"body": "[", "content_type": "text/json;v=\"a;b\""}"#, Some("text/json;v=\"a;b\"")),
        (r#"{"content_type": "application/problem+json"}"#, Some("application/problem+json")),
        (r#"{"body": ""}"#, None),
        (r#"{"body": "", "content_type": "text/plain"}"#, Some("text/plain")),
        ("{}", None),
    ] {
        let text = format!(
            r#"{{"domain":"d","store":{{"cluster":"c"}},"policies":[],"response":{{"denied":{denied}}}}}"#
        );
        let config = Config::parse(text.as_bytes()).unwrap_or_else(|faults| panic!("{denied}: {faults}"));
        assert_eq!(config.response.denied.content_type.as_deref(), content_type, "{denied}");
    }
}

#[test]
fn what_is_secret_is_never_shown() {
    let config = parse("good").unwrap_or_else(|faults| panic!("{faults}"));
    for secret in ["c2VjcmV0", "well-kept"] {
        assert!(!format!("{config:?}").contains(secret), "{secret}");
    }
    for (name, secret) in [("token-characters", "s3cret"), ("override-secret", "hunter2")] {
        let faults = parse(&format!("bad/{name}")).map(|_| ()).expect_err(name);
        assert!(!format!("{faults} {faults:?}").contains(secret), "{faults}");
    }
}

#[test]
fn a_share_may_be_written_as_envoys_yaml_hands_it_over() {
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
fn what_is_left_out_has_its_default() {
    let text = r#"{"domain":"d","store":{"cluster":"c"},"policies":[{"name":"p","partition_by":[],"quota":1,"window":"1s"}]}"#;
    let config = Config::parse(text.as_bytes()).unwrap();
    assert_eq!(config.store.timeout, Duration::from_millis(50));
    assert_eq!(config.store.on_failure, OnFailure::Allow);
    assert_eq!((config.store.local_share, &config.store.token), (0.1, &None));
    let Denied { status, content_type, body, headers } = config.response.denied;
    assert_eq!((status, content_type, body, headers), (429, None, None, Vec::new()));
    assert_eq!(*config.response.families, [Family::Ietf, Family::XRateLimit]);
    assert_eq!(config.response.reset, Reset::Epoch);
    let policy = &config.policies[0];
    assert_eq!((policy.mode, policy.on_failure), (Mode::Enforce, OnFailure::Allow));
    assert_eq!((&policy.count, policy.count_denied, policy.stagger), (&Count::All, false, false));
    assert_eq!(policy.precision, Precision::Exact);
    assert_eq!(policy.window, Window::new(1, 0).unwrap());
}

#[test]
fn every_rule_refuses_what_breaks_it_and_names_the_place() {
    for (name, expected) in BAD {
        let faults = parse(&format!("bad/{name}")).map(|_| ()).expect_err(name);
        let found: Vec<_> = faults.iter().map(|f| (f.path.as_str(), f.message.as_str())).collect();
        assert_eq!(found.len(), expected.len(), "{name}:\n{faults}");
        for (path, message) in *expected {
            assert!(
                found.iter().any(|(p, m)| p == path && m.contains(message)),
                "{name}: expected {path}: {message}, found\n{faults}"
            );
        }
        assert_eq!(faults.to_string().lines().count(), expected.len(), "{name}:\n{faults}");
    }
}

#[test]
fn every_bad_configuration_is_expected_to_be_bad() {
    let files: BTreeSet<String> = std::fs::read_dir(fixtures().join("bad"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let expected: BTreeSet<String> = BAD.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(files, expected);
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn parse(name: &str) -> Result<Config, Faults> {
    Config::parse(&std::fs::read(fixtures().join(format!("{name}.json"))).unwrap_or_default())
}

/// The place of a fault, and part of what is said of it.
type Expected = (&'static str, &'static str);

/// Of each file under `bad`, all faults.
const BAD: &[(&str, &[Expected])] = &[
    ("field-twice", &[("configuration", "must be JSON: the field \"policies\" is given twice")]),
    ("not-json", &[("configuration", "must be JSON: ")]),
    ("empty", &[("configuration", "must be JSON: ")]),
    ("not-an-object", &[("configuration", "must be an object, is a list")]),
    ("nothing-required", &[("domain", "is required"), ("store", "is required"), ("policies", "is required")]),
    ("unknown-field", &[("polcies", r#"unknown field: did you mean "policies"?"#)]),
    (
        "unknown-field-far",
        &[("store.retries", "unknown field: known are cluster, timeout, on_failure, local_share, token")],
    ),
    ("unknown-field-strange-name", &[(r#"["a.b\nc"]"#, "unknown field")]),
    ("domain-characters", &[("domain", r#"must match [a-z0-9._-]{1,64}, is "Shop""#)]),
    ("domain-empty", &[("domain", "must match")]),
    ("domain-long", &[("domain", "must match")]),
    ("domain-type", &[("domain", "must be a string (in YAML, put it in quotes), is a number")]),
    ("store-type", &[("store", "must be an object, is a string")]),
    ("cluster-missing", &[("store.cluster", "is required")]),
    ("cluster-empty", &[("store.cluster", "must not be empty")]),
    (
        "timeout-zero",
        &[("store.timeout", r#"must be a duration from 1ms to 60s, is "0ms": write for example 50ms"#)],
    ),
    ("timeout-long", &[("store.timeout", "must be a duration from 1ms to 60s")]),
    ("timeout-number", &[("store.timeout", "is 50: write for example 50ms")]),
    ("on-failure-word", &[("store.on_failure", r#"must be allow, deny or local, is "open""#)]),
    ("on-failure-type", &[("store.on_failure", "must be allow, deny or local, is true")]),
    ("digest-key-empty", &[("digest_key", "must not be empty")]),
    ("digest-key-type", &[("digest_key", "must be a string (in YAML, put it in quotes), is a number")]),
    ("identities-type", &[("identities", "must be an object, is a list")]),
    ("identities-many", &[("identities", "must have at most 64 entries, has 65")]),
    ("identity-name", &[(r#"identities["the caller"]"#, "the name must match [A-Za-z0-9._-]{1,64}")]),
    ("identity-name-taken", &[("identities.host", "host is taken")]),
    ("identity-empty", &[("identities.none", "must not be empty")]),
    ("identity-type", &[("identities.none", "must be a list, is an object")]),
    ("identity-many", &[("identities.many", "must have at most 16 entries, has 17")]),
    (
        "source-none",
        &[(
            "identities.caller[0]",
            "must have exactly one of jwt, header, cookie, query, peer, metadata, client_ip, has none of them",
        )],
    ),
    ("source-two", &[("identities.caller[0]", "has jwt, client_ip")]),
    (
        "source-unknown",
        &[
            ("identities.caller[0]", "must have exactly one of"),
            ("identities.caller[0].client_ipp", r#"did you mean "client_ip"?"#),
        ],
    ),
    ("header-type", &[("identities.caller[0].header", "must be an object")]),
    ("header-name-missing", &[("identities.caller[0].header.name", "is required")]),
    ("header-name", &[("identities.caller[0].header.name", "must be a header name")]),
    ("header-secret", &[("identities.caller[0].header.secret", "must be true or false, is a string")]),
    ("client-ip-type", &[("identities.caller[0].client_ip", "must be an object, is null")]),
    (
        "client-ip-prefix-zero",
        &[("identities.caller[0].client_ip.ipv6_prefix", "must be a whole number from 1 to 128, is 0")],
    ),
    ("client-ip-prefix-long", &[("identities.caller[0].client_ip.ipv6_prefix", "is 129")]),
    ("jwt-none", &[("identities.caller[0].jwt", "must have exactly one of claim, claims")]),
    ("jwt-both", &[("identities.caller[0].jwt", "has claim, claims")]),
    ("jwt-claim-dots", &[("identities.caller[0].jwt.claim", "one dot between them")]),
    ("jwt-claim-long", &[("identities.caller[0].jwt.claim", "must be at most 128 bytes long")]),
    ("jwt-claims-empty", &[("identities.caller[0].jwt.claims", "must not be empty")]),
    (
        "jwt-claims-twice",
        &[("identities.caller[0].jwt.claims[2]", "is the same as identities.caller[0].jwt.claims[0]")],
    ),
    ("jwt-payload", &[("identities.caller[0].jwt.payload", "must not be empty")]),
    (
        "header-pseudo",
        &[
            ("identities.caller[0].header.name", "partition_by the name path"),
            ("identities.caller[1].header.name", "partition_by the name host"),
            ("identities.caller[2].header.name", "partition_by the name method"),
            ("identities.caller[3].header.name", "partition_by the name host"),
            ("identities.caller[4].header.name", "must be a header name of at most 128 bytes"),
        ],
    ),
    (
        "cookie-name",
        &[
            ("identities.caller[0].cookie.name", r#"must be a cookie name of at most 128 bytes, is "a b""#),
            ("identities.caller[1].cookie.name", "must be a cookie name"),
            ("identities.caller[2].cookie.name", "must be a cookie name"),
            ("identities.caller[3].cookie.name", "is required"),
        ],
    ),
    (
        "query-name",
        &[
            ("identities.caller[0].query.name", "must not be empty"),
            ("identities.caller[1].query.name", "must be at most 128 bytes long"),
            ("identities.caller[2].query.name", "is required"),
            ("identities.caller[2].query.secret", "must be true or false"),
        ],
    ),
    (
        "peer",
        &[
            ("identities.caller[0].peer", "must have exactly one of san, subject, has none of them"),
            ("identities.caller[1].peer", "has san, subject"),
            ("identities.caller[2].peer.san", r#"must be uri or dns, is "ip""#),
            ("identities.caller[3].peer.subject", "must be true: leave the whole source out instead"),
        ],
    ),
    (
        "metadata-required",
        &[
            ("identities.caller[0].metadata.filter", "is required"),
            ("identities.caller[0].metadata.path", "is required"),
            ("identities.caller[0].metadata.type", r#"must be string, number or boolean, is "text""#),
        ],
    ),
    (
        "metadata-path",
        &[
            ("identities.caller[0].metadata.path", "must not be empty"),
            ("identities.caller[1].metadata.path", "must be a list, is a string"),
            ("identities.caller[2].metadata.path[0]", "must be without control characters"),
            ("identities.caller[2].metadata.path[1]", "must not be empty"),
            ("identities.caller[3].metadata.path", "must have at most 16 entries, has 17"),
        ],
    ),
    (
        "metadata-filter",
        &[
            ("identities.caller[0].metadata.filter", "must not be empty"),
            ("identities.caller[1].metadata.filter", "must be at most 128 bytes long"),
        ],
    ),
    ("jwt-type", &[("identities.caller[0].jwt.type", "must be string, number or boolean")]),
    (
        "jwt-claim-list",
        &[
            ("identities.caller[0].jwt.claim", "must not be empty"),
            ("identities.caller[1].jwt.claim[1]", "must not be empty"),
            ("identities.caller[2].jwt.claim", "must be a string"),
            ("identities.caller[3].jwt.claims[1]", "is the same as identities.caller[3].jwt.claims[0]"),
            ("identities.caller[4].jwt.claim", "must be without control characters"),
        ],
    ),
    ("policies-type", &[("policies", "must be a list, is an object")]),
    ("policies-many", &[("policies", "must have at most 64 entries, has 65")]),
    ("policy-type", &[("policies[0]", "must be an object, is a string")]),
    (
        "policy-required",
        &[
            ("policies[0].name", "is required"),
            (
                "policies[0].partition_by",
                "is required: list who is counted, such as [caller]. [] is one counter for everybody",
            ),
            ("policies[0].quota", "is required"),
            ("policies[0].window", "is required"),
        ],
    ),
    ("policy-unknown-field", &[("policies[0].windows", r#"did you mean "window"?"#)]),
    ("policy-name", &[("policies[0].name", "must match [a-z0-9-]{1,64}")]),
    (
        "policy-name-twice",
        &[("policies[1].name", r#"must be unique, another policy is named "per-caller" as well"#)],
    ),
    ("match-type", &[("policies[0].match", "must be an object")]),
    ("match-methods-empty", &[("policies[0].match.methods", "must not be empty")]),
    (
        "match-method",
        &[
            ("policies[0].match.methods[1]", "must be a method in upper case such as GET"),
            ("policies[0].match.methods[2]", "must be a method"),
        ],
    ),
    (
        "match-path-none",
        &[("policies[0].match.path", "must have exactly one of exact, prefix, suffix, regex")],
    ),
    ("match-path-two", &[("policies[0].match.path", "has exact, prefix")]),
    ("match-path-exact", &[("policies[0].match.path.exact", "must begin with /")]),
    ("match-path-prefix", &[("policies[0].match.path.prefix", "must not be empty")]),
    ("match-path-query", &[("policies[0].match.path.suffix", "the query string is no part of the path")]),
    (
        "match-path-parameters",
        &[
            ("policies[0].match.path.exact", r#"must be without ;, is "/login;a""#),
            ("policies[1].match.path.prefix", "must be without ;"),
            ("policies[2].match.path.suffix", "must be without ;"),
        ],
    ),
    ("match-path-regex", &[("policies[0].match.path.regex", r#"must be a regular expression, is "/(a": "#)]),
    ("match-path-regex-long", &[("policies[0].match.path.regex", "must be at most 1024 bytes long")]),
    ("match-path-regex-huge", &[("policies[0].match.path.regex", "must be a regular expression")]),
    (
        "match-hosts",
        &[
            ("policies[0].match.hosts[0]", "must be a host without port"),
            ("policies[0].match.hosts[1]", "must be a host without port"),
            ("policies[0].match.hosts[2]", "must be a host without port"),
            ("policies[0].match.hosts[3]", "must be a host without port"),
            ("policies[0].match.hosts[4]", "must be a host without port"),
            ("policies[0].match.hosts[5]", "must be a host without port"),
            ("policies[0].match.hosts[6]", "must be a host without port"),
            ("policies[0].match.hosts[7]", "must be a host without port"),
        ],
    ),
    ("match-path-dots", &[("policies[0].match.path.suffix", "must be without segments . and ..")]),
    ("match-path-long", &[("policies[0].match.path.prefix", "must be at most 1024 bytes long")]),
    ("match-headers", &[("policies[0].match.headers", "must not be empty")]),
    ("match-headers-type", &[("policies[0].match.headers", "must be a list, is an object")]),
    ("match-headers-many", &[("policies[0].match.headers", "must have at most 64 entries, has 65")]),
    (
        "match-header-none",
        &[
            ("policies[0].match.headers[0]", "must have exactly one of exact, prefix, regex, present"),
            ("policies[0].match.headers[1].name", "is required"),
        ],
    ),
    ("match-header-two", &[("policies[0].match.headers[0]", "has exact, present")]),
    (
        "match-header-pseudo",
        &[
            ("policies[0].match.headers[0].name", "match has path for it"),
            ("policies[0].match.headers[1].name", "match has hosts for it"),
        ],
    ),
    (
        "match-header-value",
        &[
            ("policies[0].match.headers[0].exact", "must be without the spaces around it"),
            ("policies[0].match.headers[1].exact", "must be without the spaces around it"),
            ("policies[0].match.headers[2].prefix", "must be without the spaces around it"),
            ("policies[0].match.headers[3].exact", "must not be empty"),
            ("policies[0].match.headers[4].exact", "must be a string"),
            ("policies[0].match.headers[5].present", "must be true or false"),
            ("policies[0].match.headers[6].regex", "must be a regular expression"),
            ("policies[0].match.headers[7].exact", "must be at most 1024 bytes long"),
        ],
    ),
    ("match-routes", &[("policies[0].match.routes", "must not be empty")]),
    (
        "match-routes-name",
        &[
            ("policies[0].match.routes[1]", "must not be empty"),
            ("policies[0].match.routes[2]", "must be a string"),
        ],
    ),
    ("match-routes-twice", &[("policies[0].match.routes[2]", "is the same as policies[0].match.routes[0]")]),
    ("partition-by-type", &[("policies[0].partition_by", "must be a list, is a string")]),
    (
        "partition-by-unknown",
        &[("policies[0].partition_by[1]", r#"no identity is named "calller": did you mean "caller"?"#)],
    ),
    ("partition-by-twice", &[("policies[0].partition_by[2]", "is the same as policies[0].partition_by[0]")]),
    ("partition-by-many", &[("policies[0].partition_by", "must have at most 16 entries, has 17")]),
    ("on-missing", &[("policies[0].on_missing", r#"must be skip, deny or shared, is "allow""#)]),
    ("quota-negative", &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")]),
    ("quota-fraction", &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")]),
    ("quota-large", &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")]),
    ("quota-huge", &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")]),
    ("quota-text", &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")]),
    ("quota-blank", &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")]),
    (
        "window-unit",
        &[(
            "policies[0].window",
            r#"must be a duration of whole seconds from 1s to 366d, is "60": write for example 1m"#,
        )],
    ),
    (
        "window-number",
        &[(
            "policies[0].window",
            "must be a duration of whole seconds from 1s to 366d, is 60: write for example 1m",
        )],
    ),
    (
        "window-zero",
        &[(
            "policies[0].window",
            r#"must be a duration of whole seconds from 1s to 366d, is "0s": write for example 1m"#,
        )],
    ),
    (
        "window-fraction",
        &[(
            "policies[0].window",
            r#"must be a duration of whole seconds from 1s to 366d, is "1500ms": write for example 1m"#,
        )],
    ),
    (
        "window-long",
        &[(
            "policies[0].window",
            r#"must be a duration of whole seconds from 1s to 366d, is "367d": write for example 1m"#,
        )],
    ),
    (
        "window-two",
        &[(
            "policies[0].window",
            r#"must be a duration of whole seconds from 1s to 366d, is "1h30m": write for example 1m"#,
        )],
    ),
    ("mode", &[("policies[0].mode", r#"must be enforce, shadow or off, is "dry-run""#)]),
    ("mode-true", &[("policies[0].mode", "must be enforce, shadow or off, is true")]),
    ("cost-zero", &[("policies[0].cost", "must be a whole number from 1")]),
    ("count-word", &[("policies[0].count", r#"must be all, is "none""#)]),
    ("precision-word", &[("policies[0].precision", "must be exact or lease")]),
    ("stagger-type", &[("policies[0].stagger", "must be true or false")]),
    ("overrides-type", &[("policies[0].overrides", "must be a list")]),
    (
        "response-headers",
        &[("response.headers[1]", r#"must be ietf, x_ratelimit, draft_07 or draft_03, is "x-ratelimit""#)],
    ),
    (
        "response-headers-one-field",
        &[("response.headers", "ietf and draft_07 both write the field ratelimit: keep one of the two")],
    ),
    ("response-headers-twice", &[("response.headers[1]", "is the same as response.headers[0]")]),
    ("response-reset", &[("response.reset", "must be epoch or delta")]),
    (
        "response-denied",
        &[
            ("response.denied.status", "must be a whole number from 400 to 599, is 399"),
            ("response.denied.boddy", r#"did you mean "body"?"#),
        ],
    ),
    ("local-share-zero", &[("store.local_share", "must be a number above 0 and at most 1, is 0")]),
    ("local-share-large", &[("store.local_share", "must be a number above 0 and at most 1, is 1.5")]),
    ("local-share-type", &[("store.local_share", "must be a number above 0 and at most 1, is a string")]),
    ("token-empty", &[("store.token", "must not be empty")]),
    ("token-type", &[("store.token", "must be a string (in YAML, put it in quotes), is a number")]),
    ("token-long", &[("store.token", "must be at most 4096 bytes long")]),
    (
        "token-characters",
        &[("store.token", "must be a bearer token: letters, digits and -._~+/, and = only at its end")],
    ),
    ("token-padding", &[("store.token", "must be a bearer token")]),
    ("cost-type", &[("policies[0].cost", "must be a whole number from 1 to 9007199254740991, is a list")]),
    (
        "cost-none",
        &[
            ("policies[0].cost.header", "is required"),
            ("policies[0].cost.haeder", r#"did you mean "header"?"#),
        ],
    ),
    ("cost-header-type", &[("policies[0].cost.header", "must be an object, is a string")]),
    (
        "cost-header",
        &[
            ("policies[0].cost.header.name", "is required"),
            ("policies[0].cost.header.default", "must be a whole number from 1"),
            ("policies[0].cost.header.max", "must be a whole number from 1"),
            ("policies[0].cost.header.min", "unknown field"),
        ],
    ),
    (
        "cost-header-name",
        &[("policies[0].cost.header.name", r#"must be a header name of at most 128 bytes, is ":path""#)],
    ),
    (
        "cost-header-default",
        &[("policies[0].cost.header.default", "must be at most max, which is 10, is 11")],
    ),
    ("count-type", &[("policies[0].count", "must be all or {status: [..], grpc_status: [..]}, is a list")]),
    ("count-status-none", &[("policies[0].count", "must list a status or grpc_status that counts")]),
    ("count-status-empty", &[("policies[0].count", "must list a status or grpc_status that counts")]),
    ("count-status-twice", &[("policies[0].count.status[2]", "is the same as policies[0].count.status[0]")]),
    (
        "count-grpc-status",
        &[
            ("policies[0].count.grpc_status[1]", "must be a whole number from 0 to 16, is 17"),
            ("policies[0].count.grpc_status[2]", "is a string"),
            ("policies[0].count.abandoned", r#"must be count or refund, is "ignore""#),
        ],
    ),
    (
        "count-status",
        &[
            ("policies[0].count.status[0]", "must be a whole number from 100 to 599, is 99"),
            ("policies[0].count.status[1]", "is 600"),
            ("policies[0].count.status[2]", "is a string"),
        ],
    ),
    ("lease-exact", &[("policies[0].lease", "means nothing without precision: lease")]),
    ("lease-exact-said", &[("policies[0].lease", "means nothing without precision: lease")]),
    (
        "lease-bounds",
        &[
            (
                "policies[0].lease.ahead",
                r#"must be a duration from 1ms to 60s, is "61s": write for example 100ms"#,
            ),
            ("policies[0].lease.max", "must be a whole number from 1"),
            ("policies[0].lease.aheda", r#"did you mean "ahead"?"#),
        ],
    ),
    ("lease-type", &[("policies[0].lease", "must be an object, is a string")]),
    ("count-denied-lease", &[("policies[0].count_denied", "cannot be with precision: lease")]),
    ("count-denied-status", &[("policies[0].count_denied", "cannot be with count: {status: ..}")]),
    ("count-denied-type", &[("policies[0].count_denied", "must be true or false, is a string")]),
    ("policy-on-failure", &[("policies[0].on_failure", r#"must be allow, deny or local, is "open""#)]),
    (
        "quota-from-none",
        &[("policies[0].quota_from", "must have exactly one of jwt, metadata, peer, has none of them")],
    ),
    (
        "quota-from-header",
        &[("policies[0].quota_from.header", "must be jwt, metadata or peer: anybody can write this one")],
    ),
    (
        "quota-from-max",
        &[
            ("policies[0].quota_from.max", "must be a whole number from 0 to 9007199254740991, is -1"),
            ("policies[0].quota_from.mxa", r#"did you mean "max"?"#),
        ],
    ),
    (
        "quota-from-boolean",
        &[("policies[0].quota_from", "must be a number or a string of digits: true and false are no quota")],
    ),
    ("quota-from-type", &[("policies[0].quota_from", "must be an object, is a number")]),
    (
        "tiers-none",
        &[
            ("policies[0].tiers.source", "is required"),
            ("policies[0].tiers.quotas", "is required"),
            ("policies[0].tiers.quota", r#"did you mean "quotas"?"#),
        ],
    ),
    (
        "tiers-source-header",
        &[("policies[0].tiers.source.header", "must be jwt, metadata or peer: anybody can write this one")],
    ),
    (
        "tiers-source-unknown",
        &[
            ("policies[0].tiers.source.jtw", r#"did you mean "jwt"?"#),
            ("policies[0].tiers.source", "must have exactly one of"),
        ],
    ),
    ("tiers-quotas-empty", &[("policies[0].tiers.quotas", "must not be empty")]),
    (
        "tiers-quotas",
        &[
            ("policies[0].tiers.quotas.free", "must be a whole number from 0 to 9007199254740991, is -1"),
            ("policies[0].tiers.quotas.gold", "is a string"),
            (r#"policies[0].tiers.quotas[""]"#, "the name of a tier must be 1 to 128 bytes long"),
        ],
    ),
    (
        "tiers-number",
        &[
            (
                r#"policies[0].tiers.quotas["1.0"]"#,
                "no tier can be named so: the source is a number, and this one is written 1",
            ),
            ("policies[0].tiers.quotas.one", "no tier can be named so: the source is a number"),
        ],
    ),
    (
        "tiers-boolean",
        &[("policies[0].tiers.quotas.yes", "no tier can be named so: the source is true or false")],
    ),
    ("overrides-everybody", &[("policies[0].overrides", "means nothing without partition_by")]),
    ("overrides-many", &[("policies[0].overrides", "must have at most 1024 entries, has 1025")]),
    (
        "override-none",
        &[
            ("policies[0].overrides[0]", "must have exactly one of value, network, has none of them"),
            ("policies[0].overrides[0]", "must have exactly one of quota, unlimited, has none of them"),
        ],
    ),
    (
        "override-two",
        &[
            ("policies[0].overrides[0]", "has value, network"),
            ("policies[0].overrides[0]", "has quota, unlimited"),
        ],
    ),
    (
        "override-values",
        &[
            ("policies[0].overrides[0].value", "must not be empty"),
            ("policies[0].overrides[1].value", "must be a string (in YAML, put it in quotes), is a number"),
            ("policies[0].overrides[2].quota", "must be a whole number from 0"),
            (
                "policies[0].overrides[3].unlimited",
                "must be true: leave the override out, or give it a quota, is false",
            ),
            ("policies[0].overrides[4].unlimited", "must be true or false"),
            ("policies[0].overrides[5].valeu", r#"did you mean "value"?"#),
            ("policies[0].overrides[5]", "must have exactly one of value, network"),
        ],
    ),
    (
        "override-twice",
        &[
            ("policies[0].overrides[1].value", "is the same partition as in policies[0].overrides[0]"),
            ("policies[0].overrides[2].value", "is the same partition as in policies[0].overrides[0]"),
        ],
    ),
    (
        "override-address",
        &[("policies[0].overrides[0].value", "must be an address such as 192.0.2.7 or 2001:db8::1")],
    ),
    (
        "override-network",
        &[
            (
                "policies[0].overrides[0].network",
                r#"must be a network in its one spelling: write 10.0.0.0/8 for "10.1.2.3/8""#,
            ),
            ("policies[0].overrides[1].network", r#"write 10.0.0.0/8 for "::ffff:10.0.0.0/104""#),
            (
                "policies[0].overrides[2].network",
                r#"must be a network such as 10.0.0.0/8 or 2001:db8::/32, is "10.0.0.0/33""#,
            ),
            ("policies[0].overrides[4].network", "is the same network as in policies[0].overrides[3]"),
        ],
    ),
    (
        "override-network-nobody",
        &[(
            "policies[0].overrides[0].network",
            "matches nobody: partition_by holds no identity with a client_ip source",
        )],
    ),
    (
        "override-encoded",
        &[
            (
                "policies[0].overrides[0].value",
                "must be a partition of this policy in its encoded form, such as jwt.iss=value,jwt.sub=value,method=value",
            ),
            (
                "policies[0].overrides[1].value",
                "must be a partition of this policy in its encoded form, such as jwt.iss=value,jwt.sub=value,method=value",
            ),
            (
                "policies[0].overrides[2].value",
                "must be a partition of this policy in its encoded form, such as jwt.iss=value,jwt.sub=value,method=value",
            ),
            (
                "policies[0].overrides[3].value",
                "must be a partition of this policy in its encoded form, such as jwt.iss=value,jwt.sub=value,method=value",
            ),
            (
                "policies[0].overrides[4].value",
                "must be a partition of this policy in its encoded form, such as jwt.iss=value,jwt.sub=value,method=value",
            ),
            (
                "policies[0].overrides[5].value",
                "must be a partition of this policy in its encoded form, such as jwt.iss=value,jwt.sub=value,method=value",
            ),
        ],
    ),
    (
        "override-spelling",
        &[
            (
                "policies[0].overrides[0].value",
                "must be in its one spelling: for jwt.sub=max m write jwt.sub=max%20m",
            ),
            ("policies[0].overrides[1].value", "write jwt.sub=a"),
            ("policies[0].overrides[2].value", "write jwt.sub=%C3%A4"),
            ("policies[0].overrides[3].value", "for jwt.sub= a value is missing"),
            ("policies[0].overrides[4].value", "write ip=2001:db8::/64"),
            ("policies[0].overrides[5].value", "must be a partition of this policy"),
            ("policies[0].overrides[6].value", "write method=GET"),
        ],
    ),
    (
        "override-secret",
        &[(
            "policies[0].overrides[0].value",
            "must have the digest of the secret after header.x-api-key=: ~ and 32 hexadecimal digits",
        )],
    ),
    ("denied-type", &[("response.denied", "must be an object, is a number")]),
    ("denied-status", &[("response.denied.status", "must be a whole number from 400 to 599, is 600")]),
    (
        "denied-content-type",
        &[(
            "response.denied.content_type",
            r#"must be a media type such as application/json or text/html; charset=utf-8, is "html""#,
        )],
    ),
    (
        "denied-content-type-alone",
        &[(
            "response.denied.content_type",
            "must be application/json or end with +json where no body is given",
        )],
    ),
    ("denied-body-type", &[("response.denied.body", "must be a string, is an object")]),
    ("denied-body-long", &[("response.denied.body", "must be at most 65536 bytes long")]),
    (
        "denied-body-json",
        &[(
            "response.denied.body",
            "must be JSON once its placeholders are filled in, as content_type is application/vnd.shop+JSON; v=1",
        )],
    ),
    ("denied-body-empty", &[("response.denied.body", "must be JSON once")]),
    ("denied-headers-type", &[("response.denied.headers", "must be an object, is a list")]),
    ("denied-headers-many", &[("response.denied.headers", "must have at most 32 entries, has 33")]),
    (
        "denied-header-names",
        &[
            (
                r#"response.denied.headers[":status"]"#,
                "the name must be one of a header, of at most 128 bytes",
            ),
            (r#"response.denied.headers["a b"]"#, "the name must be one of a header"),
            ("response.denied.headers.Content-Type", "is set by content_type"),
            ("response.denied.headers.connection", "is Envoy's own to set"),
            ("response.denied.headers.Content-Length", "is Envoy's own to set"),
            ("response.denied.headers.Retry-After", "is set by the filter itself"),
            ("response.denied.headers.X-RateLimit-Limit", "is set by the filter itself"),
            ("response.denied.headers.ratelimit", "is set by the filter itself"),
            ("response.denied.headers.grpc-status", "is set by the filter itself"),
        ],
    ),
    (
        "denied-header-values",
        &[
            ("response.denied.headers.a", "must not be empty"),
            ("response.denied.headers.b", "must be a string (in YAML, put it in quotes), is a number"),
            ("response.denied.headers.c", "must be visible ASCII characters, with spaces only between them"),
            ("response.denied.headers.d", "must be visible ASCII"),
            ("response.denied.headers.e", "must be visible ASCII"),
            ("response.denied.headers.f", "must be at most 1024 bytes long"),
        ],
    ),
    ("denied-header-twice", &[("response.denied.headers.x-a", "is given twice")]),
    (
        "many-at-once",
        &[
            ("domain", "must match"),
            ("store.cluster", "is required"),
            ("identities.key[0].header.name", "is required"),
            ("identities.key[0].header.nmae", r#"did you mean "name"?"#),
            ("identities.key[1].client_ip.ipv6_prefix", "must be a whole number"),
            ("policies[0].window", "must be a duration"),
            ("policies[1].quota", "must be a whole number"),
            ("policies[1].burst", "unknown field"),
        ],
    ),
];
