//! The formats of providers, in JSON and in streams.

use super::{EVENTS, JSON, read, usage};
use crate::exchange::usage::{TokenUsage, UsageReader};

#[test]
fn openai_chat() {
    let body = r#"{"id": "chatcmpl-1", "object": "chat.completion", "choices": [{"index": 0,
        "message": {"role": "assistant", "content": "Gr\u00fc\u00dfe \ud83d\ude00 “ä” {\"usage\":"},
        "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1117, "completion_tokens": 46, "total_tokens": 1163,
        "prompt_tokens_details": {"cached_tokens": 1024, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0}}, "service_tier": "default"}"#;
    assert_eq!(read(JSON, body), usage(1117, 1024, 46, 1163));
}

#[test]
fn openai_chat_stream_reports_in_its_last_chunk() {
    let body = concat!(
        "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"delta\":{\"content\":\"Hé 😀\"}}],",
        "\"usage\":null}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,",
        "\"total_tokens\":12,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n",
        "data: [DONE]\n\n",
    );
    assert_eq!(read(EVENTS, body), usage(9, 4, 3, 12));
}

#[test]
fn openai_embeddings_have_no_output() {
    let body = r#"{"object": "list", "data": [{"object": "embedding", "embedding": [0.1, -2e-3]}],
        "usage": {"prompt_tokens": 8, "total_tokens": 8}}"#;
    assert_eq!(read(JSON, body), usage(8, None, None, 8));
}

#[test]
fn openai_responses() {
    let body = r#"{"id": "resp_1", "output": [{"type": "message", "usage": {"input_tokens": 1}}],
        "usage": {"input_tokens": 36, "input_tokens_details": {"cached_tokens": 30},
        "output_tokens": 87, "output_tokens_details": {"reasoning_tokens": 64},
        "total_tokens": 123}, "user": null}"#;
    assert_eq!(read(JSON, body), usage(36, 30, 87, 123));
}

#[test]
fn openai_responses_stream_reports_below_response() {
    let body = concat!(
        "event: response.created\n",
        "data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"usage\":null}}\n\n",
        "event: response.output_text.delta\n",
        "data: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\n",
        "event: response.completed\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"content\":[{}]}],",
        "\"usage\":{\"input_tokens\":36,\"input_tokens_details\":{\"cached_tokens\":0},",
        "\"output_tokens\":87,\"total_tokens\":123}},\"sequence_number\":4}\n\n",
    );
    assert_eq!(read(EVENTS, body), usage(36, 0, 87, 123));
}

#[test]
fn anthropic_input_excludes_cached_tokens() {
    let body = r#"{"type": "message", "content": [{"type": "text", "text": "Hi"}],
        "usage": {"input_tokens": 100, "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 10, "output_tokens": 503,
        "cache_creation": {"ephemeral_5m_input_tokens": 20}, "service_tier": "standard"}}"#;
    assert_eq!(read(JSON, body), usage(130, 10, 503, None));
}

#[test]
fn anthropic_stream_is_cumulative() {
    let start = concat!(
        "event: message_start\n",
        "data: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{",
        "\"input_tokens\":25,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":100,",
        "\"output_tokens\":1}}}\n\n",
        "event: ping\ndata: {\"type\": \"ping\"}\n\n",
        "event: content_block_delta\n",
        "data: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n",
    );
    assert_eq!(read(EVENTS, start), usage(125, 100, 1, None), "interrupted");
    let end = concat!(
        "event: message_delta\n",
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},",
        "\"usage\":{\"output_tokens\":15}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );
    assert_eq!(read(EVENTS, format!("{start}{end}")), usage(125, 100, 15, None));
    let whole = "data: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":30,\
        \"cache_creation_input_tokens\":null,\"cache_read_input_tokens\":100,\"output_tokens\":15}}\n\n";
    assert_eq!(read(EVENTS, format!("{start}{whole}{end}")), usage(130, 100, 15, None));
}

