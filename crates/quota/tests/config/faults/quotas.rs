//! Faults of quotas, `quota_from` and tiers.

use super::Expected;

/// All faults of each file under `bad`.
pub const BAD: &[(&str, &[Expected])] = &[
    (
        "quota-negative",
        &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")],
    ),
    (
        "quota-fraction",
        &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")],
    ),
    (
        "quota-large",
        &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")],
    ),
    (
        "quota-huge",
        &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")],
    ),
    (
        "quota-text",
        &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")],
    ),
    (
        "quota-blank",
        &[("policies[0].quota", "must be a whole number from 0 to 9007199254740991, is ")],
    ),
    (
        "quota-from-none",
        &[(
            "policies[0].quota_from",
            "must have exactly one of jwt, metadata, peer, has none of them",
        )],
    ),
    (
        "quota-from-header",
        &[(
            "policies[0].quota_from.header",
            "must be jwt, metadata or peer: clients can write this one",
        )],
    ),
    (
        "quota-from-max",
        &[
            (
                "policies[0].quota_from.max",
                "must be a whole number from 0 to 9007199254740991, is -1",
            ),
            ("policies[0].quota_from.mxa", r#"did you mean "max"?"#),
        ],
    ),
    (
        "quota-from-boolean",
        &[(
            "policies[0].quota_from",
            "must be a number or a string of digits: true and false are no quota",
        )],
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
        &[(
            "policies[0].tiers.source.header",
            "must be jwt, metadata or peer: clients can write this one",
        )],
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
            (
                "policies[0].tiers.quotas.free",
                "must be a whole number from 0 to 9007199254740991, is -1",
            ),
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
];
