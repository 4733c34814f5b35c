//! YAML as a tree of JSON values, and changes to such a tree.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::Value;

/// Reads a YAML (or JSON) file.
///
/// # Errors
/// When the file cannot be read or is not YAML; the message names it.
pub fn read(path: &Path) -> Result<Value> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| path.display().to_string())
}

/// Reads YAML text.
///
/// # Errors
/// When it is not YAML.
pub fn parse(text: &str) -> Result<Value> {
    Ok(serde_saphyr::from_str(text)?)
}

/// The value at a JSON pointer such as `/admin/address`.
///
/// # Errors
/// When there is none.
pub fn at<'a>(tree: &'a mut Value, pointer: &str) -> Result<&'a mut Value> {
    tree.pointer_mut(pointer).with_context(|| format!("the configuration has no {pointer}"))
}

/// The element of a list whose `name` is this.
///
/// # Errors
/// When there is none.
pub fn named<'a>(list: &'a mut Value, name: &str) -> Result<&'a mut Value> {
    let items = list.as_array_mut().context("not a list")?;
    let found =
        items.iter_mut().find(|item| item.get("name").and_then(Value::as_str) == Some(name));
    found.with_context(|| format!("the configuration has nothing named {name}"))
}

/// The list `key` of an object, which is made where it is missing.
///
/// # Errors
/// When the value is no object, or holds something else under this key.
pub fn list<'a>(object: &'a mut Value, key: &str) -> Result<&'a mut Vec<Value>> {
    let object = object.as_object_mut().context("not an object")?;
    let list = object.entry(key).or_insert_with(|| Value::Array(Vec::new()));
    list.as_array_mut().with_context(|| format!("{key} is no list"))
}

/// Reads the documents of a YAML file that holds several.
///
/// # Errors
/// When the file cannot be read or is not YAML; the message names it.
pub fn read_all(path: &Path) -> Result<Vec<Value>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse_all(&text).with_context(|| path.display().to_string())
}

/// The documents of a text that holds several.
///
/// # Errors
/// When it is not YAML.
pub fn parse_all(text: &str) -> Result<Vec<Value>> {
    Ok(serde_saphyr::from_multiple(text)?)
}
