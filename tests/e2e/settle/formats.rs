//! Every source of a real cost, and every format of usage.

use std::io::Read;
use std::time::{Duration, Instant};

use anyhow::Result;
use quotagate_support::edits;
use quotagate_support::envoy::{Envoy, EnvoyOptions, Form, manager};
use quotagate_support::http::{Client, Request};
use quotagate_support::model::{EVENTS, PAUSE_MS, TOKENS};
use quotagate_support::yaml;
use serde_json::{Value, json};

use super::{Rig, tokens};
use crate::rig::document;

#[test]
fn counter_is_the_sum_of_real_costs_in_every_format() -> Result<()> {
    let cost = json!({"reserve": 500, "settle": [{"usage": "total"}], "if_missing": 7});
    let rig = Rig::start(json!([tokens(1_000_000, cost)]))?;
    let (mut client, mut direct) = (rig.client()?, Client::connect(rig.model.port())?);
    let mut sum = 0;
    for (path, used, cost) in [
        ("/openai/json", 120, 120),
        ("/openai/stream", 1001, 1001),
        ("/anthropic/json", 90, 90),
        ("/anthropic/stream", 3001, 3001),
        ("/gemini/json", 55, 55),
        ("/gemini/stream", 56, 56),
        ("/openai/json", 0, 0),
        ("/silent/json", 120, 7),
        ("/silent/stream", 120, 7),
        ("/openai/gzip", 120, 7),
    ] {
        let request = Request::get(path).header(TOKENS, used.to_string());
        let response = client.send(&request)?;
        assert_eq!(response.status, 200, "{path}");
        assert_eq!(response.text(), direct.send(&request)?.text(), "{path} is passed on unchanged");
        let remaining = 1_000_000 - sum - 500;
        assert_eq!(
            response.header("x-ratelimit-remaining"),
            Some(&*remaining.to_string()),
            "{path}: what is left before settling"
        );
        sum += cost;
        rig.settled("tokens", sum)?;
    }
    Ok(())
}

#[test]
fn headers_trailers_and_metadata_say_the_cost() -> Result<()> {
    let policy = |name: &str, path: &str, source| {
        json!({
            "name": name, "match": {"path": {"exact": path}}, "partition_by": [], "quota": 10_000,
            "window": "366d", "cost": {"reserve": 500, "settle": [source]}
        })
    };
    let policies = json!([
        policy("header", "/openai/header", json!({"response_header": "x-cost"})),
        policy("trailer", "/openai/trailer", json!({"response_trailer": "x-cost"})),
        policy("metadata", "/openai/json", json!({"metadata": {"filter": "cost", "path": ["t"]}})),
        policy("weights", "/openai/stream", json!({"usage": {"input": 1, "output": 4}})),
    ]);
    let rig = Rig::start_with(policies, |options| {
        options.edit(edits::metadata("cost", json!({"t": 44})))
    })?;
    let mut client = rig.client()?;
    for (name, path, cost) in [
        ("header", "/openai/header", 101),
        ("trailer", "/openai/trailer", 101),
        ("metadata", "/openai/json", 44),
        ("weights", "/openai/stream", 51 + 4 * 50),
    ] {
        let response = client.send(&Request::get(path).header(TOKENS, "101"))?;
        assert_eq!(response.status, 200, "{path}");
        rig.settled(name, cost)?;
    }
    Ok(())
}

/// Copies nested metadata to the response header `x-tokens`, before quotagate sees the response.
fn nested_to_header(config: &mut Value) -> Result<()> {
    let filters = yaml::list(manager(config)?, "http_filters")?;
    let header = json!({"key": "x-tokens", "value": "%DYNAMIC_METADATA(cost:u:tokens)%"});
    let router = filters.len() - 1;
    filters.insert(
        router,
        json!({"name": "envoy.filters.http.header_mutation", "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"response_mutations": [{"append": {"header": header}}]}
        }}),
    );
    Ok(())
}

#[test]
fn nested_metadata_says_the_cost_by_itself_or_as_a_header() -> Result<()> {
    let start = |source: Value| {
        let cost = json!({"reserve": 2, "settle": [source]});
        let policies = json!([tokens(1000, cost)]);
        let mut document = document(policies.clone());
        document["on_wrong_document"] = json!("reject");
        Rig::start_with(policies, |options| {
            options
                .document(document)
                .edit(edits::metadata("cost", json!({"u": {"tokens": 86}})))
                .edit(nested_to_header)
        })
    };
    let nested = json!({"metadata": {"filter": "cost", "path": ["u", "tokens"]}});
    let header = json!({"response_header": "x-tokens"});
    let readable = match Form::of_run()? {
        Form::Wasm => vec![nested, header],
        Form::Native => {
            let Err(error) = start(nested) else { anyhow::bail!("it cannot be read") };
            let error = format!("{error:#}");
            assert!(error.contains("settle[0].metadata.path: must have one name"), "{error}");
            vec![header]
        }
    };
    for source in readable {
        let rig = start(source)?;
        assert_eq!(rig.client()?.send(&Request::get("/openai/json"))?.status, 200);
        rig.settled("tokens", 86)?;
    }
    Ok(())
}

#[test]
fn stream_reaches_the_client_while_it_runs() -> Result<()> {
    let cost = json!({"reserve": 500, "settle": [{"usage": "total"}]});
    let rig = Rig::start(json!([tokens(10_000, cost)]))?;
    let started = Instant::now();
    let headers = [(TOKENS, "100"), (EVENTS, "10"), (PAUSE_MS, "300"), ("connection", "close")];
    let mut stream = rig.begin("/openai/stream", &headers)?;
    let first = started.elapsed();
    stream.read_to_end(&mut Vec::new())?;
    let all = started.elapsed();
    assert!(all >= Duration::from_secs(3) && first < all / 2, "{first:?} of {all:?}");
    rig.settled("tokens", 100)
}

#[test]
fn file_without_bodies_refuses_policies_that_read_them() -> Result<()> {
    if !Form::Wasm.is_under_test("the two files of the Wasm filter")? {
        return Ok(());
    }
    for cost in [
        json!({"reserve": 500, "settle": [{"usage": "total"}]}),
        json!({"reserve": {"request_json": "max_tokens", "default": 5}}),
    ] {
        let mut document = document(json!([tokens(1, cost)]));
        document["on_wrong_document"] = json!("reject");
        let options = EnvoyOptions::new(1, 1).document(document);
        let error = format!("{:#}", Envoy::start(&options).unwrap_err());
        assert!(error.contains("quotagate-bodies.wasm"), "{error}");
    }
    Ok(())
}
