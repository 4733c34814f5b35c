//! One member of a request's body.

use crate::usage::Member;

/// The member `max_tokens`. Reads the body whole, cut at every byte, and byte by byte.
fn max_tokens(body: impl AsRef<[u8]>) -> Option<u64> {
    member("max_tokens", body.as_ref())
}

fn member(name: &str, body: &[u8]) -> Option<u64> {
    let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut member = Member::new(name);
        chunks.for_each(|chunk| member.feed(chunk));
        member.value()
    };
    let value = read(&mut std::iter::once(body));
    for cut in 0..=body.len() {
        let (first, second) = body.split_at(cut);
        assert_eq!(read(&mut [first, second].into_iter()), value, "cut at {cut}");
    }
    assert_eq!(read(&mut body.chunks(1)), value, "byte by byte");
    value
}

#[test]
fn the_number_of_a_top_level_member() {
    for (body, expected) in [
        (r#"{"max_tokens": 500}"#, Some(500)),
        (
            r#"{"model":"m","messages":[{"role":"user","content":"\"max_tokens\": 1"}],"max_tokens":500}"#,
            Some(500),
        ),
        (r#" { "max\u005ftokens" : 500 , "stream" : true } "#, Some(500)),
        (r#"{"max_tokens": 500"#, None),
        (r#"{"max_tokens": 500,"#, Some(500)),
        (r#"{"max_tokens": 0}"#, Some(0)),
        (r#"{"max_tokens": 5e2}"#, Some(500)),
        (r#"{"max_tokens": 9007199254740991}"#, Some(9_007_199_254_740_991)),
        (r#"{"max_tokens": 9007199254740992}"#, None),
        (r#"{"max_tokens": -5}"#, None),
        (r#"{"max_tokens": 1.5}"#, None),
        (r#"{"max_tokens": "500"}"#, None),
        (r#"{"max_tokens": null}"#, None),
        (r#"{"max_tokens": [500]}"#, None),
        (r#"{"max_tokens": {"max_tokens": 500}}"#, None),
        (r#"{"x": {"max_tokens": 500}}"#, None),
        (r#"[{"max_tokens": 500}]"#, None),
        (r#"{"Max_tokens": 500}"#, None),
        (r#"{}"#, None),
        ("", None),
        ("\u{feff}{\"max_tokens\": 500}", Some(500)),
    ] {
        assert_eq!(max_tokens(body), expected, "{body}");
    }
    let padded = format!("{{\"max_tokens\":{}500{}}}", " \n".repeat(200), "\t\r".repeat(200));
    assert_eq!(max_tokens(padded), Some(500), "white space is not part of a number");
    assert_eq!(max_tokens(format!("{{\"max_tokens\": 1{}}}", "0".repeat(500))), None);
    assert_eq!(max_tokens(format!("{{\"max_tokens\": 1.{}}}", "0".repeat(500))), None, "too long");
    assert_eq!(
        member("größe \u{1f600}", "{\"gr\\u00f6ße \\ud83d\\ude00\": 5}".as_bytes()),
        Some(5)
    );
    assert_eq!(member("", b"{\"\": 5}"), Some(5));
}

#[test]
fn of_members_with_one_name_the_greatest_counts() {
    for (body, expected) in [
        (r#"{"max_tokens": 1, "max_tokens": 500}"#, Some(500)),
        (r#"{"max_tokens": 500, "max\u005ftokens": 1}"#, Some(500)),
        (r#"{"max_tokens": 1, "max_tokens": null}"#, None),
        (r#"{"max_tokens": "x", "max_tokens": 1}"#, None),
    ] {
        assert_eq!(max_tokens(body), expected, "{body}");
    }
}
