//! The examples of the original's README, with the results that it states.

use quotagate_ratelimit::messages::Descriptor;
use quotagate_ratelimit::service::AnswerOptions;

use crate::bench::{Bench, counting, descriptor, memory, passes, statuses};

/// An example: its rules, and its requests in their order.
struct Example {
    name: &'static str,
    descriptors: &'static str,
    /// How many times the request is sent, its descriptors, and how many of them pass.
    requests: &'static [(usize, &'static [&'static str], usize)],
    /// Metrics that then exist.
    metrics: &'static [&'static str],
}

// Limits per second and minute are per day here, so that no window ends during a test.
const EXAMPLES: &[Example] = &[
    Example {
        name: "1: values have limits of their own",
        descriptors: "
  - {key: database, value: users, rate_limit: {unit: day, requests_per_unit: 500}}
  - {key: database, value: default, rate_limit: {unit: day, requests_per_unit: 500}}",
        requests: &[
            (501, &["database=users"], 500),
            (501, &["database=default"], 500),
            (600, &["database=other"], 600),
        ],
        metrics: &["key1=\"database_users\"", "key1=\"database_default\""],
    },
    Example {
        name: "2: a request is limited by all its descriptors",
        descriptors: "
  - key: message_type
    value: marketing
    descriptors:
      - {key: to_number, rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: to_number, rate_limit: {unit: day, requests_per_unit: 100}}",
        requests: &[
            (7, &["message_type=marketing,to_number=2061111111", "to_number=2061111111"], 5),
            (7, &["message_type=marketing,to_number=2062222222"], 5),
            // Refused requests took nothing here: 95 are left. There, 93.
            (101, &["to_number=2061111111"], 95),
            (101, &["to_number=2062222222"], 100),
            (3, &["message_type=marketing"], 3),
        ],
        metrics: &["key1=\"message_type_marketing\",key2=\"to_number\"", "key1=\"to_number\""],
    },
    Example {
        name: "3: a value goes before its key",
        descriptors: "
  - {key: remote_address, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: remote_address, value: 50.0.0.5, rate_limit: {unit: day, requests_per_unit: 0}}",
        requests: &[
            (12, &["remote_address=50.0.0.1"], 10),
            (12, &["remote_address=50.0.0.2"], 10),
            (3, &["remote_address=50.0.0.5"], 0),
        ],
        metrics: &["key1=\"remote_address\"", "key1=\"remote_address_50_0_0_5\""],
    },
    Example {
        name: "4: a rule of one level is not for two entries",
        descriptors: "
  - {key: key, value: value, rate_limit: {unit: day, requests_per_unit: 3}}",
        requests: &[(9, &["key=value,subkey=subvalue"], 9), (9, &["key=value"], 3)],
        metrics: &[],
    },
    Example {
        name: "4: a rule of two levels is",
        descriptors: "
  - key: key
    value: value
    descriptors:
      - {key: subkey, rate_limit: {unit: day, requests_per_unit: 3}}",
        requests: &[(9, &["key=value,subkey=subvalue"], 3), (9, &["key=value"], 9)],
        metrics: &["key1=\"key_value\",key2=\"subkey\""],
    },
    Example {
        name: "5: unlimited rules pass",
        descriptors: "
  - {key: ldap, rate_limit: {unlimited: true}}
  - {key: azure, rate_limit: {unit: day, requests_per_unit: 100}}",
        requests: &[(300, &["ldap="], 300), (102, &["azure="], 100)],
        metrics: &["key1=\"azure\""],
    },
    Example {
        name: "6: a rule in shadow mode only counts",
        descriptors: "
  - key: service
    descriptors:
      - key: user
        value: user-a
        rate_limit: {unit: day, requests_per_unit: 10}
        shadow_mode: true
      - key: user
        value: user-b
        rate_limit: {unit: day, requests_per_unit: 20}",
        requests: &[
            (15, &["service=auth-service,user=user-a"], 15),
            (25, &["service=auth-service,user=user-b"], 20),
        ],
        metrics: &["rate_limit_shadow_mode{domain=\"d\",key1=\"service\",key2=\"user_user-a\"} 5"],
    },
    Example {
        name: "7: a rule replaces another one",
        descriptors: "
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: {name: specific_limit, unit: day, requests_per_unit: 5}
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: {replaces: [{name: specific_limit}], unit: day, requests_per_unit: 10}",
        requests: &[
            (12, &["key_1=value_1,user=bkthomps", "key_2=value_2,user=bkthomps"], 10),
            (7, &["key_1=value_1,user=bkthomps"], 5),
            (7, &["key_2=value_2,user=bkthomps"], 0),
        ],
        metrics: &[],
    },
    Example {
        name: "8: metrics name values that no rule has",
        descriptors: "
  - {key: key1, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: key1, value: value1, rate_limit: {unit: day, requests_per_unit: 20}}",
        requests: &[
            (11, &["key1=unspecified_value"], 10),
            (11, &["key1=unspecified_value2"], 10),
            (21, &["key1=value1"], 20),
        ],
        metrics: &[
            "key1=\"key1_unspecified_value\"",
            "key1=\"key1_unspecified_value2\"",
            "key1=\"key1_value1\"",
        ],
    },
    Example {
        name: "9: a star at the end",
        descriptors: "
  - {key: key1, value: value*, rate_limit: {unit: day, requests_per_unit: 2}}",
        requests: &[(3, &["key1=value1"], 2), (3, &["key1=valueXYZ"], 2), (3, &["key1=other"], 3)],
        metrics: &[],
    },
    Example {
        name: "9: a star in the middle",
        descriptors: "
  - {key: path, value: /api/*/action, rate_limit: {unit: day, requests_per_unit: 2}}",
        requests: &[
            (3, &["path=/api/123/action"], 2),
            (3, &["path=/api/user-id/action"], 2),
            (3, &["path=/api/123/other"], 3),
        ],
        metrics: &[],
    },
    Example {
        name: "9: several stars",
        descriptors: "
  - {key: route, value: /api/*/resource/*/action, rate_limit: {unit: day, requests_per_unit: 2}}",
        requests: &[
            (3, &["route=/api/v1/resource/123/action"], 2),
            (3, &["route=/api/v2/resource/456/action"], 2),
            (3, &["route=/api/v2/action"], 3),
        ],
        metrics: &[],
    },
    Example {
        name: "10: metrics name values of some entries",
        descriptors: "
  - key: route
    value_to_metric: true
    descriptors:
      - key: http_method
        value_to_metric: true
        descriptors:
          - {key: subject_id, rate_limit: {unit: day, requests_per_unit: 60}}",
        requests: &[
            (1, &["route=api,http_method=GET,subject_id=123"], 1),
            (1, &["route=web,http_method=POST,subject_id=456"], 1),
        ],
        metrics: &[
            "key1=\"route_api\",key2=\"http_method_GET\"",
            "key1=\"route_web\",key2=\"http_method_POST\"",
        ],
    },
    Example {
        name: "10: the whole value of a wildcard",
        descriptors: "
  - key: user
    value_to_metric: true
    descriptors:
      - key: action
        value: read*
        value_to_metric: true
        descriptors:
          - {key: resource, rate_limit: {unit: day, requests_per_unit: 100}}",
        requests: &[(1, &["user=alice,action=readfile,resource=documents"], 1)],
        metrics: &["key1=\"user_alice\",key2=\"action_readfile\""],
    },
    Example {
        name: "11: values share a counter, or do not",
        descriptors: "
  - key: files
    value: files/*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: files_no_share
    value: files_no_share/*
    share_threshold: false
    rate_limit: {unit: day, requests_per_unit: 10}",
        requests: &[
            (5, &["files=files/a.pdf"], 5),
            (5, &["files=files/b.csv"], 5),
            (1, &["files=files/c.txt"], 0),
            (11, &["files_no_share=files_no_share/a.pdf"], 10),
            (11, &["files_no_share=files_no_share/b.csv"], 10),
        ],
        metrics: &[],
    },
    Example {
        // The README says `route_api.method_GET`, and the program writes this.
        name: "11: metrics of a shared counter name its pattern",
        descriptors: "
  - key: route
    value: api/*
    share_threshold: true
    value_to_metric: true
    descriptors:
      - {key: method, rate_limit: {unit: day, requests_per_unit: 60}}",
        requests: &[(1, &["route=api/v1,method=GET"], 1)],
        metrics: &["key1=\"route_api/*\",key2=\"method\""],
    },
];

#[tokio::test]
async fn examples_of_the_original_have_the_results_that_it_states() {
    for Example { name, descriptors, requests, metrics } in EXAMPLES {
        let rules = format!("domain: d\ndescriptors:{descriptors}\n");
        let bench = Bench::with(&rules, AnswerOptions::default(), counting(), memory());
        for (times, asked, expected) in *requests {
            let asked: Vec<Descriptor> = asked.iter().map(|text| descriptor(text)).collect();
            let mut passed = 0;
            for _ in 0..*times {
                passed += usize::from(passes(&bench.ask(&asked).await));
            }
            assert_eq!(passed, *expected, "{name}: {asked:?}");
        }
        let text = bench.service.metrics.text();
        for metric in *metrics {
            assert!(text.contains(metric), "{name}: {metric}\n{text}");
        }
    }
}

#[tokio::test]
async fn unlimited_descriptor_has_the_greatest_number_left() {
    let bench =
        Bench::new("domain: d\ndescriptors:\n- {key: ldap, rate_limit: {unlimited: true}}\n");
    let answer = bench.ask(&[descriptor("ldap=")]).await;
    assert_eq!(statuses(&answer)[0].1, u32::MAX);
}
