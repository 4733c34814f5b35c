//! Good and bad objects, which an API server judges, too (`cargo xtask mesh kubernetes`).

use quotagate_kubernetes::{Domains, Objects, Reason, merge};
use serde_json::{Map, Value, json};

use crate::scene;

/// The object of a bad case.
fn bad(all: &Value, case: &Value) -> Value {
    let of = case["of"].as_str().unwrap_or("team");
    let mut object = all["good"][of].clone();
    for part in ["metadata", "spec"] {
        scene::patch(&mut object[part], &case[part]);
    }
    if case["policy"].is_object() {
        scene::patch(&mut object["spec"]["policies"][0], &case["policy"]);
    }
    if let Some(count) = case["repeat"].as_u64() {
        let one = &all["good"][of]["spec"]["policies"][0];
        let named = |number| {
            let mut one = one.clone();
            one["name"] = json!(format!("p{number}"));
            one
        };
        object["spec"]["policies"] = (0..count).map(named).collect();
    }
    object
}

fn cases() -> (Value, Map<String, Value>) {
    let all: Value = serde_saphyr::from_str(include_str!("objects.yaml")).unwrap();
    let bad = all["bad"].as_object().unwrap().clone();
    (all, bad)
}

/// Everything that is wrong with an object beside those that it needs.
fn faults(object: &Value) -> Vec<String> {
    let mut objects: Objects = scene::objects();
    if let Err(faults) = objects.add(object) {
        return faults;
    }
    let domains = Domains::read(&scene::config()).unwrap();
    let outcomes = domains.iter().flat_map(|domain| merge(&objects, domain).outcomes);
    let ancestors = outcomes.flat_map(|outcome| outcome.ancestors);
    let refused = ancestors.map(|at| at.accepted).filter(|accepted| !accepted.holds);
    refused.filter(|at| at.reason == Reason::Invalid).map(|at| at.message).collect()
}

#[test]
fn good_objects_are_accepted() {
    let (all, _) = cases();
    for (name, object) in all["good"].as_object().unwrap() {
        assert_eq!(faults(object), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn bad_objects_are_refused_with_the_path_of_the_fault() {
    let (all, bad_cases) = cases();
    assert!(bad_cases.len() >= 35);
    let mut wrong = Vec::new();
    for (name, case) in &bad_cases {
        let expected = case["merge"].as_str().or(case["both"].as_str());
        let found = faults(&bad(&all, case)).join("; ");
        if expected.is_some_and(|expected| !found.contains(expected)) {
            wrong.push(format!("{name}: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
