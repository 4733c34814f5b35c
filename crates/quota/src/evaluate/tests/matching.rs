//! Which requests a policy is about.

use serde_json::json;

use super::*;

#[test]
fn all_conditions_must_hold() {
    let matching =
        json!({"methods": ["GET", "HEAD"], "path": {"prefix": "/api/"}, "hosts": ["*.EXAMPLE.org.", "a.b"]});
    let config = config(json!({}), &[json!({ "match": matching })]);
    for (method, path, host, applies) in [
        ("GET", "/api/x?y", "www.example.org:80", true),
        ("HEAD", "/api/", "A.B.", true),
        ("get", "/api/x", "a.b", true),
        ("GET", "/api?/api/", "a.b", false),
        ("GET", "/x#/api/", "a.b", false),
        ("GET", "/api/x", "example.org", false),
        ("GET", "/api/x", "x.a.b", false),
    ] {
        let facts = [(":method", method), (":path", path), (":authority", host)];
        assert_eq!(!keys(&config, &facts).is_empty(), applies, "{facts:?}");
        for missing in 0..3 {
            let mut fewer = facts.to_vec();
            fewer.remove(missing);
            assert!(keys(&config, &fewer).is_empty(), "{fewer:?}");
        }
    }
}

#[test]
fn facts_of_the_request_itself_are_normalized() {
    let by = json!({"partition_by": ["route", "host", "path", "method"]});
    let config = config(json!({}), &[by]);
    let facts =
        [(":method", "GET"), (":path", "/a b?q=1#f"), (":authority", "Shop.example.:443"), ("route", "r 1")];
    assert_eq!(keys(&config, &facts), ["{route=r%201,host=shop.example,path=/a%20b,method=GET}"]);
    assert!(keys(&config, &facts[..3]).is_empty());
}
