//! Each identity source once: its partition, another value is another client, and a request without
//! a value is not counted.

use anyhow::Result;
use quotagate_support::edits;
use quotagate_support::http::Request;
use quotagate_support::jwt;
use serde_json::{Value, json};

use crate::rig::{Rig, document, one_each};

/// A source, two requests that belong to different clients, and the partition of the first.
struct Case {
    name: &'static str,
    source: Value,
    first: Request,
    other: Request,
    partition: &'static str,
}

fn case(
    name: &'static str,
    source: Value,
    request: impl Fn(Request, bool) -> Request,
    partition: &'static str,
) -> Case {
    let path = format!("/{name}");
    let [first, other] = [true, false].map(|first| request(Request::get(&path), first));
    Case { name, source, first, other, partition }
}

fn header(name: &'static str, values: [&'static str; 2]) -> impl Fn(Request, bool) -> Request {
    move |request, first| request.header(name, if first { values[0] } else { values[1] })
}

fn claims(claims: [Value; 2]) -> impl Fn(Request, bool) -> Request {
    move |request, first| {
        request.bearer(&jwt::token_with(if first { &claims[0] } else { &claims[1] }).unwrap())
    }
}

fn tokens() -> Vec<Case> {
    vec![
        case(
            "jwt",
            json!({"jwt": {"claim": "sub"}}),
            claims([json!({"sub": "alice"}), json!({"sub": "bob"})]),
            "jwt.sub=alice",
        ),
        case(
            "nested",
            json!({"jwt": {"claim": "realm.tenant"}}),
            claims([json!({"realm": {"tenant": "a b"}}), json!({"realm": {"tenant": "c"}})]),
            "jwt.realm.tenant=a%20b",
        ),
        case(
            "dotted",
            json!({"jwt": {"claim": ["https://example.com/plan"]}}),
            claims([
                json!({"https://example.com/plan": "gold"}),
                json!({"https://example.com/plan": "free"}),
            ]),
            "jwt.https://example%2Ecom/plan=gold",
        ),
        case(
            "listed",
            json!({"jwt": {"claim": "groups.0"}}),
            claims([json!({"groups": ["staff", "all"]}), json!({"groups": ["guests", "all"]})]),
            "jwt.groups.0=staff",
        ),
        case(
            "number",
            json!({"jwt": {"claim": "id", "type": "number"}}),
            claims([json!({"id": 42}), json!({"id": 42.5})]),
            "jwt.id=42",
        ),
        case(
            "boolean",
            json!({"jwt": {"claim": "staff", "type": "boolean"}}),
            claims([json!({"staff": true}), json!({"staff": false})]),
            "jwt.staff=true",
        ),
        case(
            "several",
            json!({"jwt": {"claims": ["iss", "sub"]}}),
            claims([json!({"sub": "alice"}), json!({"sub": "bob"})]),
            "jwt.iss=quotagate-demo,jwt.sub=alice",
        ),
        case(
            "payload",
            json!({"jwt": {"payload": "other", "claim": "sub"}}),
            |request, first| {
                let subject = if first { "alice" } else { "bob" };
                request.header("x-other-token", jwt::OTHER.token(&json!({"sub": subject})).unwrap())
            },
            "jwt@other.sub=alice",
        ),
    ]
}

fn cases() -> Vec<Case> {
    let mut cases = tokens();
    cases.extend([
        case(
            "header",
            json!({"header": {"name": "x-tenant"}}),
            header("x-tenant", ["a b", "c"]),
            "header.x-tenant=a%20b",
        ),
        case(
            "cookie",
            json!({"cookie": {"name": "session"}}),
            header("cookie", ["theme=dark; session=s1", "session=s2; theme=dark"]),
            "cookie.session=s1",
        ),
        Case {
            name: "query",
            source: json!({"query": {"name": "tenant"}}),
            first: Request::get("/query?x=1&tenant=a%20b"),
            other: Request::get("/query?tenant=c"),
            partition: "query.tenant=a%20b",
        },
        case(
            "metadata",
            json!({"metadata": {"filter": "example", "path": ["plan"]}}),
            header("x-plan", ["gold", "free"]),
            "metadata.example.plan=gold",
        ),
        case(
            "metadata-number",
            json!({"metadata": {"filter": "example", "path": ["level"], "type": "number"}}),
            header("x-level", ["3", "4"]),
            "metadata.example.level=3",
        ),
        case(
            "ip",
            json!({"client_ip": {}}),
            header("x-forwarded-for", ["192.0.2.7", "192.0.2.8"]),
            "ip=192.0.2.7",
        ),
        case(
            "ip-network",
            json!({"client_ip": {"ipv4_prefix": 24}}),
            header("x-forwarded-for", ["192.0.2.7", "192.0.3.7"]),
            "ip=192.0.2.0/24",
        ),
        case(
            "ipv6",
            json!({"client_ip": {}}),
            header("x-forwarded-for", ["2001:db8:1:2::7", "2001:db8:1:3::7"]),
            "ip=2001:db8:1:2::/64",
        ),
        case(
            "ipv6-wide",
            json!({"client_ip": {"ipv6_prefix": 48}}),
            header("x-forwarded-for", ["2001:db8:1:2::7", "2001:db8:2:2::7"]),
            "ip=2001:db8:1::/48",
        ),
    ]);
    cases
}

