//! The event that ends a stream, and what does not end it.

use super::{EVENTS, JSON, usage_reader};
use crate::config::Measure;

/// What a client pays that leaves when so much of a body has come: no usage, more than is known, or
/// just the tokens that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Paid {
    Missing,
    AtLeast(u64),
    Just(u64),
}

fn paid(content_type: &str, chunks: &[&[u8]]) -> Paid {
    let mut reader = usage_reader(content_type);
    chunks.iter().for_each(|chunk| reader.feed(chunk));
    match (Measure::Total.units(&reader.usage()), reader.is_final()) {
        (None, _) => Paid::Missing,
        (Some(tokens), false) => Paid::AtLeast(tokens),
        (Some(tokens), true) => Paid::Just(tokens),
    }
}

/// Cuts a body of `before` and `last` everywhere. A client that leaves within `before` never pays
/// just what was read. One that has all of `last` pays `tokens`, and no less after each byte
/// between. `open` bytes at the end of `last` may be missing.
fn ends(content_type: &str, before: &str, last: &str, open: usize, tokens: u64) {
    let body = format!("{before}{last}");
    for cut in 0..=body.len() {
        let (first, second) = body.as_bytes().split_at(cut);
        let found = paid(content_type, &[first]);
        let shown = String::from_utf8_lossy(first);
        if cut < before.len() {
            assert!(!matches!(found, Paid::Just(_)), "{found:?} after {shown}");
        } else if let Paid::Just(paid) = found {
            assert_eq!(paid, tokens, "after {shown}");
        }
        if cut >= body.len() - open {
            assert_eq!(found, Paid::Just(tokens), "after {shown}");
        }
        assert_eq!(paid(content_type, &[first, second]), Paid::Just(tokens), "cut after {shown}");
    }
    let bytes: Vec<&[u8]> = body.as_bytes().chunks(1).collect();
    assert_eq!(paid(content_type, &bytes), Paid::Just(tokens), "byte by byte");
}

const TEXT: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"[] [DONE]\"}}],\
    \"usage\":null}\n\n";

#[test]
fn openai_chat_ends_with_its_usage_or_with_done() {
    let usage = "data: {\"choices\":[],\"usage\":{\"total_tokens\":12}}\n\n";
    ends(EVENTS, TEXT, usage, 2, 12);
    ends(EVENTS, TEXT, &usage.replace('\n', "\r\n"), 4, 12);
    let reversed = "data: {\"usage\":{\"total_tokens\":12},\"choices\": [ ]}\n\n";
    ends(EVENTS, TEXT, reversed, 2, 12);
    // Some servers report usage in every event, beside choices.
    let continuous = "data: {\"choices\":[{\"index\":0}],\"usage\":{\"total_tokens\":12}}\n\n";
    for done in ["data: [DONE]\n\n", "data:[DONE]\r\n\r\n", "data: [DONE]\r\r", "data: [DONE] \n\n"]
    {
        let open = done.len() - done.trim_end_matches(['\r', '\n']).len() - 1;
        ends(EVENTS, &format!("{TEXT}{continuous}"), done, open, 12);
    }
}

#[test]
fn openai_responses_end_with_their_last_type() {
    let before = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n\
        data: {\"type\":\"response.output_text.delta\",\"delta\":\"response.completed\"}\n\n";
    for last in ["completed", "incomplete", "failed"] {
        let last = format!(
            "event: response.{last}\ndata: {{\"type\":\"response.{last}\",\"response\":{{\"usage\":\
             {{\"input_tokens\":5,\"output_tokens\":7,\"total_tokens\":12}}}}}}\n\n"
        );
        ends(EVENTS, before, &last, 2, 12);
    }
}

#[test]
fn anthropic_ends_with_message_stop() {
    let before = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5,\"output_tokens\":1}}}\n\n\
        data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":7}}\n\n";
    ends(EVENTS, before, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", 2, 12);
}

#[test]
fn gemini_interactions_end_with_their_last_type() {
    let before = "data: {\"event_type\":\"interaction.created\",\"interaction\":{}}\n\n\
        data: {\"event_type\":\"step.stop\",\"index\":0,\"usage\":{\"total_tokens\":9}}\n\n";
    let last = "event: interaction.completed\ndata: {\"event_type\":\"interaction.completed\",\
        \"interaction\":{\"usage\":{\"total_tokens\":12}}}\n\n";
    ends(EVENTS, before, last, 2, 12);
}

fn gemini(candidates: &str, tokens: u64) -> String {
    let usage = format!("\"usageMetadata\":{{\"totalTokenCount\":{tokens}}}");
    format!("data: {{\"candidates\":[{candidates}],{usage}}}\r\n\r\n")
}

#[test]
fn gemini_ends_with_the_finish_reason_of_its_only_candidate() {
    let text = r#"{"content":{"parts":[{"text":"finishReason"}],"finishReason":"STOP"}"#;
    let before = gemini(&format!("{text},\"finishReason\":null}}"), 9);
    let before = before + &gemini(&format!("{text},\"index\":0}}"), 10);
    let last = gemini(&format!("{text},\"finishReason\":\"STOP\",\"index\":0}}"), 12);
    ends(EVENTS, &before, &last, 4, 12);
    // The reason first, then a usage of its own.
    let reason = "data: {\"candidates\":[{\"finishReason\":\"MAX_TOKENS\"}]}\r\n\r\n";
    let usage = "data: {\"usageMetadata\":{\"totalTokenCount\":12}}\r\n\r\n";
    ends(EVENTS, &format!("{before}{reason}"), usage, 4, 12);
}

