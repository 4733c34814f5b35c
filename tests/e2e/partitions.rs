//! Two identities never share a partition, and a value given twice identifies no client.

use std::collections::BTreeSet;

use anyhow::Result;
use quotagate_support::http::Request;
use quotagate_support::jwt;
use serde_json::{Value, json};

use crate::rig::{Rig, document, one_each};

/// Three headers, one policy that counts by two of them, and policies that count by one.
fn headers() -> Value {
    let mut document = document(json!([one_each("pair", &["a", "b"]), one_each("one", &["a"])]));
    document["identities"]["a"] = json!([{"header": {"name": "x-a"}}]);
    document["identities"]["b"] = json!([{"header": {"name": "x-b"}}]);
    document
}

#[test]
fn pairs_of_values_that_look_alike_when_joined_do_not_share_a_counter() -> Result<()> {
    let rig = Rig::start(headers())?;
    let long = ["x".repeat(128), "x".repeat(129), format!("{}y", "x".repeat(128))];
    let values: Vec<&[u8]> = [
        "a",
        "a,b",
        "b",
        "a,header.x-b=b",
        "header.x-b=b",
        "b,header.x-b=b",
        "-",
        "*",
        "~",
        "~a",
        "%7Ea",
        "a%2Cb",
        "a}",
        "{a",
        "a:1",
        "A",
        "ä",
        "a b",
        "=",
    ]
    .into_iter()
    .chain(long.iter().map(String::as_str))
    .map(str::as_bytes)
    .chain([&b"\xff"[..], b"\xfe", b"\xc3"])
    .collect();
    let mut sent = 0;
    let mut client = rig.client()?;
    for a in &values {
        for b in &values {
            let request = Request::get("/pair").raw_header(b"x-a", a).raw_header(b"x-b", b);
            let status = client.send(&request)?.status;
            assert_eq!(
                status,
                200,
                "{} and {} share a counter",
                a.escape_ascii(),
                b.escape_ascii()
            );
            sent += 1;
        }
    }
    let partitions: BTreeSet<String> = rig.partitions("pair")?.into_iter().collect();
    assert_eq!(partitions.len(), sent);
    Ok(())
}

#[test]
fn surrounding_spaces_are_not_part_of_a_value() -> Result<()> {
    let rig = Rig::start(headers())?;
    let one = |value: &str| Request::get("/one").header("x-a", value);
    assert_eq!(
        rig.statuses(&[one("a"), one("  a"), one("a \t"), one("a b")])?,
        [200, 429, 429, 200]
    );
    Ok(())
}

#[test]
fn value_given_twice_identifies_no_client() -> Result<()> {
    let sources = [
        ("header", json!({"header": {"name": "x-a"}})),
        ("cookie", json!({"cookie": {"name": "a"}})),
        ("query", json!({"query": {"name": "a"}})),
    ];
    let mut policies = Vec::new();
    for (name, _) in &sources {
        policies.push(one_each(name, &[&format!("by-{name}")]));
        let mut shared = one_each(&format!("shared-{name}"), &[&format!("by-{name}")]);
        shared["on_missing"] = json!("shared");
        let mut skipped = one_each(&format!("skipped-{name}"), &[&format!("by-{name}")]);
        skipped["on_missing"] = json!("skip");
        policies.extend([shared, skipped]);
    }
    let mut document = document(json!(policies));
    for (name, source) in &sources {
        // The address would match every client, so the policy must not fall back to it.
        document["identities"][format!("by-{name}")] = json!([source, {"client_ip": {}}]);
    }
    let rig = Rig::start(document)?;
    let requests = |prefix: &str| {
        [
            Request::get(&format!("/{prefix}header")).header("x-a", "1").header("x-a", "2"),
            Request::get(&format!("/{prefix}header")).header("x-a", "1").header("X-A", "1"),
            Request::get(&format!("/{prefix}cookie")).header("cookie", "a=1; a=2"),
            Request::get(&format!("/{prefix}cookie"))
                .header("cookie", "a=1")
                .header("cookie", "a=1"),
            Request::get(&format!("/{prefix}query?a=1&a=2")),
            Request::get(&format!("/{prefix}query?a=1&%61=1")),
        ]
    };
    assert_eq!(rig.statuses(&requests(""))?, [401; 6]);
    // Requests with several values form one partition, even if the policy does not count requests
    // without a value.
    for kind in ["shared", "skipped"] {
        assert_eq!(
            rig.statuses(&requests(&format!("{kind}-")))?,
            [200, 429, 200, 429, 200, 429],
            "{kind}"
        );
        for (name, _) in &sources {
            assert_eq!(rig.partitions(&format!("{kind}-{name}"))?, ["-"]);
        }
    }
    Ok(())
}

