//! What a store has published for a domain, and publishing it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hyper::Method;
use quotagate_kubernetes::{Domain, MergedDocument, PublishedNumber, StoreFault};
use quotagate_operate::api::{
    self, Changed, DocumentKind, DocumentRecord, PublishDocument, PublishedDocuments,
    WithdrawDocument,
};
use quotagate_quota::config::PublishedDocument;
use serde_json::Value;
use tokio::time::Instant;

use super::lineage::{DomainProgress, FleetDocuments, Lineage};
use super::retry::pause;
use crate::operate::{AdminAddr, CONTROLLER_NOTE, Client, Failure, Token};
use crate::text::clean;

/// How often another document may take the place of the controller's before it waits with its own.
/// Each one drops the oldest of 64 to which operators can roll back.
const CONTESTS: u32 = 2;
/// How much longer it waits then than after as many failures.
const CONTEST_FACTOR: u32 = 60;
/// How often others may publish while the controller does.
const ATTEMPTS: usize = 3;

/// What should be published for a domain.
#[derive(Clone, Debug)]
pub(super) enum DocumentWish {
    /// This document.
    Document { document: Value, digest: String, content: String },
    /// None: there are no policies.
    Nothing,
    /// What is published stays, because the merged document has these faults.
    Faulty(String),
}

impl DocumentWish {
    pub(super) fn of(merged: &MergedDocument) -> Self {
        let document = match &merged.document {
            Ok(document) => document,
            Err(faults) => return Self::Faulty(faults.join("; ")),
        };
        let policies = document["policies"].as_array().map_or(0, Vec::len);
        if policies == 0 {
            return Self::Nothing;
        }
        let of_document = merged.outcomes.iter().filter(|outcome| !outcome.policies.is_empty());
        let content = format!("{policies} policies of {} objects", of_document.count());
        match PublishedDocument::check(document) {
            Ok((document, config)) => {
                Self::Document { document, digest: config.digest.to_string(), content }
            }
            Err(faults) => Self::Faulty(faults.to_string()),
        }
    }
}

/// The store that documents are published through.
pub(super) struct DocumentStore {
    address: AdminAddr,
    /// See [`Token::find`]. It is read for each pass, because tokens are replaced.
    token_file: Option<PathBuf>,
    by: String,
    /// How the notes of what it publishes begin.
    mark: String,
    known: BTreeMap<String, KnownDomain>,
}

/// What it knows of a domain, once the store has answered.
#[derive(Debug, Default)]
struct KnownDomain {
    /// The documents up to the published one, if that is what the objects make.
    lineage: Lineage,
    /// The digest of the last document that was.
    own: Option<String>,
    /// How often another document took its place, and when it last published anew.
    contests: u32,
    contested: Option<Instant>,
}

/// What became of a wish.
#[derive(Debug)]
pub(super) struct Settled {
    /// What became of the document; or why the store has never answered.
    pub(super) progress: Result<DomainProgress, StoreFault>,
    pub(super) end: SettleEnd,
}

/// How the settling of a wish ended, in a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SettleEnd {
    /// The store has what it should, and had it before.
    Same(String),
    /// It has what it should now.
    Changed(String),
    /// It has not, until a person or the objects change that.
    Blocked(String),
    /// It has not, and it must be tried again.
    Failed(StoreFault, String),
}

impl SettleEnd {
    pub(super) fn is_good(&self) -> bool {
        matches!(self, Self::Same(_) | Self::Changed(_))
    }

    /// Logs its sentence, if it is news after the one that was said before, and whether that was
    /// good.
    pub(super) fn say(self, said: &mut Option<(bool, String)>) {
        let is_good = self.is_good();
        let is_same = matches!(self, Self::Same(_));
        let (Self::Same(text) | Self::Changed(text) | Self::Blocked(text) | Self::Failed(_, text)) =
            self;
        match said {
            Some((true, _)) if is_same => {}
            Some((_, known)) if *known == text => {}
            _ if is_good => tracing::info!("{}", clean(&text)),
            _ => tracing::warn!("{}", clean(&text)),
        }
        *said = Some((is_good, text));
    }
}

/// What to do next for a wish.
#[derive(Debug, PartialEq, Eq)]
enum NextStep {
    /// Publish its document; or withdraw what is published.
    Change,
    /// Nothing: the number of its document, or why there is none.
    Stay(SettleEnd, Result<PublishedNumber, String>),
}

impl DocumentStore {
    /// `of` says what it is a controller of.
    pub(super) fn new(
        address: AdminAddr,
        token_file: Option<PathBuf>,
        by: String,
        of: &str,
    ) -> Self {
        Self {
            address,
            token_file,
            by,
            mark: format!("{CONTROLLER_NOTE}{of}:"),
            known: BTreeMap::new(),
        }
    }

