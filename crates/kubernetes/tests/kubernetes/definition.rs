//! The definition in the chart is that of the types, and the types keep step with the document.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quotagate_kubernetes::definition;
use serde_json::Value;

/// Where the chart has it.
const FILE: &str = "charts/quotagate/files/quotapolicies.yaml";

/// What the document writes in another way: its path, and that in the object.
const RENAMED: &[(&str, &str)] = &[
    ("policies.window.calendar", "policies.calendar.unit"),
    ("policies.window.time_zone", "policies.calendar.timeZone"),
    ("policies.tiers.source.jwt.claim", "policies.tiers.claim"),
    ("policies.tiers.source.jwt.payload", "policies.tiers.payload"),
    // One that has `lease` has `precision: lease`.
    ("policies.precision", "policies.lease"),
    // A number of its own in the document.
    ("policies.cost", "policies.cost.fixed"),
    ("identities.client_ip.ipv4_prefix", "identities.clientIP.ipv4Prefix"),
    ("identities.client_ip.ipv6_prefix", "identities.clientIP.ipv6Prefix"),
];

/// What a team may not say, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("policies.match.hosts", "the target has the hosts: a team reaches no traffic of others"),
    ("policies.match.routes", "the merge writes them, for the target"),
    ("policies.match.query", "not in v1alpha1: a route can match parameters"),
    ("policies.match.client_ip", "not in v1alpha1: overrides know networks"),
    ("policies.match.not.hosts", "the target has the hosts"),
    ("policies.match.not.routes", "the merge writes them, where a default is replaced"),
    ("policies.match.not.headers", "not in v1alpha1"),
    ("policies.match.not.query", "not in v1alpha1"),
    ("policies.match.not.client_ip", "not in v1alpha1"),
    ("policies.quota_from", "who issues tokens would set quotas: tiers name a claim, too"),
    ("policies.tiers.source.metadata", "the platform knows which filter to trust"),
    ("policies.tiers.source.peer", "not in v1alpha1"),
    ("policies.tiers.source.jwt.type", "not in v1alpha1: tiers are texts or lists of texts"),
    ("policies.cost.reserve", "reading bodies needs another filter, which the platform installs"),
    ("policies.cost.settle", "beside reserve"),
    ("policies.cost.if_missing", "beside reserve"),
    ("policies.count", "not in v1alpha1: counting by answer holds units while requests run"),
    ("policies.count_denied", "not in v1alpha1"),
    ("policies.lease.ahead", "the platform knows how busy a worker is"),
    ("policies.stagger", "not in v1alpha1"),
    ("policies.on_failure", "the platform decides what happens while the store fails"),
    ("identities.metadata", "the platform knows which filter to trust"),
    ("identities.query", "not in v1alpha1"),
    ("identities.sni", "a client can ask for any name of a listener that teams share"),
    ("identities.peer.subject", "not in v1alpha1: names of a mesh are URIs"),
    ("identities.jwt.claims", "not in v1alpha1"),
    ("identities.jwt.type", "not in v1alpha1: callers are texts"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn committed_definition_is_current() {
    let file = root().join(FILE);
    let definition = definition().unwrap();
    if std::env::var_os("RENEW").is_some() {
        std::fs::write(&file, serde_saphyr::to_string(&definition).unwrap()).unwrap();
    }
    let committed = std::fs::read_to_string(file).unwrap_or_default();
    // The order of fields depends on which crates are built together.
    let committed: Value = serde_saphyr::from_str(&committed).unwrap_or_default();
    assert!(
        committed == definition,
        "{FILE} does not match the types: renew it with\n\
         RENEW=1 cargo test --workspace --test kubernetes current"
    );
}

/// The paths of all fields of a schema, without the names of maps and the indexes of lists.
fn fields(schema: &Value, root: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix('#')) {
        return fields(root.pointer(name).unwrap(), root, path, found);
    }
    for word in ["anyOf", "oneOf", "allOf"] {
        for one in schema[word].as_array().into_iter().flatten() {
            fields(one, root, path, found);
        }
    }
    for word in ["items", "additionalProperties"] {
        if schema[word].is_object() {
            fields(&schema[word], root, path, found);
        }
    }
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        found.insert(path.clone());
        fields(schema, root, &path, found);
    }
}

fn camel(path: &str) -> String {
    let mut parts = path.split('_');
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |all, part| all + &part[..1].to_uppercase() + &part[1..])
}

#[test]
fn every_field_of_a_policy_is_in_the_object_or_left_out_for_a_reason() {
    let document = std::fs::read_to_string(root().join("envoy/quotagate.schema.json")).unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    let object = definition().unwrap();
    let object = &object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let (mut of_document, mut of_object) = (BTreeSet::new(), BTreeSet::new());
    for part in ["policies", "identities"] {
        fields(&document["properties"][part], &document, part, &mut of_document);
        fields(&object["properties"][part], object, part, &mut of_object);
    }
    assert!(of_document.len() > 60 && of_object.len() > 40, "{of_document:?} {of_object:?}");

    let begins = |path: &str, with: &str| {
        path.strip_prefix(with).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let mut missing = Vec::new();
    for path in &of_document {
        let same = camel(path).replace("clientIp", "clientIP");
        let renamed = RENAMED.iter().any(|(from, _)| from == path);
        let left_out = LEFT_OUT.iter().any(|(from, _)| begins(path, from));
        // What is left is within something that the object writes in another way.
        let is_outer = RENAMED.iter().any(|(from, _)| begins(from, path));
        assert!(!left_out || !of_object.contains(&same), "{path} is in the object");
        if !(of_object.contains(&same) || renamed || left_out || is_outer) {
            missing.push(path);
        }
    }
    assert!(missing.is_empty(), "add to the types or to LEFT_OUT: {missing:?}");
    for (path, why) in LEFT_OUT {
        assert!(of_document.contains(*path) && !why.is_empty(), "{path} is no field any more");
    }
    for (from, to) in RENAMED {
        assert!(of_document.contains(*from) && of_object.contains(*to), "{from} {to}");
    }
    let known: BTreeSet<String> =
        of_document.iter().map(|path| camel(path).replace("clientIp", "clientIP")).collect();
    let own = of_object.iter().filter(|path| !known.contains(*path));
    let own: Vec<_> = own.filter(|path| !RENAMED.iter().any(|(_, to)| begins(to, path))).collect();
    assert!(own.is_empty(), "the document has no such fields: {own:?}");
}
