//! What is published: a policy document or a rule file, checked.

use quotagate_protocol::dials::MAX_DOCUMENT;
use quotagate_quota::config::PublishedDocument;
use serde_json::Value;
use tokio::task::spawn_blocking;

use crate::Fault;
use crate::api::DocumentKind;
use crate::document::unknown_zones;

/// Reads a rule file as rate limit services do. The error has a line for each fault, with its path
/// and the remedy.
pub type ReadRules = fn(&str) -> Result<RuleFileSummary, Vec<String>>;

/// What a rule file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFileSummary {
    /// Its domain, as counters and commands have it.
    pub domain: String,
    /// Its digest: 12 hexadecimal digits.
    pub digest: String,
    /// How many rules it has.
    pub rules: u64,
}

/// A document as it is published, without faults, and what is recorded of it.
#[derive(Clone, Debug)]
pub struct DocumentContent {
    pub(super) document: Value,
    pub(super) domain: String,
    pub(super) digest: String,
    pub(super) policies: u64,
}

impl DocumentContent {
    /// The document as it is published, and what is recorded of it. `read` reads rule files.
    ///
    /// # Errors
    /// All its faults.
    pub(super) async fn checked(document: &Value, read: Option<ReadRules>) -> Result<Self, Fault> {
        match document {
            Value::String(text) => Self::checked_rules(text, read).await,
            document => checked_policies(document),
        }
    }

    async fn checked_rules(text: &str, read: Option<ReadRules>) -> Result<Self, Fault> {
        let Some(read) = read else {
            let reason = "is a rule file of the rate limit service, which this process cannot \
                          read: publish it with `quotagate serve`, or at the service itself";
            return Err(Fault::invalid("document", reason));
        };
        let document = Value::from(text);
        let bytes = document.to_string().len();
        if bytes > MAX_DOCUMENT {
            let reason = format!(
                "has {bytes} bytes as JSON, and a published rule file at most {MAX_DOCUMENT}"
            );
            return Err(Fault::invalid("document", reason));
        }
        // Aliases may make a short text long to read.
        let text = text.to_owned();
        let read = spawn_blocking(move || read(&text)).await;
        let read = read.unwrap_or_else(|error| Err(vec![error.to_string()]));
        let RuleFileSummary { domain, digest, rules } =
            read.map_err(|faults| invalid(&faults.join("\n")))?;
        Ok(Self { document, domain, digest, policies: rules })
    }

    pub(super) fn kind(&self) -> DocumentKind {
        DocumentKind::of(&self.document)
    }
}

/// # Errors
/// All faults of the policy document.
fn checked_policies(document: &Value) -> Result<DocumentContent, Fault> {
    let (document, config) =
        PublishedDocument::check(document).map_err(|faults| invalid(&faults.to_string()))?;
    let zones: Vec<String> = unknown_zones(&config).iter().map(ToString::to_string).collect();
    if !zones.is_empty() {
        return Err(invalid(&zones.join("\n")));
    }
    Ok(DocumentContent {
        document,
        domain: config.domain.to_string(),
        digest: config.digest.to_string(),
        policies: config.policies.len() as u64,
    })
}

fn invalid(faults: &str) -> Fault {
    Fault::invalid("document", format!("has faults:\n{faults}"))
}
