//! A number of a request's body.

use crate::exchange::usage::BodyNumber;

/// The value of the members with these names, and whether one is unusable. Reads the body whole,
/// cut at every byte, and byte by byte.
fn member(names: &[&str], body: &[u8]) -> (Option<u64>, bool) {
    let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut member = BodyNumber::new(names.iter().copied());
        chunks.for_each(|chunk| member.feed(chunk));
        (member.value(), member.is_unusable())
    };
    let value = read(&mut std::iter::once(body));
    for cut in 0..=body.len() {
        let (first, second) = body.split_at(cut);
        assert_eq!(read(&mut [first, second].into_iter()), value, "cut at {cut}");
    }
    assert_eq!(read(&mut body.chunks(1)), value, "byte by byte");
    value
}

/// The number of `max_tokens`. No other member is unusable than one without a number.
fn max_tokens(body: impl AsRef<[u8]>) -> Option<u64> {
    member(&["max_tokens"], body.as_ref()).0
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
        (r#"{"max-tokens": 500}"#, None),
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
    let (key, body) = ("größe \u{1f600}", "{\"gr\\u00f6ße \\ud83d\\ude00\": 5}");
    assert_eq!(member(&[key], body.as_bytes()), (Some(5), false));
    assert_eq!(member(&[""], b"{\"\": 5}"), (Some(5), false));
}

/// Go's parser takes a member for `max_tokens` whatever its case: also with the Kelvin sign and
/// with the long s.
#[test]
fn names_are_compared_without_case() {
    for key in [
        "MAX_TOKENS",
        "Max_Tokens",
        "max_to\u{212a}ens",
        r"max_to\u212aens",
        "max_token\u{17f}",
        r"max_token\u017f",
    ] {
        let body = format!(r#"{{"{key}": 8000, "max_tokens": 1}}"#);
        assert_eq!(max_tokens(body), Some(8000), "{key}");
    }
    assert_eq!(member(&["Max_Tokens"], br#"{"max_tokens": 7}"#), (Some(7), false));
}

#[test]
fn of_several_members_the_greatest_counts() {
    for (body, expected) in [
        (r#"{"max_tokens": 1, "max_tokens": 500}"#, (Some(500), false)),
        (r#"{"max_tokens": 500, "max\u005ftokens": 1}"#, (Some(500), false)),
        (r#"{"max_tokens": 1, "max_completion_tokens": 8000}"#, (Some(8000), false)),
        (r#"{"max_completion_tokens": 8000, "max_tokens": 1}"#, (Some(8000), false)),
        (r#"{"max_tokens": 1, "max_tokens": null}"#, (Some(1), true)),
        (r#"{"max_tokens": "x", "max_tokens": 1}"#, (Some(1), true)),
        (r#"{"max_completion_tokens": null}"#, (None, true)),
        (r#"{"max_output_tokens": 9}"#, (None, false)),
    ] {
        let names = ["max_completion_tokens", "max_tokens"];
        assert_eq!(member(&names, body.as_bytes()), expected, "{body}");
    }
}
