//! Invariant 4, on keys: whatever bytes a request holds, its key is one that the store takes, and says exactly
//! whom the request counts for. So two requests share a counter only if they are of one party; and one party
//! has one counter, however its requests are written.
//!
//! `check` makes everything of plain bytes, by the public interface alone, so that a fuzzer can feed it too.

mod check;
mod choices;
mod policy;
mod world;

use proptest::prelude::*;
use quotagate_quota::config::Config;

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn invariant_4_keys_are_injective_and_read_back(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
        check::check(&bytes);
    }
}

proptest! {
    #![proptest_config(cases(100_000))]

    #[test]
    #[ignore = "minutes: `cargo test --release -p quotagate-quota --test hostile -- --ignored`"]
    fn invariant_4_keys_are_injective_over_100_000_cases(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        check::check(&bytes);
    }
}

#[test]
fn a_partition_too_long_for_a_message_is_a_digest_of_it_all() {
    let names: Vec<String> = (0..16).map(|i| format!("x-{i}-{}", "*".repeat(120))).collect();
    let sources = names
        .iter()
        .enumerate()
        .map(|(i, name)| (format!("i{i}"), serde_json::json!([{"header": {"name": name}}])));
    let identities: serde_json::Map<_, _> = sources.collect();
    let by: Vec<_> = identities.keys().cloned().collect();
    let document = serde_json::json!({
        "domain": "d", "store": {"cluster": "s"}, "identities": identities,
        "policies": [{"name": "p", "quota": 1, "window": "1s", "partition_by": by}],
    });
    let config = Config::parse(document.to_string().as_bytes()).unwrap();
    let facts: Vec<_> = names.into_iter().map(world::Fact::Header).collect();
    let mut world = world::World::choose(&facts, &mut choices::Choices::new(&[]));
    let mut keys = std::collections::BTreeSet::new();
    for changed in &facts {
        world.facts.insert(changed.clone(), vec![b"other".to_vec()]);
        let key = check::key(&config, &world.write(&mut choices::Choices::new(&[]))).unwrap();
        check::well_formed(&key);
        assert_eq!(key.len(), "d:p:{~}".len() + 32, "{key}");
        keys.insert(key);
    }
    assert_eq!(keys.len(), facts.len());
}
