//! Resources of an xDS server: what they mean, and what is wrong with them.

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Any, Struct, Value};
use quotagate_ratelimit::messages::Unit;
use quotagate_ratelimit::rules::{RuleLimit, SharedDomains};
use quotagate_ratelimit::xds::read_resources;
use quotagate_support::xds::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, TYPE,
};

use crate::running::{entry, named};

fn any(config: &RateLimitConfig) -> Any {
    Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() }
}

fn faults(resources: &[Any]) -> Vec<String> {
    let faults = read_resources(resources, SharedDomains::Refuse).unwrap_err();
    faults.iter().map(ToString::to_string).collect()
}

#[test]
fn every_field_becomes_that_of_a_rule() {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let inner = RateLimitDescriptor {
        value: "b".to_owned(),
        rate_limit: Some(RateLimitPolicy {
            unit: 7,
            requests_per_unit: 3,
            name: "weekly".to_owned(),
            replaces: vec![RateLimitReplace { name: "other".to_owned() }],
            unlimited: false,
        }),
        shadow_mode: true,
        detailed_metric: true,
        quota_mode: true,
        metadata: Some(Struct { fields: [("tier".to_owned(), text("gold"))].into() }),
        ..entry("k", 0, 0)
    };
    let mut outer = entry("route", 0, 0);
    outer.rate_limit = None;
    outer.descriptors = vec![inner];
    let mut free = entry("free", 0, 0);
    free.rate_limit = Some(RateLimitPolicy { unlimited: true, ..RateLimitPolicy::default() });
    let resources = [any(&named("r", "d", vec![outer, free]))];
    let domains = read_resources(&resources, SharedDomains::Refuse).unwrap();
    let [weekly, free] = domains["d"].rules() else { panic!("{domains:?}") };
    assert_eq!((&*weekly.policy, &*weekly.path), ("weekly", "d.route.k_b"));
    assert_eq!(weekly.limit, RuleLimit::Hits(3, Unit::Week));
    assert!(weekly.shadow_mode && weekly.detailed_metric && weekly.quota_mode);
    assert_eq!(&*weekly.replaces[0], "other");
    assert_eq!(weekly.metadata.as_ref().unwrap()["tier"], "gold");
    assert_eq!((&*weekly.partition_by[0], weekly.partition_by.len()), ("route", 1));
    assert_eq!(free.limit, RuleLimit::Unlimited);
    for (number, unit) in [
        (1, Unit::Second),
        (2, Unit::Minute),
        (3, Unit::Hour),
        (4, Unit::Day),
        (5, Unit::Month),
        (6, Unit::Year),
        (7, Unit::Week),
    ] {
        let resources = [any(&named("r", "d", vec![entry("k", number, 1)]))];
        let domains = read_resources(&resources, SharedDomains::Refuse).unwrap();
        assert_eq!(domains["d"].rules()[0].limit, RuleLimit::Hits(1, unit));
    }
}

#[test]
fn every_fault_of_all_resources_is_named() {
    let unnamed = named("", "", vec![entry("", 1, 1)]);
    let nested = RateLimitDescriptor {
        descriptors: vec![entry("k", 0, 1), entry("k", 11, 1), entry("l", -1, 1)],
        ..entry("outer", 1, 1)
    };
    let resources = [
        any(&unnamed),
        any(&named("one", "d", vec![nested])),
        any(&named("two", "d", Vec::new())),
        Any { type_url: "type.googleapis.com/other".to_owned(), value: Vec::new() },
        Any { type_url: TYPE.to_owned(), value: vec![0xff; 9] },
    ];
    let found = faults(&resources);
    for says in [
        "resources[0]: domain: must not be empty",
        "resources[0]: descriptors[0].key: must not be empty",
        "one: descriptors[0].descriptors[0].rate_limit.unit: is required",
        "one: descriptors[0].descriptors[1]: the key \"k\" without a value occurs twice",
        "one: descriptors[0].descriptors[1].rate_limit.unit: 11 is no unit",
        "one: descriptors[0].descriptors[2].rate_limit.unit: -1 is no unit",
        "two: domain: \"d\" is also the domain of one",
        "resources[3]: type_url: \"type.googleapis.com/other\" must be type.googleapis.com/ratelimit",
        "resources[4]: value: must be a RateLimitConfig: ",
    ] {
        assert_eq!(
            found.iter().filter(|one| one.starts_with(says)).count(),
            1,
            "{says}: {found:#?}"
        );
    }
    assert_eq!(found.len(), 9, "{found:#?}");
}

#[test]
fn domains_of_several_resources_merge_if_they_may() {
    let resources = [
        any(&named("one", "d", vec![entry("a", 1, 1)])),
        any(&named("two", "d", vec![entry("b", 1, 1)])),
    ];
    let domains = read_resources(&resources, SharedDomains::Merge).unwrap();
    assert_eq!(domains["d"].rules().len(), 2);
    let resources = [resources[0].clone(), any(&named("two", "d", vec![entry("a", 1, 1)]))];
    let faults = read_resources(&resources, SharedDomains::Merge).unwrap_err();
    assert!(faults[0].to_string().starts_with("two: descriptors[0]: the key \"a\""), "{faults:?}");
}

#[test]
fn deep_and_hostile_resources_are_faults() {
    let nest = |depth: usize| {
        (0..depth).fold(entry("k", 1, 1), |inner, _| RateLimitDescriptor {
            descriptors: vec![inner],
            ..entry("k", 1, 1)
        })
    };
    let read = |depth| {
        let resources = [any(&named("r", "d", vec![nest(depth)]))];
        read_resources(&resources, SharedDomains::Refuse)
    };
    assert!(read(63).is_ok());
    assert!(read(64).unwrap_err()[0].to_string().contains("nested deeper than 64 levels"));
    let too_deep = read(400).unwrap_err();
    assert!(too_deep[0].to_string().contains("must be a RateLimitConfig: "), "{too_deep:?}");
    let odd = entry("\0\u{202e}%/ }{*", 1, 1);
    let resources = [any(&named("\u{7}", "d\n", vec![odd]))];
    assert!(read_resources(&resources, SharedDomains::Refuse).is_ok());
}
