//! The published document that a filter took up last, for a later configuration of the same filter
//! in the same process.

use quotagate_protocol::dials::DocumentVersion;
use sha2::{Digest, Sha256};

use super::PublishedDocument;

/// In how many slots of Envoy's shared data documents are kept: as no filter can delete a key
/// there, their number is fixed. Of two filters with one slot, the one that takes a document up
/// later has it.
pub const INHERITED_SLOTS: usize = 64;

/// Whose document it is: Envoy's name of the filter, and the domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inheritance {
    filter: Box<str>,
    domain: Box<str>,
}

impl Inheritance {
    /// Of this filter and its domain.
    pub fn new(filter: impl Into<Box<str>>, domain: impl Into<Box<str>>) -> Self {
        Self { filter: filter.into(), domain: domain.into() }
    }

    /// The slot of its document, below [`INHERITED_SLOTS`].
    pub fn slot(&self) -> usize {
        let digest = Sha256::digest(self.owner());
        usize::from(digest.first().copied().unwrap_or_default()) % INHERITED_SLOTS
    }

    /// What its slot holds once this document was taken up.
    pub fn written(&self, document: &PublishedDocument) -> Vec<u8> {
        [self.head(document).as_slice(), document.reply()].concat()
    }

    /// The document in the slot, if it is of this filter and domain. After a withdrawal there is
    /// none.
    pub fn read(&self, slot: &[u8]) -> Option<PublishedDocument> {
        let slot = slot.strip_prefix(self.owner().as_slice())?;
        let reply = slot.splitn(2, |byte| *byte == b'\n').nth(1)?;
        PublishedDocument::read(reply).ok()?
    }

    /// A line, which no name can leave: JSON escapes its end.
    fn owner(&self) -> Vec<u8> {
        line(&(&self.filter, &self.domain))
    }

    /// What its slot begins with once this document was taken up: whose document it is, and which.
    pub fn head(&self, document: &PublishedDocument) -> Vec<u8> {
        let PublishedDocument { number, digest, .. } = document;
        let version = DocumentVersion { number: *number, digest: digest.to_string() };
        [self.owner(), line(&version)].concat()
    }
}

fn line(value: &impl serde::Serialize) -> Vec<u8> {
    // Writing text into memory cannot fail.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(number: u64) -> PublishedDocument {
        let reply = format!(
            r#"{{"number": {number}, "digest": "0123456789ab", "document": {{"domain": "shop"}}}}"#
        );
        PublishedDocument::read(reply.as_bytes()).unwrap().unwrap()
    }

    #[test]
    fn slot_belongs_to_one_filter_and_domain() {
        let shop = Inheritance::new("quotagate", "shop");
        let slot = shop.written(&document(7));
        assert_eq!(shop.read(&slot), Some(document(7)));
        assert!(slot.starts_with(&shop.head(&document(7))));
        assert_ne!(shop.head(&document(7)), shop.head(&document(8)));
        for (filter, domain) in [("quotagate", "shop2"), ("other", "shop"), ("", "")] {
            let other = Inheritance::new(filter, domain);
            assert_eq!(other.read(&slot), None);
            assert_ne!(other.head(&document(7)), shop.head(&document(7)));
        }
        assert_eq!(Inheritance::new("quotagate", "shop").slot(), shop.slot());
        assert!(shop.slot() < INHERITED_SLOTS);
    }

    #[test]
    fn slot_without_a_document_has_none() {
        let shop = Inheritance::new("quota\ngate", "shop");
        let withdrawn = shop.written(&PublishedDocument::none(8));
        assert_eq!(shop.read(&withdrawn), None);
        for damaged in [&b""[..], b"\n", b"[\"quotagate\",\"shop\"]", &withdrawn[..5]] {
            assert_eq!(shop.read(damaged), None);
        }
    }
}