#[test]
fn missing_value_falls_through_to_the_next_source() -> Result<()> {
    let mut document = document(json!([one_each("any", &["any"])]));
    document["identities"]["any"] =
        json!([{"jwt": {"claim": "sub"}}, {"header": {"name": "x-a"}}, {"client_ip": {}}]);
    let rig = Rig::start(document)?;
    let get = || Request::get("/any");
    let requests = [
        get().header("x-a", "1").bearer(&jwt::token("alice")?),
        get().header("x-a", "1"),
        get().header("x-a", " "),
        get(),
    ];
    assert_eq!(rig.statuses(&requests)?, [200, 200, 200, 429]);
    assert_eq!(rig.partitions("any")?, ["header.x-a=1", "ip=127.0.0.1", "jwt.sub=alice"]);
    Ok(())
}

#[test]
fn claim_of_the_wrong_type_is_missing_and_never_matches_another_client() -> Result<()> {
    let mut document = document(json!([
        one_each("text", &["text"]),
        one_each("number", &["number"]),
        one_each("flag", &["flag"])
    ]));
    document["identities"]["text"] = json!([{"jwt": {"claim": "v"}}]);
    document["identities"]["number"] = json!([{"jwt": {"claim": "v", "type": "number"}}]);
    document["identities"]["flag"] = json!([{"jwt": {"claim": "v", "type": "boolean"}}]);
    let rig = Rig::start(document)?;
    let status = |path: &str, claim: Value| -> Result<u16> {
        let token = jwt::token_with(&json!({"v": claim}))?;
        Ok(rig.statuses(&[Request::get(path).bearer(&token)])?[0])
    };
    let nothing = [json!(null), json!([]), json!(["a"]), json!({}), json!({"a": "b"}), json!("")];
    for path in ["/text", "/number", "/flag"] {
        for claim in &nothing {
            assert_eq!(status(path, claim.clone())?, 401, "{path} {claim}");
        }
    }
    for claim in [json!(42), json!(true), json!("a\u{0}b"), json!("a\nb"), json!("\u{7f}")] {
        assert_eq!(status("/text", claim.clone())?, 401, "{claim}");
    }
    for claim in [json!("42"), json!(true), json!("1234567")] {
        assert_eq!(status("/number", claim.clone())?, 401, "{claim}");
    }
    for claim in [json!("true"), json!(1)] {
        assert_eq!(status("/flag", claim.clone())?, 401, "{claim}");
    }
    assert_eq!(
        (status("/number", json!(7))?, status("/number", json!(7.0))?),
        (200, 429),
        "one number"
    );
    assert_eq!(rig.partitions("number")?, ["jwt.v=7"]);
    assert!(rig.partitions("text")?.is_empty() && rig.partitions("flag")?.is_empty());
    Ok(())
}

#[test]
fn number_has_the_same_partition_in_both_forms() -> Result<()> {
    let mut document = document(json!([one_each("number", &["number"])]));
    document["identities"]["number"] = json!([{"jwt": {"claim": "v", "type": "number"}}]);
    let rig = Rig::start(document)?;
    let cases = [
        (json!(0.1 + 0.2), "0.30000000000000004"),
        (json!(9_007_199_254_740_991_u64), "9007199254740991"),
        (json!(std::f64::consts::PI * 9.0), "28.274333882308138"),
        (json!(-2.5e-7), "-2.5e-7"),
    ];
    for (claim, _) in &cases {
        let token = jwt::token_with(&json!({"v": claim}))?;
        assert_eq!(rig.statuses(&[Request::get("/number").bearer(&token)])?, [200], "{claim}");
    }
    // Envoy rounds larger ones, so that several callers would have the same.
    for claim in [json!(1e21), json!(9_007_199_254_740_993_u64)] {
        let token = jwt::token_with(&json!({"v": claim}))?;
        assert_eq!(rig.statuses(&[Request::get("/number").bearer(&token)])?, [401], "{claim}");
    }
    let mut expected = cases.map(|(_, text)| format!("jwt.v={text}"));
    expected.sort_unstable();
    assert_eq!(rig.partitions("number")?, expected);
    Ok(())
}
