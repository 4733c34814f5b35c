//! Every path of a document that the schema describes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use quotagate_quota::config::schema;
use serde_json::{Map, Value, json};

/// Stands for any name in an object whose names the document chooses.
const ANY: &str = "any-name";

/// A path of the document.
#[derive(Clone)]
pub struct SchemaNode {
    steps: Vec<Step>,
    /// The schemas at this path; several if the parent has alternatives.
    schemas: Vec<Value>,
}

#[derive(Clone)]
enum Step {
    Field(String),
    Element,
}

/// The schema of the whole document.
pub static ROOT: LazyLock<Value> = LazyLock::new(schema::schema);

/// All paths, the document itself first.
pub static ALL: LazyLock<Vec<SchemaNode>> = LazyLock::new(|| {
    let mut nodes = vec![SchemaNode { steps: Vec::new(), schemas: vec![ROOT.clone()] }];
    let mut next = 0;
    while let Some(node) = nodes.get(next) {
        next += 1;
        let children = node.children();
        nodes.extend(children);
    }
    nodes
});

impl SchemaNode {
    /// The path as faults write it.
    pub fn path(&self) -> String {
        let steps = self.steps.iter().map(|step| match step {
            Step::Field(name) => format!(".{name}"),
            Step::Element => "[0]".to_owned(),
        });
        steps.collect::<String>().trim_start_matches('.').to_owned()
    }

    /// A schema for only the value at this path.
    pub fn schema(&self) -> Value {
        json!({"$defs": ROOT["$defs"], "anyOf": self.schemas})
    }

    /// The names of the fields, if the value is an object with fixed fields.
    pub fn fields(&self) -> Option<BTreeSet<String>> {
        let objects: Vec<_> =
            self.shapes().into_iter().filter(|s| s.contains_key("properties")).collect();
        let fields =
            objects.iter().flat_map(|s| s["properties"].as_object().unwrap().keys().cloned());
        (!objects.is_empty()).then(|| fields.collect())
    }

    /// Whether the value may be a list.
    pub fn has_list(&self) -> bool {
        self.shapes().iter().any(|shape| shape.contains_key("items"))
    }

    /// The largest number of elements, or of fields with free names.
    pub fn most_elements(&self) -> Option<usize> {
        let most = |shape: &Map<String, Value>| {
            let most =
                ["maxItems", "maxProperties"].into_iter().find_map(|keyword| shape.get(keyword))?;
            usize::try_from(most.as_u64()?).ok()
        };
        self.shapes().iter().find_map(most)
    }

    /// Whether the value may be a text.
    pub fn has_text(&self) -> bool {
        self.shapes().iter().any(|shape| shape.get("type").is_some_and(|kind| kind == "string"))
    }

    /// The values in the schema: the default and the examples.
    pub fn defaults_and_examples(&self) -> Vec<Value> {
        let examples =
            self.schemas.iter().filter_map(|schema| schema.get("examples")?.as_array()).flatten();
        let defaults = self.schemas.iter().filter_map(|schema| schema.get("default"));
        examples.chain(defaults).cloned().collect()
    }

    /// The default in the schema.
    pub fn default(&self) -> Option<&Value> {
        self.schemas.iter().find_map(|schema| schema.get("default"))
    }

    /// `document` without the field at this path.
    pub fn without(&self, mut document: Value) -> Value {
        let Some((Step::Field(name), parent)) = self.steps.split_last() else { return document };
        let pointer = parent.iter().map(|step| match step {
            Step::Field(name) => format!("/{name}"),
            Step::Element => "/0".to_owned(),
        });
        if let Some(Value::Object(fields)) = document.pointer_mut(&pointer.collect::<String>()) {
            fields.remove(name);
        }
        document
    }

    /// `document` with `value` at this path.
    pub fn set(&self, mut document: Value, value: Value) -> Value {
        let mut at = &mut document;
        for step in &self.steps {
            at = match step {
                Step::Field(name) => {
                    if !at.is_object() {
                        *at = json!({});
                    }
                    at.as_object_mut().unwrap().entry(name).or_insert(Value::Null)
                }
                Step::Element => {
                    if !at.is_array() {
                        *at = json!([null]);
                    }
                    &mut at[0]
                }
            };
        }
        *at = value;
        document
    }

    /// Whether `document` has a value at this path, in any element and under any free name.
    pub fn is_in(&self, document: &Value) -> bool {
        let mut found = vec![document];
        for step in &self.steps {
            found = found
                .into_iter()
                .flat_map(|value| match (step, value) {
                    (Step::Field(name), Value::Object(fields)) if name == ANY => {
                        fields.values().collect()
                    }
                    (Step::Field(name), Value::Object(fields)) => {
                        fields.get(name).into_iter().collect()
                    }
                    (Step::Element, Value::Array(values)) => values.iter().collect(),
                    _ => Vec::new(),
                })
                .collect();
        }
        !found.is_empty()
    }

    fn children(&self) -> Vec<Self> {
        let mut children: BTreeMap<(bool, String), Vec<Value>> = BTreeMap::new();
        for shape in self.shapes() {
            for (name, schema) in
                shape.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                children.entry((true, name.clone())).or_default().push(schema.clone());
            }
            if let Some(schema) =
                shape.get("additionalProperties").filter(|schema| schema.is_object())
            {
                children.entry((true, ANY.to_owned())).or_default().push(schema.clone());
            }
            if let Some(schema) = shape.get("items") {
                children.entry((false, String::new())).or_default().push(schema.clone());
            }
        }
        let child = |((field, name), schemas)| {
            let step = if field { Step::Field(name) } else { Step::Element };
            Self { steps: self.steps.iter().cloned().chain([step]).collect(), schemas }
        };
        children.into_iter().map(child).collect()
    }

    fn shapes(&self) -> Vec<Map<String, Value>> {
        self.schemas.iter().flat_map(shapes).collect()
    }
}

/// The content of a schema with its references resolved: one map for each alternative.
fn shapes(schema: &Value) -> Vec<Map<String, Value>> {
    let mut own = schema.as_object().unwrap().clone();
    let alternatives = if let Some(reference) = own.remove("$ref") {
        let target = reference.as_str().unwrap().strip_prefix('#').unwrap();
        vec![ROOT.pointer(target).unwrap().clone()]
    } else if let Some(keyword) = ["oneOf", "anyOf"].into_iter().find(|k| has_alternatives(&own, k))
    {
        own.remove(keyword).unwrap().as_array().unwrap().clone()
    } else {
        return vec![own];
    };
    let mut all: Vec<_> = alternatives.iter().flat_map(shapes).collect();
    for shape in &mut all {
        for (keyword, value) in &own {
            shape.entry(keyword).or_insert(value.clone());
        }
    }
    all
}

/// Whether `keyword` lists alternatives, rather than only combinations of fields.
fn has_alternatives(schema: &Map<String, Value>, keyword: &str) -> bool {
    let list = schema.get(keyword).and_then(Value::as_array);
    list.is_some_and(|list| {
        list.iter().any(|s| s.as_object().unwrap().keys().any(|k| k != "required"))
    })
}
