//! Trailers of upstreams that speak HTTP/1.1: Envoy drops them, unless `enable_trailers` keeps
//! them.

use std::collections::BTreeSet;

use super::walk::At;
use super::{Chain, warn};
use crate::check::report::Finding;
use crate::check::yaml::Tree;

const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// Warns of the clusters that the chain's routes name, if the file has them. Without routes in the
/// file, of all clusters but the store's.
pub(super) fn check(root: &At<'_>, chain: &Chain<'_>, found: &mut Vec<Finding>) {
    let routes = chain.manager.get("route_config");
    let mut named = BTreeSet::new();
    if let Some(routes) = &routes {
        routes.visit(&mut |at| {
            // Not the clusters that requests are mirrored to: nobody reads their responses.
            let Some(route) = at.get("route") else { return };
            named.extend(route.get("cluster").and_then(|cluster| cluster.text()));
            let weighted = route.get("weighted_clusters").and_then(|all| all.get("clusters"));
            let weighted = weighted.into_iter().flat_map(|clusters| clusters.elements());
            named.extend(weighted.filter_map(|cluster| cluster.get("name")?.text()));
        });
    }
    let is_meant = |name: &str| match routes {
        Some(_) => named.contains(name),
        None => chain.needs.store.as_deref() != Some(name),
    };
    let mut clusters = Vec::new();
    root.visit(&mut |at| {
        clusters.extend(at.get("clusters").map(|all| all.elements()).unwrap_or_default());
    });
    for cluster in clusters {
        let name = cluster.get("name").and_then(|name| name.text());
        // A weighted cluster is a name, not a cluster.
        let is_cluster = cluster.get("weight").is_none() && name.is_some_and(is_meant);
        if let Some(at) = loses_trailers(&cluster).filter(|_| is_cluster) {
            let text = "policies settle by a trailer of the response, and Envoy drops those of \
                        HTTP/1.1 upstreams: write `enable_trailers: true` into the \
                        http_protocol_options";
            warn(found, &at, text);
        }
    }
}

/// The part of a cluster that lets it speak HTTP/1.1 without trailers.
fn loses_trailers<'n>(cluster: &At<'n>) -> Option<At<'n>> {
    let options = cluster.get("typed_extension_protocol_options").and_then(|all| all.get(OPTIONS));
    let protocols = match &options {
        None => cluster.clone(),
        Some(options) => ["explicit_http_config", "use_downstream_protocol_config", "auto_config"]
            .iter()
            .find_map(|field| options.get(field))?,
    };
    let http1 = protocols.get("http_protocol_options");
    let newer = ["http2_protocol_options", "http3_protocol_options"];
    // Where the protocol is chosen for each connection, the options of both may stand.
    let is_fixed = options.is_none_or(|options| options.get("explicit_http_config").is_some());
    if is_fixed && http1.is_none() && newer.iter().any(|field| protocols.get(field).is_some()) {
        return None;
    }
    let enabled = http1.as_ref().and_then(|http1| http1.get("enable_trailers"));
    match enabled.map(|enabled| &enabled.node.value) {
        Some(Tree::Scalar(value)) if value == &serde_json::Value::Bool(true) => None,
        _ => Some(http1.unwrap_or(protocols)),
    }
}
