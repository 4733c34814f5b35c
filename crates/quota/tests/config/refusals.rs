//! The answer to refused requests.

use quotagate_quota::config::{Config, Denied, HeaderFamily, Piece, Reset, Template};

use super::parse;

#[test]
fn custom_refusal_is_read() {
    let response = parse("good").unwrap_or_else(|faults| panic!("{faults}")).response;
    assert_eq!(
        (&*response.families, response.reset),
        (&[HeaderFamily::XRateLimit][..], Reset::Delta)
    );
    let Denied { status, content_type, body, headers } = response.denied;
    assert_eq!((status, content_type.as_deref()), (503, Some("application/json")));
    let text = |text: &str| Piece::Text(text.into());
    let pieces = [
        text("{\"error\": \""),
        Piece::Policy,
        text(" allows "),
        Piece::Quota,
        text("\", \"wait\": "),
        Piece::RetryAfter,
        text("}"),
    ];
    assert_eq!(body.as_ref().map(Template::pieces), Some(&pieces[..]));
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| (&**name, value.fill("p", 7, 100))).collect();
    assert_eq!(
        headers,
        [("x-denied-by", "quotagate p".to_owned()), ("cache-control", "no-store".to_owned())]
    );
}

#[test]
fn body_type_is_the_given_one_or_follows_from_the_body() {
    for (denied, content_type) in [
        (r#"{"body": "slow down"}"#, Some("text/plain; charset=utf-8")),
        (r#"{"body": "{\"wait\": {retry_after}}"}"#, Some("application/json")),
        (r#"{"body": "{\"policy\": {policy}}"}"#, Some("text/plain; charset=utf-8")),
        (r#"{"body": "0{quota}"}"#, Some("text/plain; charset=utf-8")),
        (r#"{"body": "{quota}"}"#, Some("application/json")),
        (r#"{"body": "{quota}", "content_type": "text/html"}"#, Some("text/html")),
        (r#"{"body": "[", "content_type": "text/json;v=\"a;b\""}"#, Some("text/json;v=\"a;b\"")),
        (r#"{"content_type": "application/problem+json"}"#, Some("application/problem+json")),
        (r#"{"body": ""}"#, None),
        (r#"{"body": "", "content_type": "text/plain"}"#, Some("text/plain")),
        ("{}", None),
    ] {
        let text = format!(
            r#"{{"domain":"d","store":{{"cluster":"c"}},"policies":[],"response":{{"denied":{denied}}}}}"#
        );
        let config =
            Config::parse(text.as_bytes()).unwrap_or_else(|faults| panic!("{denied}: {faults}"));
        assert_eq!(config.response.denied.content_type.as_deref(), content_type, "{denied}");
    }
}
