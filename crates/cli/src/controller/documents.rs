//! What a store has published for a domain, and publishing it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hyper::Method;
use quotagate_kubernetes::{
    DocumentProgress, Domain, MergedDocument, ProxyCounts, PublishedNumber,
};
use quotagate_operate::api::{
    self, Changed, DocumentRecord, PublishDocument, PublishedDocuments, WithdrawDocument,
};
use quotagate_quota::config::PublishedDocument;
use serde_json::Value;

use crate::operate::{AdminAddr, Client, Failure, Token};

/// How notes of published documents begin whose author is a controller. Without objects, it
/// withdraws such a document, and no other one.
const NOTE: &str = "quotagate controller: ";

/// What should be published for a domain.
#[derive(Clone, Debug)]
pub(super) enum DocumentWish {
    /// This document.
    Document { document: Value, digest: String, note: String },
    /// None: there are no policies.
    Nothing,
    /// What is published stays, because the merged document has these faults.
    Unchanged(String),
}

impl DocumentWish {
    pub(super) fn of(merged: &MergedDocument) -> Self {
        let document = match &merged.document {
            Ok(document) => document,
            Err(faults) => return Self::Unchanged(faults.join("; ")),
        };
        let policies = document["policies"].as_array().map_or(0, Vec::len);
        if policies == 0 {
            return Self::Nothing;
        }
        let of_document = merged.outcomes.iter().filter(|outcome| !outcome.policies.is_empty());
        let note = format!("{NOTE}{policies} policies of {} objects", of_document.count());
        match PublishedDocument::check(document) {
            Ok((document, config)) => {
                Self::Document { document, digest: config.digest.to_string(), note }
            }
            Err(faults) => Self::Unchanged(faults.to_string()),
        }
    }
}

/// The store that documents are published through.
pub(super) struct DocumentStore {
    address: AdminAddr,
    /// See [`Token::find`]. It is read for each pass, because tokens are replaced.
    token_file: Option<PathBuf>,
    by: String,
    /// What this controller has seen published, by domain.
    known: BTreeMap<String, PublishedNumber>,
}

/// What became of a wish.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) progress: DocumentProgress,
    /// What was changed, in a sentence.
    pub(super) done: Option<String>,
    /// Why it must be tried again.
    pub(super) fault: Option<String>,
}

impl DocumentStore {
    pub(super) fn new(address: AdminAddr, token_file: Option<PathBuf>, by: String) -> Self {
        Self { address, token_file, by, known: BTreeMap::new() }
    }

    /// Publishes what should be, if it is not.
    pub(super) async fn settle(&mut self, domain: &Domain, wish: &DocumentWish) -> Settled {
        let domain = domain.name();
        let client = match Token::find(self.token_file.as_deref()) {
            Ok(token) => Client {
                address: self.address.clone(),
                token,
                domain: Some(domain.to_owned()),
                reason: None,
            },
            Err(failure) => return self.unreachable(domain, wish, &failure),
        };
        let listed = client.get::<PublishedDocuments>(api::DOCUMENTS, &[]).await;
        let listed = match listed {
            Ok(answer) => answer.value,
            Err(failure) => return self.unreachable(domain, wish, &failure),
        };
        let last = listed.documents.first();
        let mut done = None;
        let published = match wish {
            DocumentWish::Unchanged(faults) => {
                Err(format!("the document of domain {domain} has faults: {faults}"))
            }
            DocumentWish::Nothing => {
                if let Some(last) = last.filter(|last| is_own(last)) {
                    match self.withdraw(&client, last).await {
                        Ok(sentence) => done = Some(sentence),
                        Err(failure) => return self.unreachable(domain, wish, &failure),
                    }
                }
                Err(format!("domain {domain} has no policies"))
            }
            DocumentWish::Document { document, digest, note } => {
                let number = match last {
                    Some(last) if last.digest == *digest => last.number,
                    _ => {
                        let after = last.map_or(0, |last| last.number);
                        match self.publish(&client, document, note, after).await {
                            Ok(sentence) => done = Some(sentence),
                            Err(failure) => return self.unreachable(domain, wish, &failure),
                        }
                        // The store has compared `after`, so nobody else took this number.
                        after.saturating_add(1)
                    }
                };
                Ok(PublishedNumber { number, digest: digest.clone() })
            }
        };
        let digest = published.as_ref().map(|published| published.digest.as_str());
        let proxies = Ok(counts(&listed, digest.unwrap_or_default()));
        match &published {
            Ok(published) => _ = self.known.insert(domain.to_owned(), published.clone()),
            Err(_) => _ = self.known.remove(domain),
        }
        Settled { progress: DocumentProgress { published, proxies }, done, fault: None }
    }

    async fn publish(
        &self,
        client: &Client,
        document: &Value,
        note: &str,
        after: u64,
    ) -> Result<String, Failure> {
        let change = PublishDocument {
            domain: client.domain.clone(),
            document: Some(document.clone()),
            after: Some(after),
            note: Some(note.to_owned()),
            by: self.by.clone(),
            ..PublishDocument::default()
        };
        let answer = client.change::<Changed>(Method::POST, api::DOCUMENTS, &change).await?;
        Ok(answer.value.done)
    }

    async fn withdraw(&self, client: &Client, last: &DocumentRecord) -> Result<String, Failure> {
        let change = WithdrawDocument {
            domain: client.domain.clone(),
            after: Some(last.number),
            note: Some(format!("{NOTE}no policies")),
            by: self.by.clone(),
        };
        let answer = client.change::<Changed>(Method::DELETE, api::DOCUMENTS, &change).await?;
        Ok(answer.value.done)
    }

    /// What is known while the store does not do it. Proxies keep what they have.
    fn unreachable(&self, domain: &str, wish: &DocumentWish, failure: &Failure) -> Settled {
        let text = failure.to_string();
        let why = text.lines().next().unwrap_or_default().to_owned();
        let known = self.known.get(domain).filter(|known| match wish {
            DocumentWish::Document { digest, .. } => *digest == known.digest,
            _ => false,
        });
        let published = known.cloned().ok_or_else(|| {
            format!("the document of domain {domain} could not be published: {why}")
        });
        let progress = DocumentProgress { published, proxies: Err(why.clone()) };
        Settled { progress, done: None, fault: Some(format!("domain {domain}: {why}")) }
    }
}

/// Whether a controller published it.
fn is_own(record: &DocumentRecord) -> bool {
    !record.is_withdrawal() && record.note.as_ref().is_some_and(|note| note.starts_with(NOTE))
}

/// The proxies that run a document, and those that report any.
fn counts(listed: &PublishedDocuments, digest: &str) -> ProxyCounts {
    let documents = listed.in_force.documents.iter();
    let running = documents.filter(|found| found.number > 0 && found.digest == digest);
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    ProxyCounts {
        running: count(running.map(|found| found.proxies).sum()),
        reporting: count(listed.in_force.proxies),
    }
}
