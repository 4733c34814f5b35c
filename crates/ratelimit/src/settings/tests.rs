use super::*;
use crate::xds::Backoff;

fn read(variables: &[(&str, &str)]) -> Result<(Settings, Vec<Remark>), Vec<Remark>> {
    let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Settings::read(owned)
}

fn settings(variables: &[(&str, &str)]) -> Settings {
    read(variables).unwrap().0
}

#[test]
fn without_variables_the_settings_are_those_of_the_original() {
    let found = settings(&[]);
    assert_eq!(found.grpc, "0.0.0.0:8081");
    assert_eq!(found.http, "0.0.0.0:8080");
    assert_eq!(found.debug, "0.0.0.0:6070");
    assert_eq!(found.metrics, None);
    let RuleSource::Folder(folder) = found.rules else { panic!("{:?}", found.rules) };
    assert_eq!(folder.path, PathBuf::from("/srv/runtime_data/current/config"));
    assert!(!folder.ignores_dot_files && folder.shared == SharedDomains::Refuse);
    assert_eq!(found.health, HealthNeeds { rules: true, store: true });
    assert_eq!((found.grpc_tls, found.grpc_age), (None, Some(AGE)));
    assert!(found.answers.headers.is_none() && !found.answers.metadata);
    assert!(!found.answers.shadow_mode && !found.answers.quota_mode);
    assert!((found.answers.near_limit - 0.8).abs() < 1e-9);
    assert_eq!((found.store, found.sentinel_login), (None, None));
    assert_eq!((found.log, found.log_format), ("info", LogFormat::Text));
}