    /// Forgets what was published, because another controller may have published meanwhile.
    pub(super) fn begin(&mut self) {
        self.known.clear();
    }

    /// Publishes what should be, if it is not.
    pub(super) async fn settle(&mut self, domain: &Domain, wish: &DocumentWish) -> Settled {
        let domain = domain.name();
        let settled = self.try_settle(domain, wish).await;
        settled.unwrap_or_else(|failure| self.failed(domain, wish, &failure))
    }

    async fn try_settle(&mut self, domain: &str, wish: &DocumentWish) -> Result<Settled, Failure> {
        let client = Client {
            address: self.address.clone(),
            token: Token::find(self.token_file.as_deref())?,
            domain: Some(domain.to_owned()),
            reason: None,
        };
        let (mut made, mut refused) = (None, None);
        for _ in 0..=ATTEMPTS {
            let listed = client.get::<PublishedDocuments>(api::DOCUMENTS, &[]).await?.value;
            let after = listed.documents.first().map_or(0, |last| last.number);
            let known = self.known.entry(domain.to_owned()).or_default();
            match known.next(domain, &self.mark, &listed, wish) {
                NextStep::Stay(end, published) => {
                    known.found(published.as_ref().ok(), &listed);
                    let progress = Ok(DomainProgress {
                        published: published.map(|_| known.lineage.clone()),
                        fleet: Ok(FleetDocuments::of(&listed)),
                    });
                    return Ok(Settled { progress, end: made.map_or(end, SettleEnd::Changed) });
                }
                NextStep::Change => {
                    // Nobody published meanwhile, so the store refuses this document itself.
                    if let Some((of, failure)) = refused.take()
                        && of == after
                    {
                        return Err(failure);
                    }
                    match self.change(&client, wish, after).await {
                        Ok(done) => made = Some(format!("domain {domain}: {done}")),
                        Err(failure @ Failure::Refused(_)) => refused = Some((after, failure)),
                        Err(failure) => return Err(failure),
                    }
                }
            }
        }
        Err(Failure::Refused("others publish at the same time".to_owned()))
    }

    /// Publishes the document of a wish, or withdraws what is published.
    async fn change(
        &mut self,
        client: &Client,
        wish: &DocumentWish,
        after: u64,
    ) -> Result<String, Failure> {
        let (domain, by, after) = (client.domain.clone(), self.by.clone(), Some(after));
        let note = |content: &str| Some(format!("{} {content}", self.mark));
        let answer = match wish {
            DocumentWish::Document { document, content, .. } => {
                let document = Some(document.clone());
                let note = note(content);
                let change =
                    PublishDocument { domain, document, after, note, by, ..Default::default() };
                client.change::<Changed>(Method::POST, api::DOCUMENTS, &change).await?
            }
            _ => {
                let change = WithdrawDocument { domain, after, note: note("no policies"), by };
                client.change::<Changed>(Method::DELETE, api::DOCUMENTS, &change).await?
            }
        };
        let known = client.domain.as_ref().and_then(|domain| self.known.get_mut(domain));
        known.into_iter().for_each(|known| known.published_anew(wish));
        Ok(answer.value.done)
    }

    /// What is known if the store has taken too long.
    pub(super) fn late(&self, domain: &str, wish: &DocumentWish) -> Settled {
        let failure = Failure::Unreachable("the store takes too long".to_owned());
        self.failed(domain, wish, &failure)
    }

    /// What is known while the store does not do it. Proxies keep what they have.
    fn failed(&self, domain: &str, wish: &DocumentWish, failure: &Failure) -> Settled {
        let fault = match failure {
            Failure::Unreachable(_) => StoreFault::Unreachable,
            // What this process sends is wrong, so it did not send it.
            Failure::Usage(_) => StoreFault::NoToken,
            _ => StoreFault::Refused,
        };
        let text = failure.to_string();
        let text = format!("domain {domain}: {}", text.lines().next().unwrap_or_default());
        let known = self.known.get(domain).ok_or(fault);
        let progress = known.map(|known| {
            let is_wish = known.lineage.newest().is_some_and(|newest| wish.is(&newest.digest));
            let published = is_wish.then(|| known.lineage.clone()).ok_or_else(|| {
                format!("the document of domain {domain} could not be published: {fault}")
            });
            DomainProgress { published, fleet: Err(fault) }
        });
        Settled { progress, end: SettleEnd::Failed(fault, text) }
    }
}

impl DocumentWish {
    fn is(&self, other: &str) -> bool {
        matches!(self, Self::Document { digest, .. } if digest == other)
    }
}

