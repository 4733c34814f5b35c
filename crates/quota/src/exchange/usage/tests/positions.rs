//! Where `usage` counts, and where it does not.

use super::{EVENTS, JSON, input};

#[test]
fn usage_counts_in_three_places() {
    for (body, expected) in [
        (r#"{"usage": {"prompt_tokens": 7}}"#, Some(7)),
        (r#"{"response": {"usage": {"prompt_tokens": 7}}}"#, Some(7)),
        (r#"{"message": {"usageMetadata": {"promptTokenCount": 7}}}"#, Some(7)),
        (r#"[{"usage": {"prompt_tokens": 7}}]"#, Some(7)),
        (
            r#"[0, [{"usage": 1}], "usage", {}, {"response": {"usage": {"prompt_tokens": 7}}}]"#,
            Some(7),
        ),
        (r#"{"choices": [{"usage": {"prompt_tokens": 7}}]}"#, None),
        (r#"{"choices": {"usage": {"prompt_tokens": 7}}}"#, None),
        (r#"{"usage": {"usage": {"prompt_tokens": 7}}}"#, None),
        (r#"{"response": {"response": {"usage": {"prompt_tokens": 7}}}}"#, None),
        (r#"{"response": {"message": {"usage": {"prompt_tokens": 7}}}}"#, None),
        (r#"{"response": [{"usage": {"prompt_tokens": 7}}]}"#, None),
        (r#"{"x": {"response": {"usage": {"prompt_tokens": 7}}}}"#, None),
        (r#"[[{"usage": {"prompt_tokens": 7}}]]"#, None),
        (r#"{"usage": [{"prompt_tokens": 7}]}"#, None),
        (r#"{"usage": "{\"prompt_tokens\": 7}"}"#, None),
        (r#"{"Usage": {"prompt_tokens": 7}}"#, None),
        (r#"{"usage ": {"prompt_tokens": 7}}"#, None),
        (r#"{"usage_": {"prompt_tokens": 7}, "usa": {"prompt_tokens": 7}}"#, None),
        (r#""usage": {"prompt_tokens": 7}"#, None),
        (r#"7 {"usage": {"prompt_tokens": 7}}"#, None),
        ("\u{feff} {\"usage\": {\"prompt_tokens\": 7}}", Some(7)),
    ] {
        assert_eq!(input(JSON, body), expected, "{body}");
        assert_eq!(input(EVENTS, format!("data: {body}\n\n")), expected, "{body}");
    }
}

#[test]
fn usage_in_a_text_does_not_count() {
    for text in [
        r#"\"usage\": {\"prompt_tokens\": 7}"#,
        r#"\\\", \"usage\": {\"prompt_tokens\": 7}, \""#,
        r#"}, \"usage\": {\"prompt_tokens\": 7}"#,
        r#"\u0022, \u0022usage\u0022: {\u0022prompt_tokens\u0022: 7}"#,
        "}]}, usage: {prompt_tokens: 7}",
        r"\\",
    ] {
        let body = format!(r#"{{"choices": [{{"text": "{text}"}}], "id": "{text}"}}"#);
        assert_eq!(input(JSON, &body), None, "{body}");
        let body = format!(r#"{{"id": "{text}", "usage": {{"prompt_tokens": 8}}}}"#);
        assert_eq!(input(JSON, &body), Some(8), "{body}");
    }
}

#[test]
fn an_escaped_key_is_the_same_key() {
    for key in [r"us\u0061ge", r"\u0075\u0073\u0061\u0067\u0065", "usage"] {
        let body = format!(r#"{{"{key}": {{"prompt\u005ftokens": 7}}}}"#);
        assert_eq!(input(JSON, &body), Some(7), "{body}");
    }
    let longest: String = "usageMetadata".chars().map(|c| format!("\\u{:04X}", c as u32)).collect();
    let body = format!(r#"{{"{longest}": {{"promptTokenCount": 7}}}}"#);
    assert_eq!(input(JSON, body), Some(7));
    for key in [r"us\u0041ge", r"us\a0061ge", r"us\ud83dge", "us\u{430}ge", r"usage\u0000"] {
        let body = format!(r#"{{"{key}": {{"prompt_tokens": 7}}}}"#);
        assert_eq!(input(JSON, &body), None, "{body}");
    }
}

#[test]
fn the_later_of_two_values_counts() {
    for (body, expected) in [
        (r#"{"usage": {"prompt_tokens": 7}, "usage": {"prompt_tokens": 8}}"#, 8),
        (r#"{"usage": {"prompt_tokens": 7, "prompt_tokens": 8}}"#, 8),
        (r#"{"usage": {"prompt_tokens": 7}, "usage": null}"#, 7),
        (r#"{"usage": {"prompt_tokens": 7}, "usage": {"completion_tokens": 8}}"#, 7),
        (r#"{"message": {"usage": {"prompt_tokens": 7}}, "usage": {"prompt_tokens": 8}}"#, 8),
        (r#"{"usage": {"prompt_tokens": 7}, "response": {"usage": {"prompt_tokens": 8}}}"#, 8),
    ] {
        assert_eq!(input(JSON, body), Some(expected), "{body}");
    }
}

#[test]
fn members_after_an_entered_object_count() {
    let body = r#"{"response": {"a": {"b": [1, {}]}, "c": []}, "d": {"response": 1},
        "message": 5, "response": "x", "message": [], "usage": {"prompt_tokens": 7}}"#;
    assert_eq!(input(JSON, body), Some(7));
}
