//! Faults of overrides.

use super::Expected;

/// All faults of each file under `bad`.
pub const BAD: &[(&str, &[Expected])] = &[
    ("overrides-type", &[("policies[0].overrides", "must be a list")]),
    ("overrides-everybody", &[("policies[0].overrides", "means nothing without partition_by")]),
    ("overrides-many", &[("policies[0].overrides", "must have at most 1024 entries, has 1025")]),
    (
        "override-none",
        &[
            (
                "policies[0].overrides[0]",
                "must have exactly one of value, network, has none of them",
            ),
            (
                "policies[0].overrides[0]",
                "must have exactly one of quota, unlimited, has none of them",
            ),
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
            (
                "policies[0].overrides[1].value",
                "must be a string (in YAML, put it in quotes), is a number",
            ),
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
            (
                "policies[0].overrides[1].value",
                "is the same partition as in policies[0].overrides[0]",
            ),
            (
                "policies[0].overrides[2].value",
                "is the same partition as in policies[0].overrides[0]",
            ),
        ],
    ),
    (
        "override-address",
        &[(
            "policies[0].overrides[0].value",
            "must be an address such as 192.0.2.7 or 2001:db8::1",
        )],
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
            (
                "policies[0].overrides[4].network",
                "is the same network as in policies[0].overrides[3]",
            ),
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
];
