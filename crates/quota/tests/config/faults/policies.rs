//! Faults of policies as a whole.

use super::Expected;

/// All faults of each file under `bad`.
pub const BAD: &[(&str, &[Expected])] = &[
    ("policies-type", &[("policies", "must be a list, is an object")]),
    ("policies-many", &[("policies", "must have at most 1024 entries, has 1025")]),
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
    ("partition-by-type", &[("policies[0].partition_by", "must be a list, is a string")]),
    (
        "partition-by-unknown",
        &[(
            "policies[0].partition_by[1]",
            r#"no identity is named "calller": did you mean "caller"?"#,
        )],
    ),
    (
        "partition-by-twice",
        &[("policies[0].partition_by[2]", "is the same as policies[0].partition_by[0]")],
    ),
    ("partition-by-many", &[("policies[0].partition_by", "must have at most 16 entries, has 17")]),
    ("on-missing", &[("policies[0].on_missing", r#"must be skip, deny or shared, is "allow""#)]),
    (
        "window-calendar-unit",
        &[(
            "policies[0].window.calendar",
            r#"must be minute, hour, day, week, month or year, is "fortnight""#,
        )],
    ),
    (
        "window-calendar-zone",
        &[(
            "policies[0].window.time_zone",
            "must be the IANA name of a time zone, such as Europe/Berlin",
        )],
    ),
    ("sliding-calendar", &[("policies[0].sliding", "write a length, such as window: 24h")]),
    (
        "stagger-calendar",
        &[("policies[0].stagger", "it begins with the calendar for every partition")],
    ),
    ("sliding-lease", &[("policies[0].sliding", "cannot be with precision: lease")]),
    ("sliding-stagger", &[("policies[0].stagger", "means nothing with sliding: true")]),
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
            r#"must be a duration of whole seconds from 1s to 366d, is "30m1h": write for example 1m"#,
        )],
    ),
    ("mode", &[("policies[0].mode", r#"must be enforce, mark, shadow or off, is "dry-run""#)]),
    ("mode-true", &[("policies[0].mode", "must be enforce, mark, shadow or off, is true")]),
    ("stagger-type", &[("policies[0].stagger", "must be true or false")]),
    (
        "policy-on-failure",
        &[("policies[0].on_failure", r#"must be allow, deny or local, is "open""#)],
    ),
];
