//! Parses keys by the rules of the contract, and checks that they name the clients that the
//! requests should count for.

use std::collections::BTreeMap;

use quotagate_protocol::Reservation;
use quotagate_quota::config::Config;
use quotagate_quota::request::Request;

use crate::choices::Choices;
use crate::policy::{Meant, Policy};
use crate::world::World;

/// The number of requests that are compared with each other.
const WORLDS: usize = 6;

/// Makes a policy and some requests from `bytes`, and checks their keys.
///
/// # Panics
/// If a key is wrong.
pub fn check(bytes: &[u8]) {
    let choices = &mut Choices::new(bytes);
    let policy = Policy::choose(choices);
    let config = Config::parse(policy.document().to_string().as_bytes())
        .unwrap_or_else(|faults| panic!("{policy:?}: {faults}"));
    let facts = policy.facts();
    let mut parties = BTreeMap::new();
    let mut digests = BTreeMap::new();
    for _ in 0..WORLDS {
        let world = World::choose(&facts, choices);
        let meant = policy.meant(&world);
        for _ in 0..2 {
            let written = world.write(choices);
            let key = key(&config, &written);
            assert_eq!(key.is_some(), meant.is_some(), "{policy:?} {written:?}");
            let (Some(key), Some(meant)) = (key, &meant) else { continue };
            well_formed(&key);
            read_back(&key, meant, &mut digests);
            if let Some(other) = parties.insert(key.clone(), meant.clone()) {
                assert_eq!(other, *meant, "two clients share {key}");
            }
            // One client has one key, however its request is spelled.
            assert_eq!(parties.values().filter(|other| *other == meant).count(), 1, "{parties:?}");
        }
    }
}

/// The key of the only policy's counter. `None` if the policy does not apply.
pub fn key(config: &Config, request: &impl Request) -> Option<String> {
    let checks = config.evaluate(request).checks.unwrap();
    checks.first().map(|check| check.counter.key.to_string())
}

/// Asserts that the store accepts the key.
pub fn well_formed(key: &str) {
    let reservation = Reservation {
        key: key.into(),
        window_s: 1,
        quota: 1,
        want: 1,
        min: 1,
        ..Reservation::default()
    };
    assert_eq!(reservation.check().err(), None, "{key}");
}

/// Asserts that the key contains the meant values. `digests` maps each digest seen so far to its
/// value.
fn read_back(key: &str, meant: &[Meant], digests: &mut BTreeMap<String, Vec<u8>>) {
    let partition = key.strip_prefix("d:p:{").and_then(|rest| rest.strip_suffix('}')).unwrap();
    if is_digest(partition) {
        return;
    }
    let entries: Vec<&str> = partition.split(',').collect();
    assert_eq!(entries.len(), meant.len(), "{key} {meant:?}");
    for (entry, meant) in entries.into_iter().zip(meant) {
        let (label, text) = match meant {
            Meant::Shared => {
                assert_eq!(entry, "-", "{key}");
                continue;
            }
            Meant::Value { label, .. } | Meant::Number { label, .. } => {
                let (found, text) = entry.split_once('=').unwrap();
                assert_eq!(found, label, "{key}");
                (label, text)
            }
        };
        match meant {
            Meant::Value { value, secret, .. } if *secret || value.len() > 128 => {
                assert!(is_digest(text), "{label}: {key}");
                let known = digests.entry(text.to_owned()).or_insert_with(|| value.clone());
                assert_eq!(known, value, "two values share a digest");
            }
            Meant::Value { value, .. } => assert_eq!(decode(text), *value, "{key}"),
            Meant::Number { bits, .. } => {
                let number: f64 = String::from_utf8(decode(text)).unwrap().parse().unwrap();
                assert_eq!(number.to_bits(), *bits, "{key}");
            }
            Meant::Shared => {}
        }
    }
}

fn is_digest(text: &str) -> bool {
    let hexadecimal = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 33 && text.strip_prefix('~').is_some_and(|digits| digits.bytes().all(hexadecimal))
}

/// The bytes of an encoded value.
fn decode(text: &str) -> Vec<u8> {
    assert!(!text.starts_with('~'), "{text} is a digest, not a value");
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        let plain = byte.is_ascii_alphanumeric() || b"._~@:/-".contains(&byte);
        assert!(plain || byte == b'%', "{text}");
        out.push(if plain {
            byte
        } else {
            let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
            u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
        });
    }
    out
}
