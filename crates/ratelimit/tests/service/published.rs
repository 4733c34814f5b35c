//! Rules that operators publish: taken up, refused, and given up again.

use std::sync::Arc;
use std::time::Duration;

use quotagate_ratelimit::files::RuleFolder;
use quotagate_ratelimit::rules::SharedDomains;
use quotagate_ratelimit::serve::RuleSource;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::running::{GrpcClient, LogLines, Running, Start, until};

fn rules(limit: u32) -> String {
    format!(
        "domain: d\ndescriptors:\n- {{key: k, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n"
    )
}

fn rule_file(text: &str) -> Value {
    json!({"domain": "d", "document": text, "by": "ann"})
}

/// A service that follows published rules, and has answered by rules of its own with this limit.
async fn follower(limit: u32) -> (Running, GrpcClient, TempDir) {
    let (start, folder) = Start::with_file(&rules(limit));
    let service = Start { follows_published: true, ..start }.run().await;
    let mut client = service.connect().await;
    until("the rules of the folder", async || client.limit().await == Some(limit)).await;
    (service, client, folder)
}

async fn publish(service: &Running, wish: &Value) {
    let (is_made, text) = service.documents("POST", wish).await;
    assert!(is_made, "{text}");
}

async fn withdraw(service: &Running) {
    let (is_made, text) = service.documents("DELETE", &json!({"domain": "d", "by": "ann"})).await;
    assert!(is_made, "{text}");
}

#[tokio::test]
async fn published_rules_replace_those_of_the_folder_until_they_are_withdrawn() {
    let (service, mut client, folder) = follower(5).await;
    publish(&service, &rule_file(&rules(3))).await;
    until("the published rules", async || client.limit().await == Some(3)).await;
    // What changes in the folder meanwhile decides later.
    std::fs::write(folder.path().join("rules.yaml"), rules(7)).unwrap();

    let faulty = rules(2).replace("year", "windw");
    let (is_made, text) = service.documents("POST", &rule_file(&faulty)).await;
    let expected = "line 3: descriptors[0].rate_limit.unit: \\\"windw\\\" is no unit";
    assert!(!is_made && text.contains(expected), "{text}");
    let (_, listed) = service.documents("GET", &json!({})).await;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["documents"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["documents"][0]["kind"], "rules");

    publish(&service, &rule_file(&rules(4))).await;
    until("the next published rules", async || client.limit().await == Some(4)).await;
    publish(&service, &json!({"domain": "d", "rollback_to": 1, "by": "ann"})).await;
    until("the first published rules", async || client.limit().await == Some(3)).await;
    withdraw(&service).await;
    until("the rules of the folder", async || client.limit().await == Some(7)).await;
}

#[tokio::test]
async fn service_that_starts_answers_by_what_is_published() {
    let (service, _client, folder) = follower(5).await;
    publish(&service, &rule_file(&rules(3))).await;
    let path = folder.path().to_owned();
    let shared = SharedDomains::Refuse;
    let rules = RuleFolder { path, siblings: false, ignores_dot_files: false, shared };
    let start = Start { follows_published: true, ..Start::new(RuleSource::Folder(rules)) };
    let next = Start { store: Arc::clone(&service.store), ..start }.run().await;
    assert_eq!(next.connect().await.limit().await, Some(3));
}

#[tokio::test]
async fn counts_go_on_under_published_rules() {
    let (service, mut client, _folder) = follower(3).await;
    let log = LogLines::record();
    publish(&service, &rule_file(&(rules(3) + "# the same\n"))).await;
    until("the rules", async || log.count("rules number 1 (") == 1).await;
    // One hit of three was taken before, and one now.
    let answer = client.ask("k=v").await.unwrap().unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 1);
}

#[tokio::test]
async fn policy_document_is_left_to_filters_and_said_once() {
    let (service, mut client, _folder) = follower(5).await;
    publish(&service, &rule_file(&rules(3))).await;
    until("the published rules", async || client.limit().await == Some(3)).await;
    let log = LogLines::record();
    // The service may never see the withdrawal.
    withdraw(&service).await;
    let policy = json!({"name": "k", "partition_by": [], "quota": 1, "window": "1h"});
    let document = json!({"domain": "d", "policies": [policy]});
    publish(&service, &json!({"domain": "d", "document": document, "by": "ann"})).await;
    until("the log", async || log.count("a policy document is published in d") == 1).await;
    // Two more looks.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(log.count("a policy document is published"), 1);
    assert_eq!(client.limit().await, Some(5));
    withdraw(&service).await;
    publish(&service, &rule_file(&rules(2))).await;
    until("the published rules", async || client.limit().await == Some(2)).await;
}

#[tokio::test]
async fn service_that_follows_none_keeps_its_own_rules() {
    let (start, _folder) = Start::with_file(&rules(5));
    let (other, _other_folder) = Start::with_file(&rules(5));
    let follower = Start { follows_published: true, store: Arc::clone(&start.store), ..other };
    let (service, follower) = (start.run().await, follower.run().await);
    let (mut client, mut following) = (service.connect().await, follower.connect().await);
    until("the rules of the folder", async || client.limit().await == Some(5)).await;
    publish(&service, &rule_file(&rules(3))).await;
    until("the published rules", async || following.limit().await == Some(3)).await;
    assert_eq!(client.limit().await, Some(5));
}
