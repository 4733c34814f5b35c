//! The definition that a cluster gets.

use kube_core::schema::StructuralSchemaRewriter;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{QuotaPolicySpec, QuotaPolicyStatus, cel};

/// What a `QuotaPolicy` is.
const ABOUT: &str = "Quotas for the traffic of Gateways, routes or Services of a namespace.";

/// What the definition says of an object, beside the parts that every object has.
#[derive(JsonSchema)]
#[allow(dead_code, reason = "only its schema is used")]
struct DefinedParts {
    spec: QuotaPolicySpec,
    status: Option<QuotaPolicyStatus>,
}

/// The CustomResourceDefinition of `QuotaPolicy`.
///
/// # Errors
/// Never: what is generated is JSON.
pub fn definition() -> serde_json::Result<Value> {
    let settings = SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let generator = settings.with_transform(StructuralSchemaRewriter).into_generator();
    let mut schema = serde_json::to_value(generator.into_root_schema_for::<DefinedParts>())?;
    tidy(&mut schema);
    if let Some(schema) = schema.as_object_mut() {
        schema.insert("title".to_owned(), "QuotaPolicy".into());
        schema.insert("description".to_owned(), ABOUT.into());
        schema.insert("x-kubernetes-validations".to_owned(), cel::object());
    }
    let names = json!({
        "kind": "QuotaPolicy", "singular": "quotapolicy", "plural": "quotapolicies",
        "shortNames": ["qp"], "categories": ["gateway-api"],
    });
    let version = json!({
        "name": "v1alpha1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns(),
    });
    Ok(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "quotapolicies.quotagate.io",
            "labels": {"gateway.networking.k8s.io/policy": "inherited"},
        },
        "spec": {
            "group": "quotagate.io", "names": names, "scope": "Namespaced", "versions": [version],
        },
    }))
}

/// What `kubectl get qp` prints.
fn columns() -> Value {
    let column =
        |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    let condition = |name: &str| {
        let path = format!(".status.ancestors[0].conditions[?(@.type==\"{name}\")].status");
        column(name, "string", &path)
    };
    let digest = json!({
        "name": "Digest", "type": "string", "jsonPath": ".status.documents[0].digest",
        "priority": 1,
    });
    json!([
        column("Target", "string", ".spec.targetRefs[0].kind"),
        column("Of", "string", ".spec.targetRefs[0].name"),
        column("Quota", "string", ".status.quota"),
        condition("Accepted"),
        condition("Programmed"),
        condition("Enforced"),
        column("Proxies", "integer", ".status.documents[0].proxies.running"),
        digest,
        column("Age", "date", ".metadata.creationTimestamp"),
    ])
}

/// Takes out what the API server warns of or does not need.
fn tidy(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            // A null is no value: the server drops it, and rules need not look for it.
            if fields.get("nullable") == Some(&Value::Bool(true)) {
                fields.remove("nullable");
            }
            // OpenAPI knows no unsigned numbers.
            if let Some(Value::String(format)) = fields.get_mut("format")
                && format.starts_with("uint")
            {
                "int64".clone_into(format);
            }
            // Numbers of schemas are floating-point numbers there.
            for name in ["minimum", "maximum"] {
                if let Some(number) = fields.get_mut(name)
                    && let Some(whole) = number.as_f64().filter(|number| number.fract() == 0.0)
                {
                    #[allow(clippy::cast_possible_truncation, reason = "2^53 at most")]
                    let whole = whole as i64;
                    *number = whole.into();
                }
            }
            fields.values_mut().for_each(tidy);
        }
        Value::Array(elements) => elements.iter_mut().for_each(tidy),
        _ => {}
    }
}
