//! What people see: the whole text, the picture, and a snippet that the filter accepts.

#![cfg(test)]

use std::fs;

use quotagate_advise::{Advice, Fields, Limits, Only, Options, advise};
use quotagate_quota::config::Config;
use serde_json::{Value, json};

/// Two users with one request a minute, and one with twelve; somebody's nonsense, and a request of nobody.
fn advice() -> Advice {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let line = |user: &str, second: u32| {
        let time = format!("2026-11-21T22:55:{second:02}.000Z");
        json!({"time": time, "quota_policy": "per-caller", "quota_partition": user}).to_string() + "\n"
    };
    let mut text = line("jwt.sub=alice", 1) + &line("jwt.sub=bob", 2) + "\x1b[31mnonsense\n" + &line("", 3);
    (0..12).for_each(|second| text += &line("jwt.sub=eve", second));
    fs::write(&path, text).unwrap();
    let options = Options {
        logs: vec![path],
        fields: Fields::default(),
        only: Only::default(),
        window_s: 60,
        quotas: Vec::new(),
        limits: Limits { users: 0.001, windows: 0.0001 },
        memory: 1 << 20,
        lateness_s: 60,
        threads: 1,
        progress: false,
    };
    let mut advice = advise(&options).unwrap();
    advice.read.malformed_first[0].log = "access.log".to_owned();
    advice
}

#[test]
fn the_text_says_everything() {
    let expected = include_str!("output.txt");
    assert_eq!(advice().text(), expected);
}

#[test]
fn the_snippet_is_a_policy_in_shadow_mode() {
    let snippet: Value = serde_saphyr::from_str(&advice().snippet).unwrap();
    let mut document =
        json!({"domain": "shop", "store": {"cluster": "s"}, "identities": {"caller": [{"client_ip": {}}]}});
    document["policies"] = snippet["policies"].clone();
    let config = Config::parse(document.to_string().as_bytes()).unwrap();
    assert_eq!(config.policies.len(), 1);
    assert_eq!(document["policies"][0]["mode"], "shadow");
    assert_eq!(document["policies"][0]["quota"], 12);
}

#[test]
fn the_picture_marks_the_recommendation() {
    let picture = advice().plot().unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("12 per 1m"), "{picture}");
}
