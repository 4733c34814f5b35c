//! What policies apply to: two Gateways, routes of three teams, and a Service behind a waypoint.

use quotagate_kubernetes::Objects;
use serde_json::{Value, json};

pub const GROUP: &str = "gateway.networking.k8s.io";
pub const ENVOY_GATEWAY: &str = "gateway.envoyproxy.io/gatewayclass-controller";
pub const ISTIO: &str = "istio.io/gateway-controller";

/// The domains of the platform: one for all Gateways.
pub fn config() -> Value {
    json!({"domains": [{
        "domain": "shop",
        "store": {"cluster": "quota_store"},
        "identities": {"caller": [{"jwt": {"claim": "sub"}}]},
    }]})
}

pub fn gateway(namespace: &str, name: &str, hostname: Option<&str>) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "Gateway",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"gatewayClassName": "any", "listeners": [
            {"name": "http", "port": 80, "protocol": "HTTP", "hostname": hostname},
        ]},
    })
}

/// A route with this many rules, which a Gateway `gateways/public` has accepted.
pub fn route(namespace: &str, name: &str, rules: usize) -> Value {
    let parent = json!({"kind": "Gateway", "namespace": "gateways", "name": "public"});
    accepted("HTTPRoute", namespace, name, rules, &[(parent, ENVOY_GATEWAY)])
}

pub fn accepted(
    kind: &str,
    namespace: &str,
    name: &str,
    rules: usize,
    parents: &[(Value, &str)],
) -> Value {
    let statuses = parents.iter().map(|(parent, controller)| {
        json!({
            "parentRef": parent, "controllerName": controller,
            "conditions": [{"type": "Accepted", "status": "True"}],
        })
    });
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": kind,
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "hostnames": [format!("{name}.example.com")],
            "rules": vec![json!({"matches": [{"path": {"value": "/"}}]}); rules],
        },
        "status": {"parents": statuses.collect::<Vec<_>>()},
    })
}

/// A Service behind a waypoint, with a route.
pub fn service() -> [Value; 3] {
    let parent = json!({"group": "", "kind": "Service", "name": "inventory"});
    [
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": "team-b", "name": "inventory", "labels": {"istio.io/use-waypoint": "waypoint"}},
        }),
        gateway("team-b", "waypoint", None),
        accepted("HTTPRoute", "team-b", "inventory", 1, &[(parent, ISTIO)]),
    ]
}

/// All of them.
pub fn objects() -> Objects {
    let mut objects = Objects::default();
    let one = [gateway("gateways", "public", None), route("team-a", "checkout", 1)];
    for object in one.iter().chain(&service()) {
        objects.add(object).unwrap();
    }
    objects
}

/// Changes a value by a JSON merge patch.
pub fn patch(value: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else { return };
    for (name, new) in fields {
        match new {
            Value::Null => _ = value.as_object_mut().unwrap().remove(name),
            Value::Object(fields) if !fields.is_empty() && value[name].is_object() => {
                self::patch(&mut value[name], new);
            }
            _ => value[name] = new.clone(),
        }
    }
}
