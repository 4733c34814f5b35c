//! Tenants identified by the server name of their TLS handshake.

use anyhow::Result;
use quotagate_support::http::{Client, Request};
use quotagate_support::tls::{Authority, Holder};
use serde_json::json;

use crate::rig::{Rig, document, one_each};

#[test]
fn tenants_are_counted_by_server_name_and_plain_connections_have_none() -> Result<()> {
    let mut document = document(vec![one_each("tenant", &["tenant"])].into());
    document["identities"] = json!({"tenant": [{"sni": {}}]});
    let directory = tempfile::tempdir()?;
    let authority = Authority::new(directory.path(), "clients")?;
    let listener = authority.listener()?;
    let inspector = json!({
        "name": "envoy.filters.listener.tls_inspector",
        "typed_config": {"@type": "type.googleapis.com/\
            envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"},
    });
    let rig = Rig::start_with(document.clone(), |options| {
        options.edit(listener).edit(move |config| {
            config["static_resources"]["listeners"][0]["listener_filters"] = json!([inspector]);
            Ok(())
        })
    })?;
    let own = authority.issue(&Holder::names(&["anyone.example"]))?;
    let config = authority.client(Some(&own))?;
    let status = |name: &str| -> Result<u16> {
        let mut client = Client::connect_tls_to(name, rig.envoy.port(), &config)?;
        Ok(client.send(&Request::get("/tenant"))?.status)
    };
    let statuses =
        [status("a.shop.example")?, status("a.shop.example")?, status("b.shop.example")?];
    assert_eq!(statuses, [200, 429, 200]);
    assert_eq!(rig.partitions("tenant")?, ["sni=a.shop.example", "sni=b.shop.example"]);

    let plain = Rig::start(document)?;
    // The policy has `on_missing: deny`.
    assert_eq!(plain.statuses(&vec![Request::get("/tenant"); 3])?, [401; 3]);
    Ok(())
}
