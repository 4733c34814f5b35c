//! Faults of identities and their sources.

use super::Expected;

/// All faults of each file under `bad`.
pub const BAD: &[(&str, &[Expected])] = &[
    ("identities-type", &[("identities", "must be an object, is a list")]),
    ("identities-many", &[("identities", "must have at most 64 entries, has 65")]),
    (
        "identity-name",
        &[(r#"identities["the caller"]"#, "the name must match [A-Za-z0-9._-]{1,64}")],
    ),
    ("identity-name-taken", &[("identities.host", "host is taken")]),
    ("identity-empty", &[("identities.none", "must not be empty")]),
    ("identity-type", &[("identities.none", "must be a list, is an object")]),
    ("identity-many", &[("identities.many", "must have at most 16 entries, has 17")]),
    (
        "source-none",
        &[(
            "identities.caller[0]",
            "must have exactly one of jwt, metadata, peer, client_ip, header, cookie, query, sni, has none of them",
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
    (
        "header-secret",
        &[("identities.caller[0].header.secret", "must be true or false, is a string")],
    ),
    ("client-ip-type", &[("identities.caller[0].client_ip", "must be an object, is null")]),
    (
        "client-ip-prefix-zero",
        &[(
            "identities.caller[0].client_ip.ipv6_prefix",
            "must be a whole number from 1 to 128, is 0",
        )],
    ),
    (
        "client-ip-prefix-ipv4",
        &[(
            "identities.caller[0].client_ip.ipv4_prefix",
            "must be a whole number from 1 to 32, is 33",
        )],
    ),
    ("client-ip-prefix-long", &[("identities.caller[0].client_ip.ipv6_prefix", "is 129")]),
    ("jwt-none", &[("identities.caller[0].jwt", "must have exactly one of claim, claims")]),
    ("jwt-both", &[("identities.caller[0].jwt", "has claim, claims")]),
    ("jwt-claim-dots", &[("identities.caller[0].jwt.claim", "one dot between them")]),
    ("jwt-claim-long", &[("identities.caller[0].jwt.claim", "must be at most 128 bytes long")]),
    ("jwt-claims-empty", &[("identities.caller[0].jwt.claims", "must not be empty")]),
    (
        "jwt-claims-twice",
        &[(
            "identities.caller[0].jwt.claims[2]",
            "is the same as identities.caller[0].jwt.claims[0]",
        )],
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
            (
                "identities.caller[0].cookie.name",
                r#"must be a cookie name of at most 128 bytes, is "a b""#,
            ),
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
            (
                "identities.caller[0].peer",
                "must have exactly one of san, subject, has none of them",
            ),
            ("identities.caller[1].peer", "has san, subject"),
            ("identities.caller[2].peer.san", r#"must be uri or dns, is "ip""#),
            (
                "identities.caller[3].peer.subject",
                "must be true: leave the whole source out instead",
            ),
        ],
    ),
    (
        "metadata-required",
        &[
            ("identities.caller[0].metadata.filter", "is required"),
            ("identities.caller[0].metadata.path", "is required"),
            (
                "identities.caller[0].metadata.type",
                r#"must be string, number or boolean, is "text""#,
            ),
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
            (
                "identities.caller[3].jwt.claims[1]",
                "is the same as identities.caller[3].jwt.claims[0]",
            ),
            ("identities.caller[4].jwt.claim", "must be without control characters"),
        ],
    ),
];
