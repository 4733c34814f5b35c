//! What two documents say of a counter's continuity, against the counters that requests get.

use quotagate_quota::config::Config;
use quotagate_quota::evaluate::Counter;
use quotagate_quota::request::Request;
use quotagate_quota::request::continuity::Continuity;
use serde_json::{Value, json};

use crate::choices::Choices;
use crate::policy::Policy;
use crate::world::World;

/// The number of requests that both documents count.
const WORLDS: usize = 6;

/// Makes two documents and some requests from `bytes`, and checks the counters of each request.
///
/// # Panics
/// If a counter does not do what the comparison says.
pub fn check(bytes: &[u8]) {
    let choices = &mut Choices::new(bytes);
    let (policy, other) = (Policy::choose(choices), Policy::choose(choices));
    let document = policy.document();
    let mut changed = document.clone();
    for _ in 0..choices.below(4) {
        change(&mut changed, &other.document(), choices);
    }
    let parse = |document: &Value| Config::parse(document.to_string().as_bytes());
    // Not every change leaves a valid document.
    let (Ok(old), Ok(new)) = (parse(&document), parse(&changed)) else { return };
    let said = old.continuity(&old.policies[0], &new, &new.policies[0]);
    let mut facts = policy.facts();
    facts.extend(other.facts());
    for _ in 0..WORLDS {
        let world = World::choose(&facts, choices);
        let request = world.write(choices);
        let (Some(before), Some(after)) = (counter(&old, &request), counter(&new, &request)) else {
            continue;
        };
        let about = format!("{said:?}\n{document}\n{changed}\n{request:?}\n{before:?}\n{after:?}");
        // A long value is a digest, secret or not.
        let has_long = has_long_value(&world);
        if old.same_digests(&new) || !has_long {
            let goes_on = before.key == after.key;
            assert!(said.keys != Continuity::Whole || goes_on, "{about}");
            let goes_on = goes_on && before.window == after.window;
            assert!(said.counts != Continuity::Whole || goes_on, "{about}");
        }
        // Requests without a value may share a counter in both. The claims of one source may be
        // written as those of several.
        let partition = before.key.split_once('{').unwrap().1;
        if !has_long
            && !partition.contains("jwt")
            && !partition.trim_end_matches('}').split(',').any(|e| e == "-")
        {
            let same = (&before.key, &before.window) == (&after.key, &after.window);
            assert!(said.counts != Continuity::Nothing || !same, "{about}");
        }
    }
}

fn has_long_value(world: &World) -> bool {
    let path = world.path.concat();
    let others = [&world.method, &world.host, &path, &world.route];
    world.facts.values().flatten().chain(others).any(|value| value.len() > 100)
}

fn counter(config: &Config, request: &impl Request) -> Option<Counter> {
    config.evaluate(request).checks.unwrap().first().map(|check| check.counter.clone())
}

/// Makes one change to a document. `other` has further sources.
fn change(document: &mut Value, other: &Value, choices: &mut Choices<'_>) {
    let Some(sources) = document["identities"]
        .as_object_mut()
        .and_then(|identities| identities.values_mut().next()?.as_array_mut())
    else {
        return change_policy(document, choices);
    };
    let source = other["identities"].as_object().and_then(|of| of.values().next()?.get(0)).cloned();
    match (choices.below(8), source) {
        (0, Some(source)) => sources.push(source),
        (1, Some(source)) => sources.insert(0, source),
        (2, Some(source)) => sources[0] = source,
        (3, _) if sources.len() > 1 => drop(sources.pop()),
        (4, _) => sources.reverse(),
        (5, _) => {
            // The prefixes of addresses.
            for source in sources.iter_mut().filter(|source| source.get("client_ip").is_some()) {
                source["client_ip"]["ipv6_prefix"] = json!(48);
            }
        }
        _ => change_policy(document, choices),
    }
}

fn change_policy(document: &mut Value, choices: &mut Choices<'_>) {
    match choices.below(8) {
        0 => document["digest_key"] = json!("0123456789abcdef"),
        1 => document["domain"] = json!("other"),
        2 => document["policies"][0]["name"] = json!("q"),
        3 => document["policies"][0]["window"] = json!("1m"),
        4 => document["policies"][0]["sliding"] = json!(true),
        5 => document["policies"][0]["quota"] = json!(7),
        6 => {
            if let Some(entries) = document["policies"][0]["partition_by"].as_array_mut() {
                entries.reverse();
            }
        }
        _ => {
            let shared = document["policies"][0]["on_missing"] == "shared";
            let other = if shared { "skip" } else { "shared" };
            document["policies"][0]["on_missing"] = json!(other);
        }
    }
}
