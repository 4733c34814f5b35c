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
            ("policies[0].cost", "must have exactly one of header, reserve, has none of them"),
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
        "settle-alone",
        &[("policies[0].cost", "must have exactly one of header, reserve, has none of them")],
    ),
    (
        "settle-header",
        &[("policies[0].cost.settle", "needs reserve, the units to take on arrival")],
    ),
    ("settle-lease", &[("policies[0].cost.settle", "cannot be with precision: lease")]),
    ("settle-count-denied", &[("policies[0].cost.settle", "cannot be with count_denied")]),
    ("settle-empty", &[("policies[0].cost.settle", "must not be empty")]),
    (
        "settle-sources",
        &[
            ("policies[0].cost.settle[0].usage", r#"must be total, input or output, is "tokens""#),
            ("policies[0].cost.settle[1].usage", "must be total, input, output or weights"),
            ("policies[0].cost.settle[2].usage.input", "must be a number from 0 to 1000000, is -1"),
            ("policies[0].cost.settle[2].usage.output", "must be a number from 0 to 1000000"),
            ("policies[0].cost.settle[2].usage.cached", "unknown field: known are input, cached"),
            ("policies[0].cost.settle[3].usage", "must have a weight above 0"),
            ("policies[0].cost.settle[4]", "must have exactly one of usage, response_header"),
            ("policies[0].cost.settle[4].header", "unknown field"),
            ("policies[0].cost.settle[5].response_header", "must be a header name"),
            ("policies[0].cost.settle[6].metadata.path", "is required"),
            ("policies[0].cost.if_missing", r#"must be reserved or nothing, is "none""#),
        ],
    ),
    ("if-missing-alone", &[("policies[0].cost.if_missing", "means nothing without settle")]),
    ("if-missing-type", &[("policies[0].cost.if_missing", "must be a whole number from 0")]),
    ("reserve-zero", &[("policies[0].cost.reserve", "must be a whole number from 1")]),
    (
        "reserve-default",
        &[("policies[0].cost.reserve.default", "must be at most max, which is 8, is 9")],
    ),
    (
        "reserve-no-default",
        &[("policies[0].cost.reserve.default", "is required: the units of a request")],
    ),
    (
        "reserve-members",
        &[
            ("policies[0].cost.reserve.request_json", "must not be empty"),
            (
                "policies[1].cost.reserve.request_json",
                "must be a name or a list of names, such as [max_completion_tokens, max_tokens], is a number",
            ),
            (
                "policies[2].cost.reserve.request_json[1]",
                "is the same as policies[2].cost.reserve.request_json[0]",
            ),
            ("policies[3].cost.reserve.request_json[1]", "must not be empty"),
        ],
    ),
    (
        "reserve-header",
        &[
            ("policies[0].cost.reserve.default", "means nothing beside header"),
            ("policies[0].cost.reserve.max", "means nothing beside header"),
        ],
    ),
    (
        "reserve-none",
        &[(
            "policies[0].cost.reserve",
            "must have exactly one of header, request_json, has none of them",
        )],
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
