//! The JSON Schema of the policy document, for editors and for checks without quotagate (draft 2020-12).
//!
//! The reader of this crate is written by hand, since it must find all faults at once; the types here only
//! describe what it reads, field by field, and are never constructed. Their comments are what an editor shows.
//! `tests/schema` holds the reader and these types together.
//!
//! A schema knows shapes, not meanings: names that must exist, things given twice, regular expressions, and bounds
//! of durations are the reader's alone (`quotagate check`). It describes what a person writes, and therefore leaves
//! out integers as strings of digits, which the reader takes because Envoy hands over large ones so.

mod identities;
mod policies;
mod response;
mod store;

use std::collections::BTreeMap;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Value, json};

pub use identities::{
    Claim, ClientIp, Cookie, Header, HeaderName, Jwt, Metadata, Peer, Query, SanKind, Source, Sources,
    ValueType, Verified,
};
pub use policies::{
    Cost, CostFromHeader, CostHeader, Count, CountByAnswer, HeaderCondition, Lease, Match, Mode, OnMissing,
    Override, PathCondition, PolicyDocument, Precision, QuotaFrom, Tiers, Units, VerifiedClaim,
};
pub use response::{ContentType, DeniedDocument, Family, HeaderValue, Reset, ResponseDocument};
pub use store::{Duration, OnFailure, StoreDocument};

use super::{DOMAIN, MAX_IDENTITIES, MAX_POLICIES};

/// Quotas for Envoy by quotagate: who is counted, how many units in which window, and what clients are told.
#[derive(JsonSchema)]
#[schemars(title = "quotagate policy document", deny_unknown_fields)]
pub struct Document {
    /// The first part of every counter's key. Proxies of one domain share their counters.
    #[schemars(extend("pattern" = whole(DOMAIN.pattern)))]
    pub domain: String,
    /// How the store of the counters is reached.
    pub store: StoreDocument,
    /// The key of the digests that stand for secret values. Without it one is derived from the domain, which whoever
    /// knows the domain can do as well: short or guessable secrets can then be tried out.
    #[schemars(length(min = 1))]
    pub digest_key: Option<String>,
    /// Who is calling: named lists of sources. Of each list the first source that yields a value wins.
    #[schemars(
        extend("maxProperties" = MAX_IDENTITIES),
        extend("propertyNames" = identities::name())
    )]
    pub identities: Option<BTreeMap<String, Sources>>,
    /// The quota rules. Several may apply to one request: it is admitted only if all of them grant it.
    #[schemars(length(max = MAX_POLICIES))]
    pub policies: Vec<PolicyDocument>,
    /// What clients are told.
    pub response: Option<ResponseDocument>,
}

/// The schema.
pub fn schema() -> Schema {
    SchemaSettings::draft2020_12()
        .with_transform(RecursiveTransform(plain))
        .into_generator()
        .into_root_schema_for::<Document>()
}

/// The schema as text: what `quotagate schema` prints and `envoy/quotagate.schema.json` holds.
pub fn text() -> String {
    let mut schema = schema().to_value();
    // Another crate of a build may have serde_json keep the order of fields.
    schema.sort_all_objects();
    // The alternate form is indented.
    format!("{schema:#}\n")
}

/// A pattern of the whole text, of a reader's that is meant so.
fn whole(pattern: &str) -> String {
    format!("^{pattern}$")
}

/// Takes out what the derived form says too much: that a field which may be left out (an `Option` here) may be
/// `null`, which the reader refuses, and `format`s that only Rust knows.
fn plain(schema: &mut Schema) {
    schema.remove("format");
    if let Some(Value::Array(kinds)) = schema.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_mut_slice() {
            let kind = kind.take();
            schema.insert("type".to_owned(), kind);
        }
    }
    let null = json!({"type": "null"});
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf")
        && choices.contains(&null)
    {
        choices.retain(|choice| *choice != null);
        if let [Value::Object(choice)] = choices.as_mut_slice() {
            let choice = std::mem::take(choice);
            schema.remove("anyOf");
            for (keyword, value) in choice {
                schema.ensure_object().entry(keyword).or_insert(value);
            }
        }
    }
}
