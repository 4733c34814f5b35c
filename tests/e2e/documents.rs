//! Proxies with different documents: what operators see of them.

use std::time::Duration;

use anyhow::Result;
use quotagate_support::envoy::{Envoy, EnvoyOptions};
use quotagate_support::http::{self, Client, Request};
use quotagate_support::store::StoreProcess;
use quotagate_support::wait;
use serde_json::{Value, json};

use crate::rig::{Rig, document, per_caller};

/// A proxy reports every 5 s, and another store sees it some seconds later.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn every_store_sees_that_two_proxies_have_two_documents() -> Result<()> {
    let rig = Rig::start(document(json!([per_caller(50)])))?;
    let mut more = per_caller(1000);
    more["name"] = json!("more");
    let other = document(json!([per_caller(60), more]));
    let options = EnvoyOptions::new(rig.upstream.port(), rig.store.port()).redis(&rig.redis.url());
    let second = Envoy::start(&options.document(other))?;
    let store = StoreProcess::start(&rig.redis.url(), &[])?;
    let mut clients = [rig.client()?, Client::connect(second.port())?];
    for store in [&rig.store, &store] {
        let in_force = wait::until("both documents", LIMIT, || {
            // Proxies report with their traffic.
            for client in &mut clients {
                client.send(&Request::get("/"))?;
            }
            let domains = store.operate("GET", "/v1/domains", &Value::Null)?;
            let in_force = domains[0]["in_force"].clone();
            Ok((in_force["proxies"] == 2).then_some(in_force))
        })?;
        let documents = in_force["documents"].as_array().cloned().unwrap_or_default();
        let proxies: Vec<&Value> = documents.iter().map(|of| &of["proxies"]).collect();
        assert_eq!(proxies, [1, 1], "{in_force}");
        assert_eq!(in_force["differ"], json!(["more", "per-caller"]), "{in_force}");
    }
    let metrics = http::get(rig.store.admin_port(), "/metrics")?.text();
    // A native module reports to itself.
    if !rig.counts_in_redis {
        let series = metrics.lines().filter(|line| line.starts_with("quotagate_document{"));
        assert_eq!(series.count(), 2, "{metrics}");
    }
    Ok(())
}