impl KnownDomain {
    fn next(
        &self,
        domain: &str,
        mark: &str,
        listed: &PublishedDocuments,
        wish: &DocumentWish,
    ) -> NextStep {
        let last = listed.documents.first().filter(|last| !last.is_withdrawal());
        let stay = |end, why: String| NextStep::Stay(end, Err(why));
        let digest = match wish {
            DocumentWish::Faulty(faults) => {
                let why = format!("the document of domain {domain} has faults: {faults}");
                return stay(SettleEnd::Blocked(why.clone()), why);
            }
            DocumentWish::Nothing => {
                let why = format!("domain {domain} has no policies");
                return match last {
                    Some(last) if is_own(last, listed, mark) => NextStep::Change,
                    Some(last) => {
                        let end = format!(
                            "{why}. It keeps number {} of {}, which this controller did not publish",
                            last.number, last.by
                        );
                        stay(SettleEnd::Blocked(end), why)
                    }
                    None => stay(SettleEnd::Same(format!("{why}, and nothing is published")), why),
                };
            }
            DocumentWish::Document { digest, .. } => digest,
        };
        match last {
            Some(last) if last.digest == *digest && !last.is_limited() && !listed.lost => {
                let end =
                    format!("domain {domain} has this very document, as number {}", last.number);
                let published = PublishedNumber { number: last.number, digest: digest.clone() };
                NextStep::Stay(SettleEnd::Same(end), Ok(published))
            }
            Some(last) if last.kind == DocumentKind::Rules => stay(
                SettleEnd::Blocked(format!(
                    "domain {domain}: number {} of {} is a rule file of rate limit services. Give \
                     the controller another domain, or withdraw it",
                    last.number, last.by
                )),
                format!("a rule file of rate limit services is published in domain {domain}"),
            ),
            Some(last) if last.is_limited() => stay(
                SettleEnd::Blocked(format!(
                    "domain {domain}: {} publishes number {} for a share of the proxies or for a \
                     time: end that with `quotagate document promote` or `rollback`",
                    last.by, last.number
                )),
                format!("an operator tries another document in domain {domain}"),
            ),
            Some(last) if is_of_controller(last) && !is_own(last, listed, mark) => stay(
                SettleEnd::Blocked(format!(
                    "domain {domain}: number {} is by another controller, on {} ({}). Give each \
                     controller domains of its own. If that one is gone, `quotagate document \
                     withdraw --domain {domain}` lets this one publish",
                    last.number,
                    last.by,
                    last.note.as_deref().unwrap_or_default()
                )),
                format!("another controller publishes the documents of domain {domain}"),
            ),
            Some(last) if self.waits(digest) => stay(
                SettleEnd::Blocked(format!(
                    "domain {domain}: {} publishes against the controller again and again, so it \
                     waits before it publishes the document of the objects again. Stop one of the two",
                    last.by
                )),
                format!("somebody publishes other documents in domain {domain}"),
            ),
            _ => NextStep::Change,
        }
    }

    /// Whether it waits, because others have put their document in the place of this one too often.
    fn waits(&self, digest: &str) -> bool {
        let wait = pause(self.contests.saturating_sub(CONTESTS)) * CONTEST_FACTOR;
        self.own.as_deref() == Some(digest) && self.contested.is_some_and(|at| at.elapsed() < wait)
    }

    /// Notes that this document is published, and is what the objects make.
    fn found(&mut self, published: Option<&PublishedNumber>, listed: &PublishedDocuments) {
        let Some(published) = published else { return self.lineage.clear() };
        self.lineage.found(published, listed);
        self.own = Some(published.digest.clone());
        if self.contested.is_some_and(|at| at.elapsed() > pause(u32::MAX) * CONTEST_FACTOR) {
            self.contests = 0;
        }
    }

    /// Notes that it published a document. If it is the one of before, another one was published in
    /// its place.
    fn published_anew(&mut self, wish: &DocumentWish) {
        if self.own.as_deref().is_some_and(|own| wish.is(own)) {
            self.contests = self.contests.saturating_add(1);
            self.contested = Some(Instant::now());
        }
    }
}

fn is_of_controller(record: &DocumentRecord) -> bool {
    record.note.as_ref().is_some_and(|note| note.starts_with(CONTROLLER_NOTE))
}

