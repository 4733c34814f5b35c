//! What a client sees: headers, custom refusals, and the methods HEAD and OPTIONS.

use anyhow::Result;
use quotagate_support::http::{Client, Request, Response};
use serde_json::{Value, json};

use crate::rig::{Rig, document, per_caller, reset_of};

/// A document with one unit for each caller, and these fields of `response`.
fn answering(response: Value) -> Value {
    let mut document = document(json!([per_caller(1)]));
    let fields = response.as_object().expect("an object");
    fields.iter().for_each(|(name, value)| document["response"][name] = value.clone());
    document
}

/// The answer to the second of two requests, which is refused.
fn refusal(response: Value) -> Result<Response> {
    let rig = Rig::start(answering(response))?;
    let mut client = rig.client()?;
    assert_eq!(client.send(&Request::get("/"))?.status, 200);
    client.send(&Request::get("/"))
}

#[test]
fn custom_refusal_has_its_status_body_and_headers() -> Result<()> {
    let refused = refusal(json!({"denied": {
        "status": 403,
        "content_type": "application/vnd.example+json",
        "body": r#"{"error": "{policy}", "wait": {retry_after}, "of": {quota}, "kept": "{other}"}"#,
        "headers": {"x-why": "{policy} of {quota}", "x-plain": "yes"}
    }}))?;
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (403, Some("application/vnd.example+json"))
    );
    assert_eq!(refused.header_all("x-why"), ["per-caller of 1"]);
    assert_eq!(refused.header_all("x-plain"), ["yes"]);
    let wait = reset_of(&refused);
    assert_eq!(
        refused.json()?,
        json!({"error": "per-caller", "wait": wait, "of": 1, "kept": "{other}"})
    );
    assert_eq!(refused.header("retry-after"), Some(wait.to_string().as_str()));
    Ok(())
}

#[test]
fn custom_body_defaults_to_plain_text_and_the_problem_has_the_custom_status() -> Result<()> {
    let text = refusal(json!({"denied": {"body": "Come back in {retry_after} s."}}))?;
    assert_eq!(text.status, 429);
    assert!(text.header("content-type").unwrap_or_default().starts_with("text/plain"), "{text:?}");
    assert_eq!(text.text(), format!("Come back in {} s.", reset_of(&text)));
    let problem = refusal(json!({"denied": {"status": 420}}))?;
    assert_eq!(
        (problem.status, problem.header("content-type")),
        (420, Some("application/problem+json"))
    );
    assert_eq!(problem.json()?["status"], 420);
    Ok(())
}

#[test]
fn reset_can_be_in_seconds() -> Result<()> {
    let refused = refusal(json!({"reset": "delta", "headers": ["ietf", "x_ratelimit"]}))?;
    assert_eq!(refused.header_all("x-ratelimit-reset"), [reset_of(&refused).to_string()]);
    Ok(())
}

#[test]
fn without_header_families_only_retry_after_is_sent() -> Result<()> {
    let refused = refusal(json!({"headers": []}))?;
    let quota =
        |name: &str| ["ratelimit", "x-ratelimit"].iter().any(|prefix| name.starts_with(prefix));
    assert!(!refused.headers.iter().any(|(name, _)| quota(&name.to_lowercase())), "{refused:?}");
    assert!(refused.header("retry-after").is_some());
    Ok(())
}

#[test]
fn upstream_limits_are_joined_on_counted_requests_and_kept_on_others() -> Result<()> {
    let mut policy = per_caller(5);
    policy["match"] = json!({"path": {"prefix": "/counted"}});
    let rig = Rig::start(document(json!([policy])))?;
    let mut client = rig.client()?;
    let mut ask = |path: &str| -> Result<Response> {
        let names = [
            "x-ratelimit-limit",
            "X-RateLimit-Limit",
            "X-Ratelimit-Used",
            "ratelimit",
            "RateLimit-Policy",
        ];
        let request = names.iter().fold(Request::get(path), |request, name| {
            request.header(&format!("x-answer-header-{name}"), "9")
        });
        client.send(&request)
    };
    let counted = ask("/counted")?;
    assert_eq!(counted.header_all("x-ratelimit-limit"), ["5"]);
    assert_eq!(counted.header_all("x-ratelimit-used"), ["1"]);
    assert_eq!(
        counted.header_all("ratelimit"),
        [format!("9, \"per-caller\";r=4;t={}", reset_of(&counted))]
    );
    assert_eq!(counted.header_all("ratelimit-policy"), ["9, \"per-caller\";q=5;w=31622400"]);
    let other = ask("/other")?;
    assert_eq!(other.header_all("x-ratelimit-limit"), ["9", "9"]);
    assert_eq!(other.header_all("ratelimit"), ["9"]);
    Ok(())
}

#[test]
fn quota_headers_written_by_clients_are_ignored() -> Result<()> {
    let rig = Rig::start(answering(json!({"headers": ["ietf", "x_ratelimit"]})))?;
    let forged = Request::get("/")
        .header("x-ratelimit-limit", "999")
        .header("ratelimit", "\"per-caller\";r=999;t=1");
    let forged = forged.header("x-ratelimit-remaining", "999");
    assert_eq!(rig.statuses(&[forged.clone(), forged])?, [200, 429]);
    Ok(())
}

#[test]
fn all_policies_are_listed_and_the_short_headers_show_the_tightest() -> Result<()> {
    let policy = |name: &str, quota: u64| json!({"name": name, "partition_by": [], "quota": quota, "window": "366d"});
    let rig =
        Rig::start(document(json!([policy("wide", 5), policy("tight", 1), policy("wider", 9)])))?;
    let mut client = rig.client()?;
    let admitted = client.send(&Request::get("/"))?;
    let refused = client.send(&Request::get("/"))?;
    assert_eq!((admitted.status, refused.status), (200, 429));
    let (t, policies) = (
        reset_of(&admitted),
        r#""wide";q=5;w=31622400, "tight";q=1;w=31622400, "wider";q=9;w=31622400"#,
    );
    assert_eq!(admitted.header("ratelimit-policy"), Some(policies));
    let limits = format!(r#""wide";r=4;t={t}, "tight";r=0;t={t}, "wider";r=8;t={t}"#);
    assert_eq!(admitted.header("ratelimit"), Some(limits.as_str()));
    assert_eq!(
        (admitted.header("x-ratelimit-limit"), admitted.header("x-ratelimit-used")),
        (Some("1"), Some("1"))
    );
    assert_eq!(refused.json()?["violated-policies"], json!(["tight"]));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    Ok(())
}

fn head(client: &mut Client) -> Result<Response> {
    client.start(&Request::new("HEAD", "/"))?;
    client.finish_without_body()
}

#[test]
fn head_and_options_are_counted_and_answered_like_other_methods() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(2)])))?;
    let mut client = rig.client()?;
    assert_eq!(head(&mut client)?.status, 200);
    assert_eq!(client.send(&Request::new("OPTIONS", "/"))?.status, 200);
    let refused = head(&mut client)?;
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (429, Some("application/problem+json"))
    );
    assert!(refused.header("retry-after").is_some() && refused.header("ratelimit").is_some());
    // The answer to HEAD had no body, so the connection can carry the next request.
    assert_eq!(client.send(&Request::new("OPTIONS", "/"))?.status, 429);
    assert_eq!(rig.upstream.requests(), 2);
    Ok(())
}
