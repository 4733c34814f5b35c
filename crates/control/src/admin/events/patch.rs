//! How a JSON object differs from another one, as a merge patch (RFC 7396).

use serde_json::{Map, Value};

/// The merge patch that makes `new` of `old`. There is no `null` in `new`, since a patch cannot say
/// that.
pub fn of(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let changed = new.iter().filter_map(|(name, value)| {
        let value = match (old.get(name), value) {
            (Some(old), value) if old == value => return None,
            (Some(Value::Object(old)), Value::Object(new)) => Value::Object(of(old, new)),
            _ => value.clone(),
        };
        Some((name.clone(), value))
    });
    let removed = old.keys().filter(|name| !new.contains_key(*name));
    changed.chain(removed.map(|name| (name.clone(), Value::Null))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patch_makes_the_new_object_of_the_old_one() {
        let objects = [
            json!({}),
            json!({"a": {"x": [1, 2], "y": {"z": 1}}, "b": "text", "c": 7}),
            json!({"a": {"x": [1, 3], "y": {"z": 1}}, "b": "text"}),
            json!({"a": {"y": {"w": 2}}, "b": {"text": 1}, "c": 7}),
            json!({"a": 1, "d": {"e": {"f": {}}}}),
        ];
        for old in &objects {
            for new in &objects {
                let patch = of(old.as_object().unwrap(), new.as_object().unwrap());
                let mut patched = old.clone();
                json_patch::merge(&mut patched, &Value::Object(patch.clone()));
                assert_eq!(patched, *new, "{old} {patch:?}");
            }
        }
    }

    #[test]
    fn patch_has_only_what_has_changed() {
        let old = json!({"a": {"x": 1, "y": 2, "z": 3}, "b": [1]});
        let new = json!({"a": {"x": 1, "y": 4}, "b": [1]});
        let patch = of(old.as_object().unwrap(), new.as_object().unwrap());
        assert_eq!(Value::Object(patch), json!({"a": {"y": 4, "z": null}}));
    }
}