/// Whether the content of a document is by the controller with this mark, also if an operator has
/// published it again.
fn is_own(record: &DocumentRecord, listed: &PublishedDocuments, mark: &str) -> bool {
    let is_marked =
        |of: &DocumentRecord| of.note.as_ref().is_some_and(|note| note.starts_with(mark));
    let is_copy = |of: &DocumentRecord| of.digest == record.digest && is_marked(of);
    is_marked(record) || (!is_of_controller(record) && listed.documents.iter().any(is_copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "quotagate controller of cluster 1:";

    fn record(number: u64, digest: &str, note: &str) -> DocumentRecord {
        DocumentRecord {
            number,
            digest: digest.to_owned(),
            note: Some(note.to_owned()),
            by: "ops@host".to_owned(),
            ..DocumentRecord::default()
        }
    }

    fn listed(documents: impl IntoIterator<Item = DocumentRecord>) -> PublishedDocuments {
        PublishedDocuments { documents: documents.into_iter().collect(), ..Default::default() }
    }

    fn wish() -> DocumentWish {
        let (digest, content) = ("aa".to_owned(), String::new());
        DocumentWish::Document { document: Value::Null, digest, content }
    }

    /// What a domain does that last had its own document as number 1.
    fn known() -> KnownDomain {
        KnownDomain { own: Some("aa".to_owned()), ..KnownDomain::default() }
    }

    fn next(listed: &PublishedDocuments, wish: &DocumentWish) -> NextStep {
        known().next("shop", MARK, listed, wish)
    }

    fn is_blocked(step: &NextStep, part: &str) -> bool {
        matches!(step, NextStep::Stay(SettleEnd::Blocked(why), Err(_)) if why.contains(part))
    }

    #[test]
    fn what_the_objects_make_is_published_unless_it_is_there() {
        let own = || record(1, "aa", MARK);
        assert!(matches!(
            next(&listed([own()]), &wish()),
            NextStep::Stay(SettleEnd::Same(_), Ok(_))
        ));
        for other in [
            listed([]),
            listed([record(2, "bb", "an operator"), own()]),
            listed([record(2, "bb", MARK), own()]),
            listed([record(2, "", MARK), own()]),
            // Nobody knows whether number 1 is the last one.
            PublishedDocuments { lost: true, ..listed([own()]) },
        ] {
            assert_eq!(next(&other, &wish()), NextStep::Change, "{other:?}");
        }
        let faulty = DocumentWish::Faulty("policies[0]: no".to_owned());
        assert!(is_blocked(&next(&listed([own()]), &faulty), "policies[0]: no"));
    }

    #[test]
    fn documents_of_other_controllers_and_limited_ones_stay() {
        let rules = DocumentRecord { kind: DocumentKind::Rules, ..record(2, "bb", "rules.yaml") };
        assert!(is_blocked(&next(&listed([rules]), &wish()), "a rule file"));
        let foreign = record(2, "bb", "quotagate controller of cluster 2: 1 policies");
        let foreign = listed([foreign, record(1, "aa", MARK)]);
        assert!(is_blocked(&next(&foreign, &wish()), "another controller, on ops@host"));
        assert!(is_blocked(&next(&foreign, &DocumentWish::Nothing), "It keeps number 2"));
        // Also with the same content.
        let copy =
            listed([record(2, "aa", "quotagate controller of cluster 2:"), record(1, "aa", MARK)]);
        assert!(is_blocked(&next(&copy, &DocumentWish::Nothing), "It keeps number 2"));
        let tried = DocumentRecord { percent: Some(10), ..record(2, "bb", "try") };
        assert!(is_blocked(&next(&listed([tried]), &wish()), "document promote"));
    }

    #[test]
    fn own_content_is_withdrawn_also_after_a_rollback_and_no_other() {
        let nothing = DocumentWish::Nothing;
        let back = record(3, "aa", "back");
        let own = [back.clone(), record(2, "bb", "an operator"), record(1, "aa", MARK)];
        assert_eq!(next(&listed(own), &nothing), NextStep::Change);
        for kept in
            [listed([]), listed([back]), listed([record(2, "", "gone"), record(1, "aa", MARK)])]
        {
            let step = next(&kept, &nothing);
            assert!(matches!(step, NextStep::Stay(_, Err(_))), "{kept:?}");
        }
    }

    #[test]
    fn who_publishes_against_it_again_and_again_is_not_fought() {
        let other = listed([record(2, "bb", "a folder")]);
        let mut known = known();
        for _ in 0..CONTESTS {
            assert_eq!(known.next("shop", MARK, &other, &wish()), NextStep::Change);
            known.published_anew(&wish());
        }
        assert_eq!(known.next("shop", MARK, &other, &wish()), NextStep::Change);
        known.published_anew(&wish());
        assert!(is_blocked(&known.next("shop", MARK, &other, &wish()), "Stop one of the two"));
        known.contested = known.contested.and_then(|at| at.checked_sub(pause(1) * CONTEST_FACTOR));
        assert_eq!(known.next("shop", MARK, &other, &wish()), NextStep::Change);
        // A change of the objects is no contest.
        known.contested = Some(Instant::now());
        known.own = Some("cc".to_owned());
        assert_eq!(known.next("shop", MARK, &other, &wish()), NextStep::Change);
    }
}
