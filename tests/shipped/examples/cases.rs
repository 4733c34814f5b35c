//! One test for each page, and what a page only says.

use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_support::http::Request;
use quotagate_support::upstream::DELAY_HEADER;
use quotagate_support::{jwt, wait, yaml};
use serde_json::json;

use super::Example;
use super::page::follow;

pub const EXAMPLES: [&str; 5] =
    ["ai-gateway", "burst-and-plan", "graphql-cost", "login", "tiers-by-roles"];

/// A question to the large model. Its answer reports that it used so many tokens.
fn question(team: &str, tokens: u64) -> Result<Request> {
    let answer = json!({"usage": {"prompt_tokens": 0, "completion_tokens": tokens,
        "total_tokens": tokens}});
    let body = br#"{"messages": [], "max_tokens": 2000}"#;
    Ok(Request::post("/v1/chat/completions", body)
        .bearer(&jwt::token_with(&json!({"team": team}))?)
        .header("x-model", "large")
        .header("content-type", "application/json")
        .header("x-answer-body", answer.to_string())
        .header("x-answer-header-content-type", "application/json"))
}

#[test]
fn ai_gateway() -> Result<()> {
    let example = Example::start("ai-gateway")?;
    follow("ai-gateway", example.envoy.port())
}

#[test]
fn team_without_budget_is_answered_by_the_small_model() -> Result<()> {
    let example = Example::start("ai-gateway")?;
    let mut client = example.client()?;
    let forged = question("red", 200_000)?.header("x-quotagate-exceeded", "large-model");
    for (request, answered_by) in [
        // A client cannot leave the budget of the large model.
        (forged, "large"),
        (question("red", 1)?, "small"),
        (question("blue", 1)?, "large"),
    ] {
        let response = client.send(&request)?;
        assert_eq!((response.status, response.header("x-answered-by")), (200, Some(answered_by)));
    }
    assert_eq!((example.requests("large_model"), example.requests("small_model")), (2, 1));
    let nobody = Request::post("/v1/chat/completions", b"{}");
    assert_eq!(client.send(&nobody)?.status, 401);
    Ok(())
}

#[test]
fn fifth_request_of_a_team_at_once_is_refused() -> Result<()> {
    let example = Example::start("ai-gateway")?;
    let slow = question("blue", 1)?.header(DELAY_HEADER, "3000");
    let mut running = Vec::new();
    for _ in 0..4 {
        let mut client = example.client()?;
        client.start(&slow)?;
        running.push(client);
    }
    wait::until_true("four requests", Duration::from_secs(20), || {
        Ok(example.requests("large_model") == 4)
    })?;
    let mut client = example.client()?;
    let refused = client.send(&question("blue", 1)?)?;
    assert_eq!((refused.status, refused.header("retry-after")), (429, None));
    assert_eq!(refused.header("x-should-retry"), Some("false"), "no client sleeps for weeks");
    assert_eq!(client.send(&question("red", 1)?)?.status, 200, "another team");
    for client in &mut running {
        assert_eq!(client.finish()?.status, 200);
    }
    wait::until_true("a free slot", Duration::from_secs(20), || {
        Ok(client.send(&question("blue", 1)?)?.status == 200)
    })
}

#[test]
fn error_of_a_model_costs_nothing_and_hidden_usage_costs_the_largest_request() -> Result<()> {
    let example = Example::start("ai-gateway")?;
    let mut client = example.client()?;
    let mut ask = |body: &[u8], status: &str, answer: &str| -> Result<u64> {
        let request = Request::post("/v1/chat/completions", body)
            .bearer(&jwt::token_with(&json!({"team": "green"}))?)
            .header("content-type", "application/json")
            .header("x-answer-status", status)
            .header("x-answer-body", answer)
            .header("x-answer-header-content-type", "application/json");
        let left = client.send(&request)?;
        assert_eq!(left.status.to_string(), status);
        Ok(left.header("x-ratelimit-remaining").context("no header")?.parse()?)
    };
    let cheap = br#"{"max_tokens": 1}"#;
    let usage = r#"{"usage": {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}}"#;
    // Each shows what is left while its own reservation is held, unless its status refunds that.
    let small = 2_000_000;
    for (status, left) in [("500", small), ("429", small), ("500", small), ("200", small - 1)] {
        assert_eq!(ask(cheap, status, usage)?, left, "{status}");
    }
    // The question's tokens cost half a unit each.
    let mut spent = 60 / 2 + 40;
    assert_eq!(ask(cheap, "200", r#"{"choices": []}"#)?, small - spent - 1);
    spent += 16_000;
    // Whatever the names, the greatest number is reserved.
    for body in [
        &br#"{"max_tokens": 1, "max_completion_tokens": 8000}"#[..],
        br#"{"MAX_TOKENS": 8000, "max_tokens": 1}"#,
    ] {
        assert_eq!(ask(body, "200", usage)?, small - spent - 8000);
        spent += 60 / 2 + 40;
    }
    Ok(())
}

#[test]
fn burst_and_plan() -> Result<()> {
    let example = Example::start("burst-and-plan")?;
    follow("burst-and-plan", example.envoy.port())
}

#[test]
fn plan_refuses_what_the_burst_allows() -> Result<()> {
    let example = Example::start_with("burst-and-plan", |document| {
        *yaml::at(document, "/policies/1/quota")? = json!(2);
        Ok(())
    })?;
    let mut client = example.client()?;
    let request = Request::get("/").bearer(&jwt::token_with(&json!({"customer": "acme"}))?);
    for status in [200, 200, 429] {
        assert_eq!(client.send(&request)?.status, status);
    }
    let limits = client.send(&request)?;
    let limits = limits.header("ratelimit").unwrap_or_default().to_owned();
    assert!(limits.starts_with("\"monthly\";r=0;t=") && !limits.contains("hourly"), "{limits}");
    Ok(())
}

#[test]
fn graphql_cost() -> Result<()> {
    let example = Example::start("graphql-cost")?;
    follow("graphql-cost", example.envoy.port())
}

#[test]
fn login() -> Result<()> {
    let example = Example::start("login")?;
    follow("login", example.envoy.port())
}

#[test]
fn tiers_by_roles() -> Result<()> {
    let example = Example::start("tiers-by-roles")?;
    follow("tiers-by-roles", example.envoy.port())
}