#[test]
fn stream_with_several_candidates_ends_with_its_body() {
    let first = gemini(r#"{"index":0,"finishReason":"STOP"}"#, 9);
    let second = gemini(r#"{"index":1,"finishReason":"STOP"}"#, 12);
    for body in [
        format!("{}{first}{second}", gemini(r#"{"index":1}"#, 5)),
        format!("{first}{second}"),
        gemini(r#"{"finishReason":"STOP","index":0},{"index":1}"#, 12),
    ] {
        assert_eq!(paid(EVENTS, &[body.as_bytes()]), Paid::AtLeast(12), "{body}");
    }
}

#[test]
fn content_after_an_end_takes_it_back() {
    let zeros =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n";
    assert_eq!(paid(EVENTS, &[zeros.as_bytes()]), Paid::AtLeast(0), "before the first choice");
    let body = format!("{zeros}{TEXT}");
    assert_eq!(paid(EVENTS, &[body.as_bytes()]), Paid::AtLeast(0));
    let usage = "data: {\"choices\":[],\"usage\":{\"total_tokens\":12}}\n\n";
    let gemini = gemini(r#"{"content":{},"finishReason":"STOP","index":0}"#, 12);
    let reason = "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\n\n";
    let done = "data: [DONE]\n\n";
    let anthropic = "data: {\"type\":\"message_stop\",\"usage\":{\"total_tokens\":12}}\n\n";
    let delta = "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hi\"}}\n\n";
    for (end, content) in [
        (&format!("{TEXT}{usage}"), TEXT),
        (&gemini, &gemini),
        (&format!("{reason}{gemini}"), ""),
        (&format!("{TEXT}{usage}{done}"), TEXT),
        (&anthropic.to_owned(), delta),
    ] {
        let body = format!("{end}{content}");
        let open = [body.trim_end().as_bytes()];
        assert_eq!(paid(EVENTS, &open), Paid::AtLeast(12), "{body}");
        // The next one of the kind says no more.
        let body = format!("{body}{}", if end.contains(done) { usage } else { end });
        assert_eq!(paid(EVENTS, &[body.as_bytes()]), Paid::AtLeast(12), "{body}");
        let body = format!("{body}{done}");
        assert_eq!(paid(EVENTS, &[body.as_bytes()]), Paid::Just(12), "{body}");
    }
    // Neither comments nor further usages are content.
    let body = format!("{TEXT}{usage}: ping\n\n{usage}");
    assert_eq!(paid(EVENTS, &[body.as_bytes()]), Paid::Just(12));
}

#[test]
fn whole_json_text_is_final() {
    let open = |body: &str| body.len() - body.trim_end().len();
    for body in [
        r#"{"usage":{"total_tokens":12},"choices":[{}]}"#,
        "{\"usage\":{\"total_tokens\":12},\"a\":\"}\"}\n",
        r#"[{"usageMetadata":{"totalTokenCount":9}},{"usageMetadata":{"totalTokenCount":12}}]"#,
    ] {
        ends(JSON, "", body, open(body), 12);
        let part = &body.trim_end()[..body.trim_end().len() - 1];
        assert_eq!(paid(JSON, &[part.as_bytes()]), Paid::AtLeast(12), "{part}");
    }
}

#[test]
fn other_events_end_nothing() {
    let usage = "data: {\"choices\":[{}],\"usage\":{\"total_tokens\":12}}\n\n";
    for event in [
        "data: [DONE",
        "data: [DONE]x\n\n",
        "data: x[DONE]\n\n",
        "data: [\"DONE\"]\n\n",
        "data: [done]\n\n",
        ": [DONE]\n\n",
        "event: [DONE]\n\n",
        "[DONE]\n\n",
        "data: {\"choices\":[]}\n\n",
        "data: {\"choices\":[],\"usage\":null}\n\n",
        "data: {\"type\":\"message_delta\",\"usage\":{\"total_tokens\":12}}\n\n",
        "data: {\"delta\":{\"type\":\"message_stop\"}}\n\n",
        "data: {\"message\":{\"type\":\"message_stop\"}}\n\n",
        "data: {\"type\":[\"message_stop\"]}\n\n",
        "data: {\"type\":\"message_stop\"\n\n",
        "event: message_stop\n\n",
        "data: {\"choices\":[{\"finishReason\":\"STOP\"}],\"usage\":{\"total_tokens\":12}}\n\n",
        "data: {\"candidates\":{\"finishReason\":\"STOP\"},\"usage\":{\"total_tokens\":12}}\n\n",
    ] {
        let body = format!("{usage}{event}");
        assert_eq!(paid(EVENTS, &[body.as_bytes()]), Paid::AtLeast(12), "{event}");
    }
    let unfinished = "data: {\"choices\":[]\n\ndata: {\"usage\":{\"total_tokens\":12}}\n\n";
    assert_eq!(paid(EVENTS, &[unfinished.as_bytes()]), Paid::AtLeast(12), "another event");
}
