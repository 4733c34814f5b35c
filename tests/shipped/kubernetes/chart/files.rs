//! The files below `envoy/istio` and `envoy/gateway` are rendered from the chart, for people
//! without Helm.

use quotagate_support::paths;
use serde_json::{Value, json};

use super::{current, example, render};

/// What stands above a file; the example of the values, and what `--set` replaces in it; the
/// templates in their order.
type File =
    (&'static str, &'static str, &'static str, Option<&'static str>, &'static [&'static str]);

fn files() -> [File; 9] {
    [
        (
            "istio/store.yaml",
            "\
# The store in an Istio mesh: two replicas, a Service, and how proxies of the mesh reach it.
# The tests of quotagate apply this file to istiod, and start the store with the sidecar that
# Istio injects.
#
# First create the namespace, and the secret with the address of Redis, which keeps all counters,
# and a token for operators:
#   kubectl create namespace quotagate
#   kubectl -n quotagate create secret generic quotagate-store \\
#     --from-literal=url=redis-cluster://redis-1:6379,redis-2:6379 \\
#     --from-literal=admin-token=\"$(openssl rand -hex 32)\"
# To operate:
#   kubectl -n quotagate port-forward deploy/quotagate-store 9181
#   export QUOTAGATE_TOKEN=\"$(kubectl -n quotagate get secret quotagate-store \\
#     -o jsonpath='{.data.admin-token}' | base64 -d)\"
#   quotagate dial list",
            "istio.yaml",
            None,
            &[
                "store/serviceaccount",
                "store/deployment",
                "store/service",
                "store/disruptions",
                "istio/destinationrule",
                "istio/authorizationpolicy",
                "istio/serviceentry",
            ],
        ),
        (
            "istio/wasmplugin.yaml",
            "\
# The filter at an Istio ingress gateway. The tests of quotagate apply this file to istiod.
#
# docs/start-kubernetes.md says how the image gets into your registry. A policy that reads bodies
# needs quotagate-filter-bodies.",
            "istio.yaml",
            None,
            &["filter/wasmplugin"],
        ),
        (
            "istio/trafficextension.yaml",
            "\
# The same as wasmplugin.yaml, for Istio 1.30 or newer: TrafficExtension takes the place of
# WasmPlugin. Use one of them. The tests of quotagate apply this file to istiod.",
            "istio.yaml",
            Some("filter.kind=TrafficExtension"),
            &["filter/trafficextension"],
        ),
        (
            "istio/waypoint.yaml",
            "\
# The filter at a waypoint of an ambient mesh, for one Service behind it. Waypoints ignore
# selectors. Name the namespace of the Service here, and in the AuthorizationPolicy of the store.
# sha256 and imagePullSecret show how an image is pinned, and fetched from a private registry.
# Replace the digest: while it is another one, the waypoint answers 403 to all requests.
# The tests of quotagate apply this file to istiod, and look at the clusters that a waypoint
# gets. Traffic through a waypoint has not run.",
            "istio-waypoint.yaml",
            None,
            &["filter/wasmplugin", "filter/envoyfilter"],
        ),
        (
            "istio/requestauthentication.yaml",
            "\
# The tests of quotagate apply this file to istiod.",
            "istio.yaml",
            None,
            &["filter/requestauthentication"],
        ),
        (
            "istio/envoyfilter.yaml",
            "\
# The settings that only Envoy's own configuration has, for the gateway of wasmplugin.yaml: health
# checks of the stores, and what bounds requests. For other proxies with the filter, name their
# labels, or a waypoint by targetRefs. The tests of quotagate apply this file to istiod.",
            "istio.yaml",
            None,
            &["filter/envoyfilter"],
        ),
        (
            "gateway/store.yaml",
            "\
# The store in Kubernetes without a mesh. Checked against the schemas of Kubernetes; not run in a
# cluster by this project's tests. Create the namespace and the secret as istio/store.yaml says.",
            "envoy-gateway.yaml",
            None,
            &[
                "store/serviceaccount",
                "store/deployment",
                "store/service",
                "store/disruptions",
                "store/networkpolicy",
            ],
        ),
        (
            "gateway/quotas.yaml",
            "\
# Quotas at an Envoy Gateway (gateway.envoyproxy.io), for a Gateway named `eg`. Checked against the
# schemas of Envoy Gateway's API (v1alpha1). The policy document and the cluster run in the tests'
# Envoy, and the tests run the file unchanged under Envoy Gateway 1.9.",
            "envoy-gateway.yaml",
            None,
            &["gateway/envoyextensionpolicy", "gateway/securitypolicy", "gateway/envoyproxy"],
        ),
        (
            "gateway/native.yaml",
            "\
# The native module at an Envoy Gateway (gateway.envoyproxy.io), for a Gateway named `eg`: no store.
# Checked against the schemas of Envoy Gateway's API (v1alpha1). The policy document and the script
# run in the tests' Envoy, and the tests run the file unchanged under Envoy Gateway
# 1.9.",
            "envoy-gateway-native.yaml",
            None,
            &["gateway/envoyproxy", "gateway/envoyextensionpolicy", "gateway/securitypolicy"],
        ),
    ]
}

/// The values of `--set PATH=TEXT`.
fn overlay(set: Option<&str>) -> Value {
    let Some((path, text)) = set.and_then(|set| set.split_once('=')) else { return json!({}) };
    path.rsplit('.').fold(json!(text), |value, name| json!({name: value}))
}

#[test]
fn files_for_people_without_helm_are_current() {
    let (files, rendered): (Vec<_>, Vec<_>) = {
        let files = files();
        let values: Vec<Value> =
            files.iter().map(|(_, _, name, set, _)| example(name, overlay(*set))).collect();
        (files.into(), render(&values))
    };
    for ((file, head, example, set, templates), rendered) in files.into_iter().zip(rendered) {
        let rendered = rendered.unwrap();
        let text = |template: &&str| {
            let name = format!("quotagate/templates/{template}.yaml");
            rendered.get(&name).unwrap_or_else(|| panic!("{file}: {name} is empty")).trim()
        };
        let texts: Vec<&str> = templates.iter().map(text).collect();
        let set = set.map(|set| format!(" and\n# `--set {set}`")).unwrap_or_default();
        let from =
            format!("# Rendered from charts/quotagate with examples/{example}{set}: edit those.");
        let text = format!("{head}\n#\n{from}\n\n{}\n", texts.join("\n---\n"));
        current(&paths::root().join("envoy").join(file), &text);
    }
}
