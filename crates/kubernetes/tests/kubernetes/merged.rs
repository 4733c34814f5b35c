//! QuotaPolicies of tests, their merge, and what it says of them.

use quotagate_kubernetes::{Domains, MergedDocument, Objects, Reason, merge};
use serde_json::{Value, json};

use crate::scene::{self, GROUP, ISTIO, accepted, gateway, patch};

/// An object on an HTTPRoute with a quota of each of these names.
pub fn on_route(namespace: &str, name: &str, route: &str, policies: &[&str]) -> Value {
    on("HTTPRoute", namespace, name, route, json!({"policies": quotas(policies)}))
}

pub fn on(kind: &str, namespace: &str, name: &str, target: &str, spec: Value) -> Value {
    let group = if kind == "Service" { "" } else { GROUP };
    let mut object = json!({
        "apiVersion": "quotagate.io/v1alpha1", "kind": "QuotaPolicy",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"targetRefs": [{"group": group, "kind": kind, "name": target}]},
    });
    patch(&mut object["spec"], &spec);
    object
}

pub fn on_gateway(name: &str, spec: Value) -> Value {
    on("Gateway", "gateways", name, "public", spec)
}

pub fn quotas(names: &[&str]) -> Value {
    let one = |name| json!({"name": name, "partitionBy": [], "quota": 1, "window": "1m"});
    names.iter().map(one).collect()
}

pub fn at(mut object: Value, created: &str) -> Value {
    object["metadata"]["creationTimestamp"] = json!(created);
    object
}

/// The merged document of the one domain, of these objects beside `gateways/public`.
pub fn merged(more: &[Value]) -> MergedDocument {
    merged_with(&[gateway("gateways", "public", None)], more)
}

pub fn merged_with(scene: &[Value], more: &[Value]) -> MergedDocument {
    let mut objects = Objects::default();
    scene.iter().chain(more).for_each(|object| objects.add(object).unwrap());
    let domains = Domains::read(&scene::config()).unwrap();
    merge(&objects, domains.iter().next().unwrap())
}

/// The same, where the platform lists `gateways/public`.
pub fn merged_of_platform(more: &[Value]) -> MergedDocument {
    let mut config = scene::config();
    config["domains"][0]["gateways"] = json!(["gateways/public"]);
    let mut objects = Objects::default();
    let public = [gateway("gateways", "public", None)];
    public.iter().chain(more).for_each(|object| objects.add(object).unwrap());
    let domains = Domains::read(&config).unwrap();
    merge(&objects, domains.iter().next().unwrap())
}

/// The policies of the document.
pub fn policies(merged: &MergedDocument) -> Vec<Value> {
    merged.document.as_ref().unwrap()["policies"].as_array().unwrap().clone()
}

pub fn names(merged: &MergedDocument) -> Vec<String> {
    policies(merged).iter().map(|policy| policy["name"].as_str().unwrap().to_owned()).collect()
}

/// Why this object is not accepted at its first ancestor.
pub fn refusal(merged: &MergedDocument, object: &str) -> Option<(Reason, String)> {
    let outcome = merged.outcomes.iter().find(|outcome| outcome.object.to_string() == object);
    let accepted = &outcome.unwrap().ancestors[0].accepted;
    (!accepted.holds).then(|| (accepted.reason, accepted.message.clone()))
}

/// The condition Programmed of this object: whether it holds, its reason and message.
pub fn programmed(merged: &MergedDocument, object: &str) -> (bool, Reason, String) {
    let outcome = merged.outcomes.iter().find(|outcome| outcome.object.to_string() == object);
    let verdict = outcome.unwrap().ancestors[0].programmed.clone().unwrap();
    (verdict.holds, verdict.reason, verdict.message)
}

/// An HTTPRoute of Istio with one rule of this name.
pub fn named_rule(namespace: &str, name: &str, parent: Value, rule: &str) -> Value {
    let mut route = accepted("HTTPRoute", namespace, name, 1, &[(parent, ISTIO)]);
    route["spec"]["rules"][0]["name"] = json!(rule);
    route
}

pub fn notes(merged: &MergedDocument, object: &str) -> String {
    let outcome = merged.outcomes.iter().find(|outcome| outcome.object.to_string() == object);
    outcome.unwrap().notes.join("; ")
}
