//! Faults of costs, counting and leases.

use super::Expected;

/// All faults of each file under `bad`.
pub const BAD: &[(&str, &[Expected])] = &[
    ("cost-zero", &[("policies[0].cost", "must be a whole number from 1")]),
    ("count-word", &[("policies[0].count", r#"must be all, is "none""#)]),
    ("precision-word", &[("policies[0].precision", "must be exact or lease")]),
    (
        "cost-type",
        &[("policies[0].cost", "must be a whole number from 1 to 9007199254740991, is a list")],
    ),
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
        &[(
            "policies[0].cost.header.name",
            r#"must be a header name of at most 128 bytes, is ":path""#,
        )],
    ),
    (
        "cost-header-default",
        &[("policies[0].cost.header.default", "must be at most max, which is 10, is 11")],
    ),
    (
        "count-type",
        &[("policies[0].count", "must be all or {status: [..], grpc_status: [..]}, is a list")],
    ),
    (
        "count-status-none",
        &[("policies[0].count", "must list a status or grpc_status that counts")],
    ),
    (
        "count-status-empty",
        &[("policies[0].count", "must list a status or grpc_status that counts")],
    ),
    (
        "count-status-twice",
        &[("policies[0].count.status[2]", "is the same as policies[0].count.status[0]")],
    ),
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
                r#"must be a duration from 1ms to 60s, is "61s": write for example 50ms"#,
            ),
            ("policies[0].lease.max", "must be a whole number from 1"),
            ("policies[0].lease.aheda", r#"did you mean "ahead"?"#),
        ],
    ),
    ("lease-type", &[("policies[0].lease", "must be an object, is a string")]),
    ("count-denied-lease", &[("policies[0].count_denied", "cannot be with precision: lease")]),
    ("count-denied-status", &[("policies[0].count_denied", "cannot be with count: {status: ..}")]),
    ("count-denied-type", &[("policies[0].count_denied", "must be true or false, is a string")]),
];
