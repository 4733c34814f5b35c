//! What the filter itself sends to clients.

use crate::document::{document, grant, policy};
use crate::host::{configure, header, host, lines, reply, request, response};

#[test]
fn custom_refusal_reaches_the_client() {
    let denied = r#""response":{"headers":[],"denied":{"status":503,"content_type":"text/html",
        "body":"<p>{policy}: {quota}, {retry_after}</p>","headers":{"X-Why":"{policy}"}}},"#;
    assert!(configure(&document(&policy("p", ""), denied, "")));
    request(2);
    reply(1, 200, &grant(0, 100));
    assert_eq!(host(|h| h.answered.clone()), [(2, 503)]);
    host(|h| {
        let headers = &h.answer.headers;
        assert_eq!(header(headers, "x-why").as_deref(), Some("p"));
        assert_eq!(header(headers, "content-type").as_deref(), Some("text/html"));
        let wait = header(headers, "retry-after").unwrap();
        assert_eq!(h.answer.body, format!("<p>p: 100, {wait}</p>"));
        assert_eq!((h.answer.grpc_status, &*h.answer.details), (8, "request_rate_limited"));
    });
}

#[test]
fn only_grpc_clients_get_the_grpc_retry_header() {
    for (content_type, has_pushback) in [("application/grpc", true), ("application/json", false)] {
        let case = move || {
            let response = r#""response":{"grpc_pushback":"1m"},"#;
            assert!(configure(&document(&policy("p", ""), response, "")));
            host(|h| h.set_request_header("content-type", content_type.as_bytes()));
            request(2);
            reply(1, 200, &grant(0, 100));
            request(3);
            assert_eq!(host(|h| h.answered.clone()), [(2, 429), (3, 429)]);
            let pushback = header(&host(|h| h.answer.headers.clone()), "grpc-retry-pushback-ms");
            assert_eq!(pushback.is_some(), has_pushback, "{content_type}");
            assert!(
                pushback.is_none_or(|ms| (29_000..=30_000).contains(&ms.parse::<u32>().unwrap()))
            );
        };
        std::thread::spawn(case).join().unwrap();
    }
}

#[test]
fn limits_of_the_upstream_are_joined() {
    let both = r#""response":{"headers":["ietf","x_ratelimit"]},"#;
    assert!(configure(&document(&policy("p", ""), both, "")));
    request(2);
    reply(1, 200, &grant(1, 40));
    let fields =
        [("ratelimit", "\"a\";r=1"), ("ratelimit", "\"b\";r=2"), ("x-ratelimit-remaining", "1")];
    host(|h| {
        h.upstream_headers = fields.map(|(name, value)| (name.to_owned(), value.into())).into()
    });
    response(2, 200);
    let set = host(|h| h.response_headers.clone());
    assert!(set["ratelimit"].starts_with("\"a\";r=1, \"b\";r=2, \"p\";r=60;t="), "{set:?}");
    assert_eq!(set.keys().filter(|name| name.starts_with("x-")).count(), 0, "{set:?}");
}

#[test]
fn warnings_are_logged_when_a_configuration_loads() {
    let denied = r#""response":{"denied":{"body":"wait {retry-after} s"}},"#;
    assert!(configure(&document(&policy("p", ""), denied, "")));
    request(2);
    assert_eq!(lines("response.denied.body: "), 1);
}
