//! The JSON Schema of the policy document, and its reference page.
//!
//! Both come from the declarations that the reader itself uses. A schema describes shapes, not
//! meanings: only the reader (`quotagate check`) knows which names exist, what is given twice, and
//! what durations and regular expressions mean. The schema describes what a person writes. So it
//! leaves out integers as strings of digits. The reader accepts them because Envoy passes large
//! integers on in that form.

use serde_json::Value;

use super::Document;
use crate::document::book::Book;
use crate::document::{Type as _, json_schema, markdown};

const TITLE: &str = "quotagate policy document";

const INTRODUCTION: &str = "\
# Reference: the policy document

This page lists every field. `quotagate schema --markdown` prints it from the declarations that the
reader itself uses, so edit the declarations and not this page. [Concepts](../concepts.md) explains
the ideas. `quotagate check` finds all faults of a document, each with its path.

Durations are whole numbers with units, the largest unit first: `500ms`, `90s`, `1h30m`, `7d`.
";

/// The schema as JSON.
pub fn schema() -> Value {
    json_schema::render(TITLE, &book())
}

/// The schema as text, which `envoy/quotagate.schema.json` holds.
pub fn text() -> String {
    // The alternate form is indented.
    format!("{:#}\n", schema())
}

/// The reference page, which `docs/reference/policy.md` holds.
pub fn page() -> String {
    markdown::render(INTRODUCTION, &book())
}

fn book() -> Book {
    let mut book = Book::default();
    Document::schema(&mut book);
    book
}
