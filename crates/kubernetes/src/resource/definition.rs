//! The definition that a cluster gets.

use kube_core::CustomResourceExt as _;
use serde_json::Value;

use super::{QuotaPolicy, cel};

/// The CustomResourceDefinition of `QuotaPolicy`.
///
/// # Errors
/// Never: what is generated is JSON.
pub fn definition() -> serde_json::Result<Value> {
    let mut definition = serde_json::to_value(QuotaPolicy::crd())?;
    if let Some(schema) = definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema") {
        schema["x-kubernetes-validations"] = cel::object();
    }
    tidy(&mut definition);
    Ok(definition)
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
