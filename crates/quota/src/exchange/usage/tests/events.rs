//! The framing of server-sent events.

use super::{EVENTS, JSON, input};

const USAGE: &str = r#"{"usage": {"prompt_tokens": 7}}"#;

#[test]
fn lines_end_in_three_ways() {
    for end in ["\n", "\r", "\r\n"] {
        let lines = [
            "event: x",
            "data: {\"usage\":",
            "data",
            "data:null}",
            "",
            &format!("data: {USAGE}"),
            "",
        ];
        assert_eq!(input(EVENTS, lines.join(end) + end), Some(7), "{end:?}");
        let lines =
            ["data: {\"usage\":", "id: 5", "data: {\"prompt_tokens\": ", "data:7}}", "", ""];
        assert_eq!(input(EVENTS, lines.join(end)), Some(7), "{end:?}");
    }
}

#[test]
fn an_event_begins_a_fresh_scan() {
    for end in ["\n\n", "\r\r", "\r\n\r\n", "\n\r", "\r\n\n"] {
        for before in
            ["{\"a\": [[\"", "{\"usage\": {\"prompt_tokens\": 1", "\\", "{\"usage\"", "[", "x"]
        {
            let body = format!("data: {before}{end}data: {USAGE}{end}");
            assert_eq!(input(EVENTS, &body), Some(7), "{body:?}");
        }
    }
    let half = "data: {\"usage\": {\"prompt_tokens\": 1\n\ndata: 7}}\n\n";
    assert_eq!(input(EVENTS, half), None);
    // No empty line: one event with two lines, which is not JSON.
    assert_eq!(input(EVENTS, format!("data: {{\"a\": [\ndata: {USAGE}\n\n")), None);
}

#[test]
fn only_data_lines_count() {
    for line in [
        format!(": {USAGE}"),
        format!(":data: {USAGE}"),
        format!("event: {USAGE}"),
        format!("id: {USAGE}"),
        format!("dat: {USAGE}"),
        format!("data1: {USAGE}"),
        format!("Data: {USAGE}"),
        format!(" data: {USAGE}"),
        format!("data {USAGE}"),
        format!("datadata: {USAGE}"),
        USAGE.to_owned(),
        "data: [DONE]".to_owned(),
    ] {
        let line = format!(":\n{line}");
        assert_eq!(input(EVENTS, format!("{line}\n\n")), None, "{line}");
        assert_eq!(input(EVENTS, format!("{line}\n\ndata:{USAGE}\n\n")), Some(7), "{line}");
        let within = format!("data:{}\n{line}\ndata:{}\n\n", &USAGE[..10], &USAGE[10..]);
        if !line.contains("\ndata:") {
            assert_eq!(input(EVENTS, &within), Some(7), "{within}");
        }
    }
}

#[test]
fn white_space_and_a_byte_order_mark_may_come_first() {
    for start in [&b"\xef\xbb\xbf"[..], b"\xef\xbb\xbf\n", b"\r\n\r\n", b" \t"] {
        let body = [start, b"data: ", USAGE.as_bytes(), b"\n\n"].concat();
        assert_eq!(input(EVENTS, &body), Some(7), "{start:?}");
        assert_eq!(input(JSON, [start, USAGE.as_bytes()].concat()), Some(7), "{start:?}");
    }
}

#[test]
fn an_interrupted_event_counts_what_it_reported() {
    assert_eq!(input(EVENTS, format!("data: {USAGE}")), Some(7));
    assert_eq!(input(EVENTS, format!("data: {}", &USAGE[..USAGE.len() - 1])), None, "unfinished");
    assert_eq!(input(EVENTS, "data: {\"usage\": {\"prompt_tokens\": 7},"), Some(7));
}
