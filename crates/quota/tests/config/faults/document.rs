//! Faults of the document and the store.

use super::Expected;

/// All faults of each file under `bad`.
pub const BAD: &[(&str, &[Expected])] = &[
    ("field-twice", &[("configuration", "must be JSON: the field \"policies\" is given twice")]),
    ("not-json", &[("configuration", "must be JSON: ")]),
    ("empty", &[("configuration", "must be JSON: ")]),
    ("not-an-object", &[("configuration", "must be an object, is a list")]),
    (
        "nothing-required",
        &[("domain", "is required"), ("store", "is required"), ("policies", "is required")],
    ),
    ("unknown-field", &[("polcies", r#"unknown field: did you mean "policies"?"#)]),
    (
        "unknown-field-far",
        &[(
            "store.retries",
            "unknown field: known are timeout, on_failure, local_share, token, password_file, prefix, cluster, redis",
        )],
    ),
    ("unknown-field-strange-name", &[(r#"["a.b\nc"]"#, "unknown field")]),
    ("domain-characters", &[("domain", r#"must match [a-z0-9._-]{1,64}, is "Shop""#)]),
    ("domain-empty", &[("domain", "must match")]),
    ("domain-long", &[("domain", "must match")]),
    ("domain-type", &[("domain", "must be a string (in YAML, put it in quotes), is a number")]),
    ("store-type", &[("store", "must be an object, is a string")]),
    ("cluster-missing", &[("store", "must have exactly one of cluster, redis, has none of them")]),
    ("cluster-empty", &[("store.cluster", "must not be empty")]),
    (
        "cluster-password-file",
        &[
            ("store.password_file", "belongs to redis: with cluster, give it to `quotagate serve`"),
            ("store.prefix", "belongs to redis: with cluster, give it to `quotagate serve`"),
        ],
    ),
    ("store-both", &[("store", "must have exactly one of cluster, redis, has cluster, redis")]),
    ("redis-empty", &[("store.redis", "must not be empty")]),
    ("redis-type", &[("store.redis", "must be a string, is a list")]),
    (
        "redis-scheme",
        &[("store.redis", "must be a store URL, which begins with memory:, redis://")],
    ),
    ("redis-memory", &[("store.redis", "must be a store URL, which begins with memory:")]),
    ("redis-token", &[("store.token", "belongs to cluster, since `quotagate serve` checks it")]),
    ("password-file-empty", &[("store.password_file", "must not be empty")]),
    ("password-file-type", &[("store.password_file", "must be a string")]),
    ("prefix-characters", &[("store.prefix", "must match [A-Za-z0-9._-]{1,64}")]),
    ("prefix-long", &[("store.prefix", "must match")]),
    ("prefix-type", &[("store.prefix", "must be a string")]),
    (
        "timeout-zero",
        &[(
            "store.timeout",
            r#"must be a duration from 1ms to 60s, is "0ms": write for example 50ms"#,
        )],
    ),
    ("timeout-long", &[("store.timeout", "must be a duration from 1ms to 60s")]),
    ("timeout-number", &[("store.timeout", "is 50: write for example 50ms")]),
    ("on-failure-word", &[("store.on_failure", r#"must be allow, deny or local, is "open""#)]),
    ("on-failure-type", &[("store.on_failure", "must be allow, deny or local, is true")]),
    (
        "access-log",
        &[
            ("access_log[1]", r#"must be decision, policy, partition or used, is "outcome""#),
            ("access_log[2]", "must be decision, policy, partition or used, is a number"),
        ],
    ),
    ("access-log-twice", &[("access_log[2]", "is the same as access_log[0]")]),
    ("access-log-type", &[("access_log", "must be a list, is false")]),
    ("on-wrong-document", &[("on_wrong_document", r#"must be keep or reject, is "ignore""#)]),
    ("digest-key-empty", &[("digest_key", "must not be empty")]),
    (
        "digest-key-type",
        &[("digest_key", "must be a string (in YAML, put it in quotes), is a number")],
    ),
    ("local-share-zero", &[("store.local_share", "must be a number above 0 and at most 1, is 0")]),
    (
        "local-share-large",
        &[("store.local_share", "must be a number above 0 and at most 1, is 1.5")],
    ),
    (
        "local-share-type",
        &[("store.local_share", "must be a number above 0 and at most 1, is a string")],
    ),
    ("token-empty", &[("store.token", "must not be empty")]),
    ("token-type", &[("store.token", "must be a string (in YAML, put it in quotes), is a number")]),
    ("token-long", &[("store.token", "must be at most 4096 bytes long")]),
    (
        "token-characters",
        &[(
            "store.token",
            "must be a bearer token: letters, digits and -._~+/, and = only at its end",
        )],
    ),
    ("token-padding", &[("store.token", "must be a bearer token")]),
    (
        "many-at-once",
        &[
            ("domain", "must match"),
            ("store", "must have exactly one of cluster, redis"),
            ("identities.key[0].header.name", "is required"),
            ("identities.key[0].header.nmae", r#"did you mean "name"?"#),
            ("identities.key[1].client_ip.ipv6_prefix", "must be a whole number"),
            ("policies[0].window", "must be a duration"),
            ("policies[1].quota", "must be a whole number"),
            ("policies[1].burst", "unknown field"),
        ],
    ),
];