#[test]
fn zero_replaces_no_number_above_zero() {
    let start = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":200,\
        \"cache_creation_input_tokens\":1000,\"cache_read_input_tokens\":4000,\"output_tokens\":1}}}\n\n";
    let zeros = "data: {\"type\":\"message_delta\",\"usage\":{\"input_tokens\":0,\
        \"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":50}}\n\n";
    assert_eq!(read(EVENTS, format!("{start}{zeros}")), usage(5200, 4000, 50, None));
    let other = zeros.replacen(":0", ":150", 1).replacen(":0", ":0.0", 1);
    assert_eq!(read(EVENTS, format!("{start}{other}")), usage(5150, 4000, 50, None));

    let openai = |usage: &str| format!("data: {{\"choices\":[],\"usage\":{{{usage}}}}}\n\n");
    let real = openai(
        r#""prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens":3,"total_tokens":12"#,
    );
    let zeros = openai(
        r#""prompt_tokens":0,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens":0,"total_tokens":0"#,
    );
    for body in [format!("{real}{zeros}"), format!("{zeros}{real}")] {
        assert_eq!(read(EVENTS, body), usage(9, 4, 3, 12));
    }
    assert_eq!(read(EVENTS, &zeros), usage(0, 0, 0, 0), "nothing else is known");

    let gemini = GEMINI.replace('\n', "");
    let zeros = r#"{"usageMetadata":{"promptTokenCount":0,"candidatesTokenCount":0,"thoughtsTokenCount":0,"cachedContentTokenCount":0,"totalTokenCount":0}}"#;
    assert_eq!(read(JSON, format!("[{gemini},{zeros}]")), usage(264, 200, 42, 306));
}

#[test]
fn zeros_of_another_format_hide_nothing() {
    for body in [
        r#"{"usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"input_tokens":0,"output_tokens":0}}"#,
        r#"{"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":12,"input_tokens":9,"output_tokens":3}}"#,
        r#"{"usage":{"input_tokens":9,"output_tokens":3,"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}"#,
    ] {
        let usage = read(JSON, body);
        assert_eq!(
            (usage.input, usage.output, usage.total),
            (Some(9), Some(3), Some(12)),
            "{body}"
        );
    }
    let caches = r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0},
        "cache_read_input_tokens":4,"completion_tokens":3}}"#;
    assert_eq!(read(JSON, caches), usage(9, 4, 3, None));
}

#[test]
fn total_of_an_earlier_event_is_a_lower_bound() {
    let start = r#"{"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":15}}"#;
    for (later, total) in [
        (r#"{"usage":{"completion_tokens":3}}"#, 15),
        (r#"{"usage":{"completion_tokens":30}}"#, 39),
        (r#"{"usage":{"completion_tokens":30,"total_tokens":0}}"#, 39),
        // A total that is stated with it is the vendor's own, even a smaller one.
        (r#"{"usage":{"completion_tokens":30,"total_tokens":11}}"#, 11),
    ] {
        assert_eq!(read(JSON, format!("[{start},{later}]")).total, Some(total), "{later}");
    }
}

#[test]
fn cache_fields_beside_openais_are_included_already() {
    // Proxies report OpenAI's fields and Anthropic's at once.
    let both = r#"{"usage": {"prompt_tokens": 130, "completion_tokens": 5, "total_tokens": 135,
        "cache_creation_input_tokens": 20, "cache_read_input_tokens": 10}}"#;
    assert_eq!(read(JSON, both), usage(130, 10, 5, 135));
    let responses = both.replace("prompt_tokens", "input_tokens");
    let responses = responses.replace("}}", r#", "input_tokens_details": {"cached_tokens": 10}}}"#);
    assert_eq!(read(JSON, responses), usage(130, 10, 5, 135));
}

#[test]
fn total_beside_anthropics_fields_drops_no_cache() {
    for total in [130, 105, 0] {
        let body = format!(
            r#"{{"usage": {{"input_tokens": 100, "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 10, "output_tokens": 5, "total_tokens": {total}}}}}"#
        );
        assert_eq!(read(JSON, body), usage(130, 10, 5, 135), "{total}");
    }
}

const GEMINI: &str = r#"{"candidates": [{"content": {"parts": [{"text": "Hi"}]}}],
    "usageMetadata": {"promptTokenCount": 264, "cachedContentTokenCount": 200,
    "candidatesTokenCount": 10, "thoughtsTokenCount": 32, "totalTokenCount": 306,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 264}]}, "modelVersion": "g"}"#;

