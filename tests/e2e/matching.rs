//! Which requests a policy matches, with Envoy's own path normalization off. A policy with quota 0
//! shows it without counting: it refuses every request that it matches.

use anyhow::Result;
use quotagate_support::edits;
use quotagate_support::http::Request;
use serde_json::{Value, json};

use crate::rig::{Rig, document};

/// A document that refuses the requests that these conditions match.
fn refusing(condition: Value) -> Value {
    document(
        json!([{"name": "nobody", "partition_by": [], "quota": 0, "window": "1m", "match": condition}]),
    )
}

fn assert_matches(rig: &Rig, requests: &[Request], matched: bool) -> Result<()> {
    for request in requests {
        let status = rig.statuses(std::slice::from_ref(request))?[0];
        assert_eq!(status, if matched { 429 } else { 200 }, "{request:?}");
    }
    Ok(())
}

fn raw(condition: Value) -> Result<Rig> {
    Rig::start_with(refusing(condition), |options| options.edit(edits::raw_paths))
}

fn paths(paths: &[&str]) -> Vec<Request> {
    paths.iter().map(|path| Request::get(path)).collect()
}

#[test]
fn no_spelling_of_a_path_escapes_a_prefix() -> Result<()> {
    let rig = raw(json!({"path": {"prefix": "/admin/"}}))?;
    let inside = [
        "/admin/",
        "/admin/x",
        "//admin//x",
        "/./admin/x",
        "/admin/./x",
        "/a/../admin/x",
        "/a/b/../../admin/x",
        "/../admin/x",
        "/%61dmin/x",
        "/%61%64%6d%69%6E/x",
        "/admin%2fx",
        "/admin%2Fx",
        "/%2fadmin/x",
        "/\\admin/x",
        "/admin%5cx",
        "/%2e/admin/x",
        "/a/%2e%2e/admin/x",
        "/a%2f..%2fadmin/x",
        "/admin/x?y=/other",
        "/admin/?",
        "/admin/../admin/x",
    ];
    assert_matches(&rig, &paths(&inside), true)?;
    let outside = [
        "/",
        "/admin",
        "/administrator/x",
        "/ADMIN/x",
        "/x/admin/",
        "/admin/..",
        "/admin/../x",
        "/admin%252fx",
        "/%2561dmin/x",
        "/x?/admin/",
        "/admin.x",
        "/...admin/x",
    ];
    assert_matches(&rig, &paths(&outside), false)
}

#[test]
fn exact_suffix_and_regex_paths_see_the_normalized_path() -> Result<()> {
    let cases = [
        (json!({"exact": "/a/b"}), ["/a/b/", "/a//b;p?x", "/a/%62"], ["/a/b/c", "/a", "/A/b"]),
        (
            json!({"suffix": ".pdf"}),
            ["/x.pdf", "/x%2Epdf?y", "/a/../x.pd%66"],
            ["/x.pdf/", "/pdf", "/x?y=.pdf"],
        ),
        (
            json!({"regex": "(?i)/users/[0-9]+"}),
            ["/users/1", "/USERS/%31", "//users/./1"],
            ["/users/a", "/users/1/x", "/x/users/1"],
        ),
    ];
    for (path, inside, outside) in cases {
        let rig = raw(json!({"path": path}))?;
        assert_matches(&rig, &paths(&inside), true)?;
        assert_matches(&rig, &paths(&outside), false)?;
    }
    Ok(())
}

#[test]
fn equivalent_paths_share_one_partition() -> Result<()> {
    let document = document(
        json!([{"name": "per-path", "partition_by": ["path"], "quota": 1, "window": "366d"}]),
    );
    let rig = Rig::start_with(document, |options| options.edit(edits::raw_paths))?;
    assert_eq!(
        rig.statuses(&paths(&["/a/b", "/a//b?x=1", "/a/./%62", "/a;1/b/;2", "/a/c"]))?,
        [200, 429, 429, 429, 200]
    );
    assert_eq!(rig.partitions("per-path")?, ["path=/a/b", "path=/a/c"]);
    Ok(())
}

#[test]
fn hosts_match_in_any_case_without_port() -> Result<()> {
    let rig = Rig::start(refusing(json!({"hosts": ["api.example.com", "*.example.org"]})))?;
    let hosts = |hosts: &[&str]| -> Vec<Request> {
        hosts.iter().map(|host| Request::get("/").header("host", host)).collect()
    };
    let inside = [
        "api.example.com",
        "API.Example.COM:8443",
        "api.example.com.",
        "a.example.org",
        "a.b.example.org:1",
    ];
    assert_matches(&rig, &hosts(&inside), true)?;
    let outside = [
        "example.com",
        "xapi.example.com",
        "example.org",
        "example.org.evil.net",
        "api.example.com.evil.net",
    ];
    assert_matches(&rig, &hosts(&outside), false)
}

#[test]
fn methods_match_in_the_form_they_are_counted() -> Result<()> {
    let rig = Rig::start(refusing(json!({"methods": ["GET", "DELETE"]})))?;
    assert_matches(&rig, &["GET", "DELETE"].map(|method| Request::new(method, "/")), true)?;
    assert_matches(&rig, &[Request::post("/", b""), Request::new("OPTIONS", "/")], false)
}

#[test]
fn headers_match_by_any_of_their_values() -> Result<()> {
    let rig = Rig::start(refusing(json!({"headers": [
        {"name": "x-beta", "exact": "1"}, {"name": "x-client", "prefix": "bot/"},
        {"name": "x-version", "regex": "v[0-9]+"}, {"name": "x-trace", "present": true}, {"name": "x-vip", "present": false}
    ]})))?;
    let request = |beta: &str, client: &str, version: &str| {
        let request = Request::get("/").header("x-beta", beta).header("x-client", client);
        request.header("x-version", version).header("x-trace", "")
    };
    let all = || request("1", "bot/7", "v2");
    let inside = [
        all(),
        all().header("X-Beta", "0"),
        request("0", "bot/7", "v2").header("x-beta", "1"),
        request(" 1 ", "bot/", "v10"),
    ];
    assert_matches(&rig, &inside, true)?;
    let outside = [
        request("11", "bot/7", "v2"),
        request("1", "a bot/7", "v2"),
        request("1", "bot/7", "v2x"),
        all().header("x-vip", "1"),
        Request::get("/")
            .header("x-beta", "1")
            .header("x-client", "bot/7")
            .header("x-version", "v2"),
    ];
    assert_matches(&rig, &outside, false)
}

#[test]
fn routes_match_by_name() -> Result<()> {
    let document = document(json!([
        {"name": "nobody", "partition_by": [], "quota": 0, "window": "1m", "match": {"routes": ["search"]}},
        {"name": "per-route", "partition_by": ["route"], "quota": 1, "window": "366d"}
    ]));
    let routes = edits::routes(&[("search", "/search"), ("items", "/items")]);
    let rig = Rig::start_with(document, |options| options.edit(routes))?;
    let requests = paths(&["/search", "/searching", "/items/1", "/items/2", "/other"]);
    assert_eq!(rig.statuses(&requests)?, [429, 429, 200, 429, 200]);
    assert_eq!(rig.partitions("per-route")?, ["route=items", "route=upstream"]);
    Ok(())
}
