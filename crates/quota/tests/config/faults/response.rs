//! Faults of the object `response`.

use super::Expected;

/// All faults of each file under `bad`.
pub const BAD: &[(&str, &[Expected])] = &[
    (
        "response-headers",
        &[(
            "response.headers[1]",
            r#"must be ietf, x_ratelimit, draft_07 or draft_03, is "x-ratelimit""#,
        )],
    ),
    (
        "response-headers-one-field",
        &[(
            "response.headers",
            "ietf and draft_07 both write the field ratelimit: keep one of the two",
        )],
    ),
    ("response-headers-twice", &[("response.headers[1]", "is the same as response.headers[0]")]),
    (
        "response-grpc-pushback",
        &[("response.grpc_pushback", "must be a duration from 1ms to 60s, is \"61s\"")],
    ),
    ("response-reset", &[("response.reset", "must be epoch or delta")]),
    (
        "response-denied",
        &[
            ("response.denied.status", "must be a whole number from 400 to 599, is 399"),
            ("response.denied.boddy", r#"did you mean "body"?"#),
        ],
    ),
    ("denied-type", &[("response.denied", "must be an object, is a number")]),
    (
        "denied-status",
        &[("response.denied.status", "must be a whole number from 400 to 599, is 600")],
    ),
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
            (
                "response.denied.headers.b",
                "must be a string (in YAML, put it in quotes), is a number",
            ),
            (
                "response.denied.headers.c",
                "must be visible ASCII characters, with spaces only between them",
            ),
            ("response.denied.headers.d", "must be visible ASCII"),
            ("response.denied.headers.e", "must be visible ASCII"),
            ("response.denied.headers.f", "must be at most 1024 bytes long"),
        ],
    ),
    ("denied-header-twice", &[("response.denied.headers.x-a", "is given twice")]),
];