#[test]
fn gemini_counts_thoughts_as_output() {
    assert_eq!(read(JSON, GEMINI), usage(264, 200, 42, 306));
    let tools = GEMINI.replace("candidatesTokenCount", "toolUsePromptTokenCount");
    assert_eq!(read(JSON, tools), usage(274, 200, 32, 306));
}

#[test]
fn gemini_streams_are_events_or_a_list() {
    let first = r#"{"usageMetadata": {"promptTokenCount": 264, "totalTokenCount": 264}}"#;
    let list = format!("[{first}\n,\r\n{GEMINI}]");
    assert_eq!(read("application/json; charset=UTF-8", list), usage(264, 200, 42, 306));
    let events = format!("data: {first}\r\n\r\ndata: {}\r\n\r\n", GEMINI.replace('\n', ""));
    assert_eq!(read(EVENTS, events), usage(264, 200, 42, 306));
    let interrupted = format!("[{first},{{\"candidates\": [{{\"con");
    assert_eq!(read(JSON, interrupted), usage(264, None, None, 264));
}

#[test]
fn only_whole_numbers_in_range_count() {
    for (number, expected) in [
        ("0", Some(0)),
        ("9007199254740991", Some(9_007_199_254_740_991)),
        ("12.0", Some(12)),
        ("1.2e1", Some(12)),
        ("-0.0", Some(0)),
        ("9007199254740992", None),
        ("18446744073709551616", None),
        ("1e999", None),
        ("-1", None),
        ("1.5", None),
        ("\"12\"", None),
        ("null", None),
        ("true", None),
        ("[12]", None),
        ("{}", None),
    ] {
        let body = format!(r#"{{"usage": {{"prompt_tokens": {number}}}}}"#);
        assert_eq!(read(JSON, body).input, expected, "{number}");
        let later = format!(
            r#"[{{"usage": {{"prompt_tokens": 5}}}}, {{"usage": {{"prompt_tokens": {number}}}}}]"#
        );
        // 1e999 is not JSON for the reader, so its whole object is ignored.
        let expected = expected.filter(|number| *number > 0).or(Some(5));
        assert_eq!(read(JSON, later).input, expected, "{number}");
    }
    let most = u64::pow(2, 53) - 1;
    let body =
        format!(r#"{{"usage": {{"input_tokens": {most}, "cache_read_input_tokens": {most}}}}}"#);
    assert_eq!(read(JSON, body), usage(most, most, None, None));
}

#[test]
fn only_compressed_bodies_are_not_read() {
    let reads = |encoding: &str| UsageReader::new(&[], encoding.as_bytes()).is_some();
    assert!(reads("") && reads(" Identity "));
    for encoding in ["gzip", "br", "zstd", "deflate", "gzip, identity", "\u{ff}"] {
        assert!(!reads(encoding), "{encoding}");
    }
    assert_eq!(UsageReader::new(&[], b"").unwrap().usage(), TokenUsage::default());
}

#[test]
fn first_bytes_say_the_format() {
    let json = r#"{"usage":{"prompt_tokens":9,"completion_tokens":3}}"#;
    let events = format!("data: {json}\n\ndata: [DONE]\n\n");
    for content_types in [
        &[][..],
        &[""],
        &["text/plain"],
        &["application/json", "application/json"],
        &["text/event-stream, application/json"],
        &["application/x-ndjson"],
        &["application/json"],
        &["text/event-stream"],
    ] {
        let content_types: Vec<Vec<u8>> =
            content_types.iter().map(|t| t.as_bytes().to_vec()).collect();
        let is_one_text = content_types == [b"application/json".to_vec()];
        let says_events = content_types == [b"text/event-stream".to_vec()];
        let first = format!("{}\n", r#"{"a":"}","usage":null}"#);
        for (body, is_final) in [
            (json.to_owned(), is_one_text),
            (format!(" \r\n[{json}]\n"), is_one_text),
            // Lines of JSON: nobody knows which one is the last.
            (format!("{first}{json}"), false),
            (format!("{first}{json}\r\n"), false),
            (format!("{first}{json}\n{}", &json[..9]), false),
            (events.clone(), true),
            (format!(": comment\n\n{events}"), true),
            (format!("event: x\n{events}"), true),
            (format!("id: 1\nretry: 1\n{events}"), true),
        ] {
            let mut reader = UsageReader::new(&content_types, b"").unwrap();
            body.as_bytes().chunks(5).for_each(|chunk| reader.feed(chunk));
            assert_eq!(reader.usage(), usage(9, None, 3, None), "{body}");
            assert_eq!((reader.is_final(), reader.reads_on()), (is_final, true), "{body}");
        }
        for (body, expected, reads_on) in [
            ("\x1f\u{8b}".to_owned(), None, says_events),
            (format!("<p>{json}"), None, says_events),
            (format!("\"{json}"), None, says_events),
            (format!("x-trace: 1\ndata: {json}\n\n"), says_events.then_some(9), says_events),
            (format!("{json} and more {json}"), Some(9), false),
        ] {
            let mut reader = UsageReader::new(&content_types, b"").unwrap();
            reader.feed(body.as_bytes());
            assert_eq!(reader.usage().input, expected, "{body}");
            assert_eq!((reader.is_final(), reader.reads_on()), (false, reads_on), "{body}");
        }
    }
}

#[test]
fn tokens_of_iterations_and_tools_count() {
    // A compaction and an advisor are in none of the other numbers; messages are.
    let anthropic = r#"{"type":"message","usage":{"input_tokens":23,"output_tokens":10,"iterations":[
        {"type":"compaction","input_tokens":180,"cache_read_input_tokens":20,"output_tokens":35},
        {"type":"message","input_tokens":23,"output_tokens":10},
        {"type":"advisor_message","model":"m","input_tokens":5,"cache_creation_input_tokens":2,"output_tokens":4}]}}"#;
    assert_eq!(read(JSON, anthropic), usage(230, 20, 49, None));
    let openai = |tokens: u64| {
        format!(
            r#"{{"response":{{"usage":{{"input_tokens":9,"output_tokens":3,"total_tokens":12}},"tool_usage":{{
            "image_gen":{{"input_tokens":{tokens},"cached_tokens":{tokens},"output_tokens":{},"total_tokens":{}}},
            "web_search":{{"num_requests":2}}}}}}}}"#,
            2 * tokens,
            3 * tokens
        )
    };
    assert_eq!(read(JSON, openai(0)), usage(9, None, 3, 12));
    assert_eq!(read(JSON, openai(100)), usage(109, 100, 203, 312));
    assert_eq!(read(JSON, format!("[{},{}]", openai(100), openai(0))), usage(109, 100, 203, 312));
    let svg = r#"{"usage":{"input_tokens":9,"output_tokens":3,"total_tokens":12},
        "svg_usage":{"model":"m","input_tokens":4,"output_tokens":5,"reasoning_tokens":1,"total_tokens":9}}"#;
    assert_eq!(read(JSON, svg), usage(13, None, 8, 21));
    let both = r#"{"usage":{"input_tokens":9,"output_tokens":3},
        "tool_usage":{"image_gen":{"input_tokens":7,"input_tokens_details":{"cached_tokens":2},"output_tokens":1}},
        "svg_usage":{"input_tokens":4,"output_tokens":5}}"#;
    assert_eq!(read(JSON, both), usage(20, 2, 9, None));
}

#[test]
fn other_names_of_cached_tokens() {
    for name in ["prompt_cache_hit_tokens", "cached_tokens"] {
        let body = format!(
            r#"{{"usage":{{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12,"{name}":4,
            "prompt_cache_miss_tokens":5}}}}"#
        );
        assert_eq!(read(JSON, body), usage(9, 4, 3, 12), "{name}");
    }
}

#[test]
fn gemini_interactions() {
    let numbers = r#""usage":{"total_input_tokens":7,"total_cached_tokens":2,"total_tool_use_tokens":1,
        "total_output_tokens":20,"total_thought_tokens":22,"total_tokens":50}"#;
    let numbers = numbers.replace(['\n', ' '], "");
    assert_eq!(read(JSON, format!(r#"{{"id":"v1_x",{numbers}}}"#)), usage(8, 2, 42, 50));
    let event = format!(
        "event: interaction.completed\ndata: {{\"event_type\":\"interaction.completed\",\"interaction\":{{{numbers}}}}}\n\n"
    );
    assert_eq!(read(EVENTS, event), usage(8, 2, 42, 50));
}