#[test]
fn variables_of_redis_become_a_store_url() {
    for (variables, url) in [
        (&[("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "r:6379")][..], "redis://r:6379"),
        (&[("REDIS_URL", "/run/redis.sock")], "redis+unix:///run/redis.sock"),
        (
            &[("REDIS_URL", "r:1"), ("REDIS_TLS", "t"), ("REDIS_AUTH", "me:p@ss/:w")],
            "rediss://me:p%40ss%2F%3Aw@r:1",
        ),
        (&[("REDIS_URL", "r:1"), ("REDIS_AUTH", "secret")], "redis://:secret@r:1"),
        (&[("REDIS_URL", "redis://u:p@r:1")], "redis://u:p@r:1"),
        (&[("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "CLUSTER")], "redis-cluster://a:1,b:2"),
        (&[("REDIS_URL", "redis://r:1/3")], "redis://r:1/3"),
        (&[("REDIS_URL", "redis://r:1?db=3")], "redis://r:1/3"),
        (&[("REDIS_URL", "redis://r:1/?username=u&password=p%40s&db=2")], "redis://u:p%40s@r:1/2"),
        (&[("REDIS_URL", "redis://u:p%40s@r:1/1?password=other&db=2")], "redis://u:p%40s@r:1/1"),
        (&[("REDIS_URL", "redis://:p@r:1"), ("REDIS_AUTH", "secret")], "redis://:secret@r:1"),
        (&[("REDIS_URL", "redis://:1")], "redis://127.0.0.1:1"),
        (&[("REDIS_URL", " r:1, ")], "redis://r:1"),
        (
            &[
                ("REDIS_URL", "redis://:p@a:1, redis://b:2 ,rediss://c:3/0,"),
                ("REDIS_TYPE", "cluster"),
            ],
            "rediss-cluster://:p@a:1,b:2,c:3",
        ),
        (
            &[("REDIS_URL", "main,redis://u:p@s1:1,redis://s2:2"), ("REDIS_TYPE", "SENTINEL")],
            "redis-sentinel://s1:1,s2:2/main",
        ),
        (
            &[("REDIS_URL", "main,s1:1,s2:2"), ("REDIS_TYPE", "SENTINEL")],
            "redis-sentinel://s1:1,s2:2/main",
        ),
        (
            &[
                ("REDIS_URL", "r:1"),
                ("REDIS_TLS", "true"),
                ("REDIS_TLS_CLIENT_CERT", "/c/tls.crt"),
                ("REDIS_TLS_CLIENT_KEY", "/c/tls.key"),
            ],
            "rediss://r:1?client_cert=%2Fc%2Ftls%2Ecrt&client_key=%2Fc%2Ftls%2Ekey",
        ),
        (
            &[("REDIS_URL", "r:1"), ("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "/c/ca.crt")],
            "rediss://r:1?ca_cert=%2Fc%2Fca%2Ecrt",
        ),
    ] {
        let StoreText(found) = settings(variables).store.unwrap();
        assert_eq!(found, url);
        let parsed: Result<quotagate_store::url::StoreUrl, _> = found.parse();
        assert!(parsed.is_ok(), "{found}");
    }
}

#[test]
fn logins_in_urls_of_sentinels_are_theirs() {
    for (auth, url, expected) in [
        ("", "main,redis://s1", None),
        ("", "main,redis://u:p%3A@s1,redis://x:y@s2", Some((Some("u"), "p:"))),
        ("", "main,redis://:a%3Ab@s1", Some((None, "a:b"))),
        ("", "main,redis://s1?password=p", Some((None, "p"))),
        ("me:secret", "main,redis://u:p@s1", Some((Some("me"), "secret"))),
        ("secret", "main,redis://u:p@s1", Some((None, "secret"))),
    ] {
        let variables =
            [("REDIS_TYPE", "sentinel"), ("REDIS_URL", url), ("REDIS_SENTINEL_AUTH", auth)];
        let found = settings(&variables).sentinel_login;
        let found = found.as_ref().map(|(user, StoreText(text))| (user.as_deref(), text.as_str()));
        assert_eq!(found, expected, "{url}");
    }
}

#[test]
fn folder_is_joined_as_go_joins() {
    for (root, sub, app, expected) in [
        ("", "", "", "/srv/runtime_data/current/config"),
        ("/r", "/s", "", "/r/s/config"),
        ("/r/", "s/", "/etc/config", "/r/s/etc/config"),
        ("/r", "s", "//a/b", "/r/s/a/b"),
    ] {
        let variables =
            [("RUNTIME_ROOT", root), ("RUNTIME_SUBDIRECTORY", sub), ("RUNTIME_APPDIRECTORY", app)];
        let RuleSource::Folder(folder) = settings(&variables).rules else { panic!() };
        assert_eq!(folder.path, PathBuf::from(expected));
        assert!(folder.siblings);
    }
    for (watch, siblings) in [("true", true), ("0", false)] {
        let RuleSource::Folder(folder) = settings(&[("RUNTIME_WATCH_ROOT", watch)]).rules else {
            panic!()
        };
        assert_eq!(folder.siblings, siblings, "{watch}");
    }
}

#[test]
fn service_waits_for_rules_unless_it_is_forced_to_start_without_those_of_a_server() {
    let (server, force) =
        (("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"));
    for (variables, waits) in
        [(&[][..], true), (&[force], true), (&[server], true), (&[server, force], false)]
    {
        assert_eq!(settings(variables).waits_for_rules, waits, "{variables:?}");
    }
}

#[test]
fn wrong_variables_are_all_named_with_their_remedies() {
    let faults = read(&[
        ("PORT", "http"),
        ("SHADOW_MODE", "yes"),
        ("BACKEND_TYPE", "memcache"),
        ("CONFIG_TYPE", "xds"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "https://gateway:18001"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-ok:1,bad name:hidden,hidden"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/c/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "2"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "-1"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_CLIENT_TLS_SAN", "envoy"),
        ("NEAR_LIMIT_RATIO", "80"),
        ("LOG_FORMAT", "xml"),
        ("LOG_LEVEL", "loud"),
        ("REDIS_URL", "main"),
        ("REDIS_TYPE", "sentinel"),
    ])
    .unwrap_err();
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    for begin in [
        "PORT: must be a port",
        "SHADOW_MODE: must be true or false, is \"yes\"",
        "BACKEND_TYPE: must be redis",
        "CONFIG_TYPE: must be one of FILE, GRPC_XDS_SOTW, is \"xds\"",
        "CONFIG_GRPC_XDS_SERVER_URL: must be host:port, without scheme",
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: must be pairs such as name:value",
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS: must be names and values of headers",
        "CONFIG_GRPC_XDS_CLIENT_TLS_CERT: is required beside CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
        "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL: must be a duration",
        "XDS_CLIENT_BACKOFF_RANDOM_FACTOR: must be a number from 0 to 1, is \"2\"",
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES: must be a number from 0 to",
        "GRPC_SERVER_TLS_CERT: is required with TLS",
        "GRPC_CLIENT_TLS_CACERT: is required beside GRPC_CLIENT_TLS_SAN",
        "NEAR_LIMIT_RATIO: must be a number from 0 to 1",
        "LOG_FORMAT: must be one of text, json",
        "LOG_LEVEL: must be one of info, warn",
        "REDIS_URL: must be the name of the primary",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(begin)), "{begin}: {lines:#?}");
    }
    assert_eq!(lines.len(), 17, "{lines:#?}");
    assert!(!lines.concat().contains("hidden"), "{lines:#?}");
    assert!(read(&[("GRPC_SERVER_USE_TLS", "0"), ("BACKEND_TYPE", "Redis")]).is_ok());
}

#[test]
fn variables_without_effect_and_mistyped_ones_are_named() {
    let remarks = |variables: &[(&str, &str)]| -> Vec<String> {
        read(variables).unwrap().1.iter().map(ToString::to_string).collect()
    };
    let found = remarks(&[
        ("REDIS_POOL_SIZE", "20"),
        ("USE_PROMETEUS", "true"),
        ("PATH", "/bin"),
        ("CONFIG_GRPC_XDS_NODE_ID", "node"),
        ("GRPC_SERVER_TLS_CERT", "/tls.crt"),
        ("GRPC_SERVER_USE_TLS", "false"),
    ]);
    let found: Vec<_> = ["REDIS", "USE", "CONFIG", "GRPC"]
        .map(|begin| found.iter().find(|line| line.starts_with(begin)).cloned().unwrap())
        .into();
    assert!(found[0].starts_with("REDIS_POOL_SIZE: has no effect: "), "{found:?}");
    assert_eq!(found[1], "USE_PROMETEUS: is not read: did you mean USE_PROMETHEUS?");
    let without = "has no effect without";
    assert_eq!(found[2], format!("CONFIG_GRPC_XDS_NODE_ID: {without} CONFIG_TYPE=GRPC_XDS_SOTW"));
    assert_eq!(found[3], format!("GRPC_SERVER_TLS_CERT: {without} GRPC_SERVER_USE_TLS=true"));
    assert!(remarks(&[("USE_STATSD", "false"), ("STATSD_HOST", "")]).is_empty());
}

#[test]
fn passwords_are_never_shown() {
    let variables =
        [("REDIS_URL", "r:1"), ("REDIS_AUTH", "hidden"), ("REDIS_PERSECOND_AUTH", "hidden")];
    let (settings, remarks) = read(&variables).unwrap();
    assert!(!format!("{settings:?} {remarks:?}").contains("hidden"));
    let (settings, remarks) = read(&[
        ("REDIS_SENTINEL_AUTH", "hidden"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "authorization:hidden"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ])
    .unwrap();
    assert!(!format!("{settings:?} {remarks:?}").contains("hidden"));
}

#[test]
fn variables_of_xds_and_tls_are_read() {
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///gateway:18001"),
        ("CONFIG_GRPC_XDS_NODE_ID", "node"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a, rack=b=c"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-a:1:2,x-b: 3"),
        ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "1m30s"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "t"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/c/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/c/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/c/ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "gateway.example"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "5s"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "10s"),
        ("XDS_CLIENT_BACKOFF_JITTER", "false"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "1000"),
        ("MERGE_DOMAIN_CONFIG", "true"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/s/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/s/tls.key"),
        ("GRPC_CLIENT_TLS_CACERT", "/s/ca.crt"),
        ("GRPC_CLIENT_TLS_SAN", "envoy.example"),
        ("GRPC_MAX_CONNECTION_AGE", "0"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("NEAR_LIMIT_RATIO", "0.5"),
        ("LOG_FORMAT", "json"),
        ("REDIS_TYPE", "sentinel"),
        ("REDIS_SENTINEL_AUTH", "me:secret"),
    ];
    let (found, remarks) = read(&variables).unwrap();
    assert!(remarks.is_empty(), "{remarks:?}");
    let RuleSource::Xds(xds) = found.rules else { panic!("{:?}", found.rules) };
    assert_eq!((&*xds.server, &*xds.node), ("gateway:18001", "node"));
    assert_eq!(xds.metadata.values().collect::<Vec<_>>(), ["b=c", "a"]);
    assert_eq!(xds.headers.get("x-a").unwrap(), "1:2");
    assert_eq!(xds.headers.len(), 2);
    assert_eq!((xds.retry, xds.max_message), (Duration::from_secs(90), 1000));
    let (first, longest) = (Duration::from_secs(5), Duration::from_secs(10));
    assert_eq!(xds.backoff, Backoff { first, longest, jitter: 0.0 });
    assert_eq!(xds.shared, SharedDomains::Merge);
    let files = |folder: &str, peer: &str| TlsFiles {
        own: Some((format!("{folder}/tls.crt").into(), format!("{folder}/tls.key").into())),
        authority: Some(format!("{folder}/ca.crt").into()),
        peer: Some(peer.to_owned()),
    };
    assert_eq!(xds.tls, Some(files("/c", "gateway.example")));
    assert_eq!(found.grpc_tls, Some(files("/s", "envoy.example")));
    assert_eq!(found.grpc_age, None);
    assert_eq!(found.health, HealthNeeds { rules: false, store: false });
    assert!((found.answers.near_limit - 0.5).abs() < 1e-9);
    assert_eq!(found.log_format, LogFormat::Json);
    assert_eq!(found.sentinel_login, Some((Some("me".to_owned()), StoreText("secret".to_owned()))));
}

#[test]
fn health_needs_what_the_variables_say() {
    let start = ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
    let loaded = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let active = |value| ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", value);
    for (variables, rules, store) in [
        (&[start, loaded][..], true, false),
        (&[start, active("true")], false, true),
        (&[active("false")], true, false),
    ] {
        assert_eq!(settings(variables).health, HealthNeeds { rules, store }, "{variables:?}");
    }
}

#[test]
fn each_variable_of_the_original_has_a_fate() {
    let mut names: Vec<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
    names.sort_unstable();
    assert_eq!(names, OF_THE_ORIGINAL);
}

/// The names in the original's `settings.go`, as of f2fb157.
const OF_THE_ORIGINAL: [&str; 114] = [
    "BACKEND_TYPE",
    "CACHE_KEY_PREFIX",
    "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
    "CONFIG_GRPC_XDS_NODE_ID",
    "CONFIG_GRPC_XDS_NODE_METADATA",
    "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
    "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
    "CONFIG_GRPC_XDS_SERVER_URL",
    "CONFIG_GRPC_XDS_SERVER_USE_TLS",
    "CONFIG_TYPE",
    "DEBUG_HOST",
    "DEBUG_PORT",
    "DISABLE_STATS",
    "EXPIRATION_JITTER_MAX_SECONDS",
    "EXTRA_TAGS",
    "FORCE_START_WITHOUT_INITIAL_CONFIG",
    "GRPC_CLIENT_TLS_CACERT",
    "GRPC_CLIENT_TLS_SAN",
    "GRPC_HOST",
    "GRPC_MAX_CONNECTION_AGE",
    "GRPC_MAX_CONNECTION_AGE_GRACE",
    "GRPC_PORT",
    "GRPC_SERVER_TLS_CERT",
    "GRPC_SERVER_TLS_KEY",
    "GRPC_SERVER_USE_TLS",
    "GRPC_UDS",
    "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
    "HOST",
    "LIMIT_LIMIT_HEADER",
    "LIMIT_REMAINING_HEADER",
    "LIMIT_RESET_HEADER",
    "LIMIT_RESPONSE_HEADERS_ENABLED",
    "LOCAL_CACHE_SIZE_IN_BYTES",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "MEMCACHE_HOST_PORT",
    "MEMCACHE_MAX_IDLE_CONNS",
    "MEMCACHE_SRV",
    "MEMCACHE_SRV_REFRESH",
    "MEMCACHE_TLS",
    "MEMCACHE_TLS_CACERT",
    "MEMCACHE_TLS_CLIENT_CERT",
    "MEMCACHE_TLS_CLIENT_KEY",
    "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
    "MERGE_DOMAIN_CONFIG",
    "NEAR_LIMIT_RATIO",
    "PORT",
    "PROMETHEUS_ADDR",
    "PROMETHEUS_MAPPER_YAML",
    "PROMETHEUS_PATH",
    "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
    "QUOTA_MODE",
    "REDIS_AUTH",
    "REDIS_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
    "REDIS_PERSECOND",
    "REDIS_PERSECOND_AUTH",
    "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
    "REDIS_PERSECOND_PIPELINE_LIMIT",
    "REDIS_PERSECOND_PIPELINE_WINDOW",
    "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_PERSECOND_POOL_SIZE",
    "REDIS_PERSECOND_SENTINEL_AUTH",
    "REDIS_PERSECOND_SOCKET_TYPE",
    "REDIS_PERSECOND_TIMEOUT",
    "REDIS_PERSECOND_TLS",
    "REDIS_PERSECOND_TYPE",
    "REDIS_PERSECOND_URL",
    "REDIS_PIPELINE_LIMIT",
    "REDIS_PIPELINE_WINDOW",
    "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    "REDIS_POOL_SIZE",
    "REDIS_SENTINEL_AUTH",
    "REDIS_SOCKET_TYPE",
    "REDIS_STARTUP_INITIAL_INTERVAL",
    "REDIS_STARTUP_MAX_ELAPSED_TIME",
    "REDIS_STARTUP_MAX_INTERVAL",
    "REDIS_TIMEOUT",
    "REDIS_TLS",
    "REDIS_TLS_CACERT",
    "REDIS_TLS_CLIENT_CERT",
    "REDIS_TLS_CLIENT_KEY",
    "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
    "REDIS_TYPE",
    "REDIS_URL",
    "RESPONSE_DYNAMIC_METADATA",
    "RUNTIME_APPDIRECTORY",
    "RUNTIME_IGNOREDOTFILES",
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
    "RUNTIME_WATCH_ROOT",
    "SHADOW_MODE",
    "STATSD_HOST",
    "STATSD_PORT",
    "STATS_FLUSH_INTERVAL",
    "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
    "TRACING_ENABLED",
    "TRACING_EXPORTER_PROTOCOL",
    "TRACING_SAMPLING_RATE",
    "TRACING_SERVICE_INSTANCE_ID",
    "TRACING_SERVICE_NAME",
    "TRACING_SERVICE_NAMESPACE",
    "USE_DOG_STATSD",
    "USE_DOG_STATSD_MOGRIFIERS",
    "USE_PROMETHEUS",
    "USE_STATSD",
    "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
    "XDS_CLIENT_BACKOFF_JITTER",
    "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
    "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
    "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
];
