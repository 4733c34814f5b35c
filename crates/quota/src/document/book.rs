//! The declarations of a document: the source of the JSON Schema and of the reference page.

use serde_json::{Value, json};

/// All objects of a document, each once, in the order in which a reader meets them.
#[derive(Default)]
pub(crate) struct Book {
    /// The objects.
    pub(crate) objects: Vec<ObjectDoc>,
}

/// An object with known fields.
#[derive(Default)]
pub(crate) struct ObjectDoc {
    /// Its name in the schema and on the page.
    pub(crate) name: &'static str,
    /// What it is for.
    pub(crate) doc: String,
    /// Its fields, in the order of the declaration.
    pub(crate) fields: Vec<FieldDoc>,
    /// The names of alternative fields. Exactly one field of each group must be present.
    pub(crate) groups: Vec<Vec<&'static str>>,
    /// Further keywords of the schema.
    pub(crate) rule: Option<Value>,
}

/// A field of an object.
pub(crate) struct FieldDoc {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it means.
    pub(crate) doc: String,
    /// The schema of its values.
    pub(crate) schema: Value,
    /// Whether it may be absent.
    pub(crate) presence: Presence,
    /// A usual value.
    pub(crate) example: Option<Value>,
}

/// Whether a field may be absent.
pub(crate) enum Presence {
    /// It must be present.
    Required,
    /// It may be absent.
    Optional,
    /// It may be absent, and then has this value.
    Default(Value),
}

impl Book {
    /// Adds the object `name` unless it is there, and returns a reference to it. `describe` may add
    /// further objects.
    pub(crate) fn object(
        &mut self,
        name: &'static str,
        doc: &str,
        describe: impl FnOnce(&mut Self) -> ObjectDoc,
    ) -> Value {
        // These suffixes only distinguish a declaration from the type that it is read into.
        let short = name.strip_suffix("Document").or(name.strip_suffix("Type"));
        let name = short.filter(|short| !short.is_empty()).unwrap_or(name);
        if !self.objects.iter().any(|object| object.name == name) {
            let at = self.objects.len();
            // Reserves its position before the objects within it.
            self.objects.push(ObjectDoc { name, ..ObjectDoc::default() });
            let object = ObjectDoc { name, doc: prose(doc), ..describe(self) };
            if let Some(reserved) = self.objects.get_mut(at) {
                *reserved = object;
            }
        }
        json!({"$ref": format!("#/$defs/{name}")})
    }
}

impl ObjectDoc {
    /// Adds a field.
    pub(crate) fn field(&mut self, field: FieldDoc) {
        self.fields.push(field);
    }

    /// Adds alternative fields.
    pub(crate) fn group(&mut self, fields: Vec<FieldDoc>) {
        self.groups.push(fields.iter().map(|field| field.name).collect());
        self.fields.extend(fields);
    }
}

/// The schema of a choice of words, each with its meaning.
pub(crate) fn words(words: &[(&str, &str)]) -> Value {
    let choices: Vec<Value> = words
        .iter()
        .map(|(word, doc)| json!({"const": word, "type": "string", "description": prose(doc)}))
        .collect();
    json!({"oneOf": choices})
}

/// The lines of a doc comment as one line of text.
pub(crate) fn prose(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Sets a keyword of a schema.
pub(crate) fn set(schema: &mut Value, keyword: &str, value: Value) {
    if let Some(keywords) = schema.as_object_mut() {
        keywords.insert(keyword.to_owned(), value);
    }
}
