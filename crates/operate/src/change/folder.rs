//! Publishes the documents of a folder, such as a checkout of a repository.
//!
//! The later change is in force: a file is published when it has changed, and when the store has
//! lost what was published of it. A change by hand stays until the file changes again. So stores
//! with the same folder agree, even while some of them see an older state of it.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::document_content::DocumentContent;
use super::documents::Documents;
use crate::Fault;
use crate::api::Changed;

/// What a store knows of the documents of its folder.
pub struct FolderDocuments {
    documents: Arc<Documents>,
    /// Which content of its file was published or need not be, by domain.
    settled: HashMap<String, Settled>,
}

struct Settled {
    digest: String,
    /// The last number of the domain then.
    number: u64,
}

impl FolderDocuments {
    /// Nothing is known yet.
    pub fn new(documents: Arc<Documents>) -> Self {
        Self { documents, settled: HashMap::new() }
    }

    /// Checks a document of the folder. One check is enough until the document changes.
    ///
    /// # Errors
    /// All its faults.
    pub async fn check(&self, document: &Value) -> Result<DocumentContent, Fault> {
        self.documents.checked(document).await
    }

    /// The folder has this document, in the file of this name. Publishes it unless that was done.
    ///
    /// # Errors
    /// What is published for a share or for a time must end first; or the backend fails.
    pub async fn offer(
        &mut self,
        content: &DocumentContent,
        file: &str,
    ) -> Result<Option<Changed>, Fault> {
        let (domain, digest) = (content.domain.clone(), content.digest.clone());
        let records = self.documents.records(&domain).await?;
        let last = records.first();
        let number = last.map_or(0, |last| last.number);
        // A backend that was emptied or restored has a smaller number. Then its records decide, as
        // for a store that has just started.
        let known = self.settled.get(&domain).filter(|settled| settled.number <= number);
        let is_known = known.is_some_and(|settled| settled.digest == digest);
        let of_folder = records.iter().find(|record| record.of_folder);
        let is_published = of_folder.is_some_and(|record| record.digest == digest);
        let is_in_force = last.is_some_and(|last| !last.is_limited() && last.digest == digest);
        let is_done = is_known || is_published || is_in_force;
        // A store that has just started, or whose Redis was restored, writes a lost text again.
        let is_lost = match last {
            Some(last) if is_in_force && !is_known => self.documents.is_lost(&domain, last).await?,
            _ => false,
        };
        let is_done = is_done && !is_lost;
        let made = match is_done {
            true => None,
            false => Some(self.documents.publish_file(content.clone(), number, file).await?),
        };
        let number = number.saturating_add(u64::from(made.is_some()));
        self.settled.insert(domain, Settled { digest, number });
        Ok(made)
    }
}