#[test]
fn every_source_identifies_its_client() -> Result<()> {
    let cases = cases();
    let mut document = document(
        cases.iter().map(|case| one_each(case.name, &[&format!("by-{}", case.name)])).collect(),
    );
    for case in &cases {
        document["identities"][format!("by-{}", case.name)] = json!([case.source]);
    }
    let rig = Rig::start_with(document, |options| {
        options
            .edit(edits::trusted_hops(1))
            .edit(edits::second_issuer)
            .edit(edits::metadata_from_header("x-plan", "example", "plan", "STRING"))
            .edit(edits::metadata_from_header("x-level", "example", "level", "NUMBER"))
    })?;
    for case in cases {
        let statuses = rig.statuses(&[case.first.clone(), case.first, case.other])?;
        assert_eq!(statuses, [200, 429, 200], "{}", case.name);
        let partitions = rig.partitions(case.name)?;
        assert!(partitions.iter().any(|p| p == case.partition), "{}: {partitions:?}", case.name);
        // Every request has an address.
        if !case.name.starts_with("ip") {
            assert_eq!(
                rig.statuses(&[Request::get(&format!("/{}", case.name))])?,
                [401],
                "{}",
                case.name
            );
        }
    }
    Ok(())
}

#[test]
fn addresses_of_one_client_share_one_partition() -> Result<()> {
    let mut document =
        document(json!([one_each("ip", &["address"]), one_each("network", &["network"])]));
    document["identities"]["address"] = json!([{"client_ip": {}}]);
    document["identities"]["network"] = json!([{"client_ip": {"ipv4_prefix": 24}}]);
    let rig = Rig::start_with(document, |options| options.edit(edits::trusted_hops(1)))?;
    let from = |address: &str| Request::get("/ip").from_address(address);
    let same = [["192.0.2.7", "::ffff:192.0.2.7"], ["2001:db8::1", "2001:db8:0:0:ffff::2"]];
    for [first, second] in same {
        assert_eq!(rig.statuses(&[from(first), from(second)])?, [200, 429], "{first} and {second}");
    }
    assert_eq!(rig.partitions("ip")?, ["ip=192.0.2.7", "ip=2001:db8::/64"]);
    let neighbours = ["192.0.2.7", "192.0.2.255", "192.0.3.0"]
        .map(|address| Request::get("/network").from_address(address));
    assert_eq!(rig.statuses(&neighbours)?, [200, 429, 200]);
    Ok(())
}

#[test]
fn secrets_of_every_source_are_stored_as_digests() -> Result<()> {
    let names = ["header", "cookie", "query"];
    let mut document =
        document(names.iter().map(|name| one_each(name, &[&format!("by-{name}")])).collect());
    for name in names {
        document["identities"][format!("by-{name}")] =
            json!([{name: {"name": "key", "secret": true}}]);
    }
    let rig = Rig::start(document)?;
    let requests = [
        Request::get("/header").header("key", "s3cret"),
        Request::get("/cookie").header("cookie", "key=s3cret"),
        Request::get("/query?key=s3cret"),
    ];
    assert_eq!(rig.statuses(&requests)?, [200, 200, 200]);
    for name in names {
        let partitions = rig.partitions(name)?;
        assert!(
            matches!(partitions.as_slice(), [one] if one.starts_with(&format!("{name}.key=~")) && !one.contains("s3cret")),
            "{partitions:?}"
        );
    }
    Ok(())
}
