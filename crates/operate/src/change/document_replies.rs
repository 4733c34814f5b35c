//! What proxies get that ask for the published document.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use quotagate_protocol::dials::{DocumentReply, DocumentVersion};
use serde::de::IgnoredAny;
use tokio::sync::OnceCell;

use crate::MAX_DOMAINS;
use crate::control::ControlHandle;
use crate::record::write;
use quotagate_store::store::StoreError;

/// Replies to proxies, and which document each of them has. Those who ask at once share one read.
/// A domain has two while a document is published for a share of its proxies.
type LastReplies = HashMap<String, Vec<(DocumentVersion, Arc<OnceCell<Bytes>>)>>;

/// The replies with a published document.
pub struct DocumentReplies {
    control: ControlHandle,
    /// The last ones, by domain.
    last: Mutex<LastReplies>,
}

impl DocumentReplies {
    pub(crate) fn new(control: ControlHandle) -> Self {
        Self { control, last: Mutex::default() }
    }

    /// The reply to a proxy that should have `published` and has the document with this digest, as
    /// JSON.
    ///
    /// # Errors
    /// If the backend fails, or the text is lost.
    pub(crate) async fn reply(
        &self,
        domain: &str,
        published: DocumentVersion,
        digest: &str,
    ) -> Result<Bytes, String> {
        let is_withdrawn = published.digest.is_empty();
        if is_withdrawn {
            self.lock().remove(domain);
        }
        if is_withdrawn || published.digest == digest {
            let DocumentVersion { number, digest } = published;
            return Ok(write(&DocumentReply::<()> { number, digest, document: None }).into());
        }
        let shared = self.shared_reply(domain, &published);
        let reply = shared.get_or_try_init(|| self.read_reply(domain, &published)).await?;
        Ok(reply.clone())
    }

    /// The reply with this document, or the place for it.
    fn shared_reply(&self, domain: &str, published: &DocumentVersion) -> Arc<OnceCell<Bytes>> {
        let mut replies = self.lock();
        let is_full = replies.len() >= MAX_DOMAINS && !replies.contains_key(domain);
        let mut other = Vec::new();
        let of_domain =
            if is_full { &mut other } else { replies.entry(domain.to_owned()).or_default() };
        if let Some((_, reply)) = of_domain.iter().find(|(known, _)| known == published) {
            return Arc::clone(reply);
        }
        let reply = Arc::<OnceCell<_>>::default();
        of_domain.insert(0, (published.clone(), Arc::clone(&reply)));
        of_domain.truncate(2);
        reply
    }

    async fn read_reply(&self, domain: &str, published: &DocumentVersion) -> Result<Bytes, String> {
        let DocumentVersion { number, digest } = published.clone();
        let text = self.control.document(domain, number).await;
        let text = text.map_err(|error: StoreError| error.to_string())?;
        let is_json = |text: &Vec<u8>| serde_json::from_slice::<IgnoredAny>(text).is_ok();
        let text = text.filter(is_json);
        let text = text.ok_or_else(|| format!("the text of number {number} is lost"))?;
        // The text as it was published: what is read and written again might have another digest.
        let mut reply = write(&DocumentReply::<()> { number, digest, document: None });
        reply.pop();
        Ok([&reply[..], &b",\"document\":"[..], &text[..], &b"}"[..]].concat().into())
    }

    /// Nothing panics while it is locked.
    fn lock(&self) -> MutexGuard<'_, LastReplies> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
