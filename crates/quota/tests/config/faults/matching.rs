//! Faults of the object `match`.

use super::Expected;

/// All faults of each file under `bad`.
pub const BAD: &[(&str, &[Expected])] = &[
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
    (
        "match-path-query",
        &[("policies[0].match.path.suffix", "the query string is no part of the path")],
    ),
    (
        "match-path-parameters",
        &[
            ("policies[0].match.path.exact", r#"must be without ;, is "/login;a""#),
            ("policies[1].match.path.prefix", "must be without ;"),
            ("policies[2].match.path.suffix", "must be without ;"),
        ],
    ),
    (
        "match-path-regex",
        &[("policies[0].match.path.regex", r#"must be a regular expression, is "/(a": "#)],
    ),
    (
        "match-path-regex-long",
        &[("policies[0].match.path.regex", "must be at most 1024 bytes long")],
    ),
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
    (
        "match-headers-many",
        &[("policies[0].match.headers", "must have at most 64 entries, has 65")],
    ),
    (
        "match-header-none",
        &[
            (
                "policies[0].match.headers[0]",
                "must have exactly one of exact, prefix, regex, present",
            ),
            ("policies[0].match.headers[1].name", "is required"),
        ],
    ),
    (
        "match-client-ip",
        &[
            ("policies[0].match.client_ip[0]", "write 10.0.0.0/8 for \"10.1.2.3/8\""),
            ("policies[0].match.client_ip[1]", "must be a network such as 10.0.0.0/8"),
            ("policies[0].match.client_ip[2]", "must be a network such as 10.0.0.0/8"),
            ("policies[0].match.client_ip[3]", "must be a string"),
            ("policies[0].match.not.client_ip[0]", "write 192.0.2.7/32"),
        ],
    ),
    ("match-client-ip-empty", &[("policies[0].match.client_ip", "must not be empty")]),
    (
        "match-query",
        &[
            ("policies[0].match.query.name", "must not be empty"),
            ("policies[0].match.query.exact", "must not be empty"),
        ],
    ),
    (
        "match-query-none",
        &[("policies[0].match.query", "must have exactly one of exact, prefix, regex, present")],
    ),
    ("match-query-two", &[("policies[0].match.query", "has exact, present")]),
    ("match-query-list", &[("policies[0].match.query", "must be an object")]),
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
    (
        "match-routes-twice",
        &[("policies[0].match.routes[2]", "is the same as policies[0].match.routes[0]")],
    ),
    (
        "match-routes-many",
        &[("policies[0].match.routes", "must have at most 1024 entries, has 1025")],
    ),
    (
        "match-not",
        &[
            ("policies[0].match.not", "must have a condition"),
            ("policies[1].match.not.not", "cannot stand within a not"),
            ("policies[2].match.not", "must be an object, is a list"),
            ("policies[3].match.not.path.prefix", "must begin with /"),
            ("policies[4].match.not.rotues", r#"did you mean "routes"?"#),
        ],
    ),
];
