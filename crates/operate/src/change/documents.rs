//! Publishes documents, which proxies take up, and lists what was published.
//!
//! A document is kept as text under its number, and a record says who published it. Both are
//! written in one step with the history and the new version, if nobody else has published since.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quotagate_protocol::is_domain;
use serde_json::Value;

use super::author::Author;
use super::dials::check_time;
use super::document_content::{DocumentContent, ReadRules};
use super::history::{History, Made};
use crate::api::{
    Changed, DocumentKind, DocumentRecord, DocumentText, Event, MAX_REASON, NO_SHARE_OF_RULES,
    NOBODY, PublishDocument, PublishedDocuments, WithdrawDocument,
};
use crate::control::ControlHandle;
use crate::domain::directory::{Directory, clean, clean_text};
use crate::domain::view::lost_document;
use crate::fleet::{DocumentStatus, Fleet, FleetSight};
use crate::record::documents::{
    LOST_RECORD, LastRecord, Publications, PublishedState, last, published, records,
};
use crate::record::{span, write};
use crate::{Fault, millis};
use quotagate_store::control::{HashName, LAST_DOCUMENT, MAX_DOCUMENTS, Publication, Snapshot};
use quotagate_store::server::DomainScope;

/// Who publishes the files of a store's folder.
const FOLDER: &str = "--documents";

/// The published documents of all domains.
pub struct Documents {
    control: ControlHandle,
    directory: Arc<Directory>,
    history: Arc<History>,
    fleet: Arc<Fleet>,
    /// The reader of rule files.
    read_rules: OnceLock<ReadRules>,
}

/// What is published.
#[derive(Default)]
struct Wish<'w> {
    domain: &'w str,
    after: Option<u64>,
    note: Option<&'w str>,
    by: &'w str,
    /// `None` to withdraw.
    content: Option<DocumentContent>,
    rollback_to: Option<u64>,
    percent: Option<u8>,
    for_ms: Option<u64>,
    is_of_folder: bool,
}

impl Documents {
    pub(crate) fn new(directory: Arc<Directory>, history: Arc<History>, fleet: Arc<Fleet>) -> Self {
        let (control, read_rules) = (history.control.clone(), OnceLock::new());
        Self { control, directory, history, fleet, read_rules }
    }

    /// Publishes rule files, too, which this reads. It is set once.
    pub fn read_rules_with(&self, read: ReadRules) {
        let _ = self.read_rules.set(read);
    }

    /// Publishes a document, or one that was published before.
    ///
    /// # Errors
    /// All faults of the document; or that another one was published since the operator looked, or
    /// the backend fails.
    pub async fn publish(&self, wish: &PublishDocument) -> Result<Changed, Fault> {
        check_limits(wish)?;
        let content = match (&wish.document, wish.rollback_to) {
            (Some(document), None) => self.checked(document).await?,
            (None, Some(number)) => {
                let domain = self.directory.domain(wish.domain.as_deref()).await;
                let domain = wish.domain.clone().map_or(domain, Ok)?;
                let text = self.text(Some(&domain), Some(number)).await?;
                self.checked(&text.document).await?
            }
            _ => {
                let reason = "say either which document is published, or rollback_to";
                return Err(Fault::invalid("document", reason));
            }
        };
        let named = content.domain.clone();
        if let Some(domain) = wish.domain.as_ref().filter(|domain| **domain != named) {
            let reason = format!("is {domain}, and the document's is {named}: name the same");
            return Err(Fault::invalid("domain", reason));
        }
        let wish = Wish {
            domain: &named,
            after: wish.after,
            note: wish.note.as_deref(),
            by: &wish.by,
            content: Some(content),
            rollback_to: wish.rollback_to,
            percent: wish.percent,
            for_ms: wish.for_ms,
            is_of_folder: false,
        };
        self.make(wish).await
    }

    /// Publishes the document of a file in the folder of a store.
    pub(super) async fn publish_file(
        &self,
        content: DocumentContent,
        after: u64,
        file: &str,
    ) -> Result<Changed, Fault> {
        let domain = content.domain.clone();
        let wish = Wish {
            domain: &domain,
            after: Some(after),
            note: Some(file),
            by: FOLDER,
            content: Some(content),
            is_of_folder: true,
            ..Wish::default()
        };
        Author::folder().makes(self.make(wish)).await
    }

    /// Withdraws the published document.
    ///
    /// # Errors
    /// If none is published, another one was published since the operator looked, or the backend
    /// fails.
    pub async fn withdraw(&self, wish: &WithdrawDocument) -> Result<Changed, Fault> {
        let domain = self.domain(wish.domain.as_deref()).await?;
        let WithdrawDocument { after, note, by, .. } = wish;
        let (domain, after, note) = (&*domain, *after, note.as_deref());
        self.make(Wish { domain, after, note, by, ..Wish::default() }).await
    }

    async fn make(&self, wish: Wish<'_>) -> Result<Changed, Fault> {
        let domain = wish.domain;
        // What was before need not be readable for what comes next.
        let (snapshot, _) = self.read(domain).await?;
        let records = records(&snapshot);
        let last_number = records.first().map_or(0, |record| record.number);
        if wish.after.is_some_and(|after| after != last_number) {
            return Err(overtaken(domain, records.first()));
        }
        let kind = wish.content.as_ref().map(DocumentContent::kind).unwrap_or_default();
        let last = last(&snapshot);
        let published = published(&snapshot);
        let in_force = match &published {
            Some(published) => Some(published.newest_at(snapshot.now)),
            None => records.first(),
        };
        let in_force = in_force.filter(|_| wish.content.is_some());
        if let Some(why) = in_force.and_then(|of| of.excludes(domain, kind)) {
            return Err(Fault::InUse(why));
        }
        let repairs = match (&last, &wish.content) {
            (LastRecord::Known(state), Some(content)) if content.digest == state.all.digest => {
                self.is_lost(domain, &state.all).await?
            }
            _ => false,
        };
        let (is_lost, last_number) = match last {
            LastRecord::Absent => {
                let lost = self.lost_number(domain, &self.fleet.look().await);
                (lost.is_some(), self.number_before_loss(domain).unwrap_or_default())
            }
            LastRecord::Known(_) | LastRecord::Unreadable => (false, last_number),
        };
        wish.check(&last, repairs, is_lost, snapshot.now)?;
        let Some(made) = self.publish_next(wish, &snapshot, last_number).await? else {
            let snapshot = self.control.read(HashName::Documents, domain).await?;
            return Err(overtaken(domain, self::records(&snapshot).first()));
        };
        let remark = self.remark(domain, kind).await;
        Ok(Changed { remark, ..self.history.reply(domain.to_owned(), made, None) })
    }

    /// In a domain without any record: the number that this store read last. Reports have no say in
    /// the next number, because every client of the call address may report any.
    fn number_before_loss(&self, domain: &str) -> Option<u64> {
        self.directory.views.get(domain)?.view()?.known_number()
    }

    /// In a domain without any record: the number of the document that was published, as far as
    /// this store, proxies or services know.
    fn lost_number(&self, domain: &str, sight: &FleetSight<'_>) -> Option<u64> {
        let view = self.directory.views.get(domain).and_then(|of| of.view());
        let shown = view.and_then(|view| view.losses().document);
        let known = self.number_before_loss(domain).or(shown);
        let in_force = sight.in_force().remove(domain).unwrap_or_default().documents;
        let services = sight.service_rules(domain, None, Duration::ZERO);
        let numbers = in_force.iter().map(|of| of.number);
        let reported = numbers.chain(services.iter().map(|of| of.number));
        known.or(reported.filter(|number| *number > 0).max())
    }

    /// Whether the text of a document is gone, although its record is there.
    pub(super) async fn is_lost(&self, domain: &str, of: &DocumentRecord) -> Result<bool, Fault> {
        Ok(!of.is_withdrawal() && self.control.document(domain, of.number).await?.is_none())
    }

    /// The records, after the end of a time was written down; and why that could not be.
    async fn read(&self, domain: &str) -> Result<(Snapshot, Option<String>), Fault> {
        let snapshot = self.control.read(HashName::Documents, domain).await?;
        match last(&snapshot) {
            LastRecord::Known(state) if state.is_over_at(snapshot.now) => {
                let failed = self.end(domain, &snapshot, &state).await.err();
                let why = failed.map(|fault| {
                    format!(
                        "the time of number {} is over, and what was before it cannot be published \
                         again, so proxies keep what they have: {fault}. Publish a document, or \
                         withdraw",
                        state.newest().number
                    )
                });
                Ok((self.control.read(HashName::Documents, domain).await?, why))
            }
            _ => Ok((snapshot, None)),
        }
    }

    /// If the time of the last document is over, publishes again what was in force before it. Of
    /// several stores, one does. Returns why that could not be.
    ///
    /// # Errors
    /// If the backend fails.
    pub(crate) async fn end_if_over(&self, domain: &str) -> Result<Option<String>, Fault> {
        Ok(self.read(domain).await?.1)
    }

    async fn end(
        &self,
        domain: &str,
        snapshot: &Snapshot,
        state: &PublishedState,
    ) -> Result<(), Fault> {
        let base = state.base();
        let content = match base.is_withdrawal() {
            true => None,
            false => Some(self.checked(&self.text_of(domain, base).await?).await?),
        };
        let note = format!("the time of number {} is over", state.newest().number);
        let wish = Wish {
            domain,
            note: Some(&note),
            by: NOBODY,
            rollback_to: content.as_ref().map(|_| base.number),
            content,
            ..Wish::default()
        };
        let last_number = records(snapshot).first().map_or(0, |record| record.number);
        Author::time().makes(self.publish_next(wish, snapshot, last_number)).await.map(drop)
    }

    /// Makes the number after `last_number`. Returns `None` if another one was made after
    /// `snapshot`.
    async fn publish_next(
        &self,
        wish: Wish<'_>,
        snapshot: &Snapshot,
        last_number: u64,
    ) -> Result<Option<Made>, Fault> {
        let Wish { domain, note, by, content, rollback_to, percent, for_ms, is_of_folder, .. } =
            wish;
        let old = snapshot.get(LAST_DOCUMENT).map(<[u8]>::to_vec);
        let now = millis(snapshot.now);
        let record = DocumentRecord {
            number: last_number.saturating_add(1),
            kind: content.as_ref().map_or_else(DocumentKind::default, DocumentContent::kind),
            digest: content.as_ref().map_or_else(String::new, |content| content.digest.clone()),
            policies: content.as_ref().map_or(0, |content| content.policies),
            by: clean(by),
            at_ms: now,
            note: note.map(|note| clean_text(note, MAX_REASON)).filter(|note| !note.is_empty()),
            rollback_to,
            percent,
            until_ms: for_ms.map(|for_ms| now.saturating_add(for_ms)),
            of_folder: is_of_folder,
        };
        let state = match last(snapshot) {
            LastRecord::Known(state) => state,
            LastRecord::Absent | LastRecord::Unreadable => Box::default(),
        };
        let limited = state.limited_at(snapshot.now).map(|of| of.number);
        let is_promotion = limited.is_some() && limited == rollback_to;
        let event = Event::new(now, &record.by, done(&record, is_promotion, for_ms))
            .values(old.as_deref(), Some(&write(&record)));
        let state = PublishedState::after(record.clone(), state.base().clone());
        let publication = Publication {
            old,
            number: record.number,
            record: write(&record),
            last: write(&state),
            text: content.map(|content| content.document.to_string().into_bytes()),
            dropped: dropped(snapshot, record.number),
            event: write(&event),
        };
        let Some(version) = self.control.publish(domain, &publication).await? else {
            return Ok(None);
        };
        self.history.changed(domain, &event).await;
        Ok(Some(Made { version, done: event.done }))
    }

    /// Why nobody takes it up, if that is known.
    async fn remark(&self, domain: &str, kind: DocumentKind) -> Option<String> {
        let known = self.directory.domain(Some(domain)).await;
        let unknown = matches!(known, Err(Fault::Unknown { .. }));
        unknown.then(|| match kind {
            DocumentKind::Policies => format!(
                "no proxy has reported the domain {domain} yet: one takes the document up if its \
                 own says domain: {domain} and live: true"
            ),
            DocumentKind::Rules => format!(
                "no rate limit service has reported the domain {domain} yet: one takes the rules \
                 up if it runs with --published, and has a rule file of {domain} of its own"
            ),
        })
    }

    /// The document as it is published, and what is recorded of it.
    ///
    /// # Errors
    /// All its faults.
    pub(super) async fn checked(&self, document: &Value) -> Result<DocumentContent, Fault> {
        DocumentContent::checked(document, self.read_rules.get().copied()).await
    }

    /// The published documents of a domain, and what its proxies made of them.
    ///
    /// # Errors
    /// If the domain is not known, or the backend fails.
    pub async fn list(
        &self,
        domain: Option<&str>,
        sight: &FleetSight<'_>,
    ) -> Result<PublishedDocuments, Fault> {
        let domain = self.domain(domain).await?;
        let (snapshot, failed) = self.read(&domain).await?;
        let published = published(&snapshot);
        let is_absent = published.as_ref().is_some_and(Publications::is_absent);
        let lost_number = self.lost_number(&domain, sight).filter(|_| is_absent);
        let published = published.filter(|_| lost_number.is_none());
        let newest = published.as_ref().map(|of| of.newest_at(snapshot.now));
        let services = sight.service_rules(&domain, newest, snapshot.now);
        let published = published.as_ref().map(|of| of.at(snapshot.now));
        let lost = published.is_none();
        let DocumentStatus { proxies, silent, left_out, taken_up } =
            sight.document_status(&domain, published.as_ref(), snapshot.now);
        Ok(PublishedDocuments {
            durable: self.control.durable(),
            documents: records(&snapshot),
            incomplete: lost_number
                .map(|number| lost_document(&domain, number))
                .or_else(|| lost.then(|| LOST_RECORD.to_owned()))
                .or(failed)
                .or_else(|| sight.incomplete()),
            lost,
            in_force: sight.in_force().remove(&domain).unwrap_or_default(),
            taken_up,
            proxies,
            silent,
            left_out,
            services,
            refused: sight.refused_documents(&DomainScope::Some([domain.clone()].into())),
            domain,
        })
    }

    /// The records of a domain, the newest first.
    ///
    /// # Errors
    /// If the backend fails.
    pub async fn records(&self, domain: &str) -> Result<Vec<DocumentRecord>, Fault> {
        Ok(records(&self.read(domain).await?.0))
    }

    /// A document that was published: the one with this number, or the last one.
    ///
    /// # Errors
    /// If there is none, the domain is not known, or the backend fails.
    pub async fn text(
        &self,
        domain: Option<&str>,
        number: Option<u64>,
    ) -> Result<DocumentText, Fault> {
        let domain = self.domain(domain).await?;
        let records = self.records(&domain).await?;
        let absent = |why: String| Err(Fault::Absent(why));
        let Some(newest) = records.first() else {
            return absent(format!("no document was published in {domain}"));
        };
        let found = records.iter().find(|record| record.number == number.unwrap_or(newest.number));
        let Some(record) = found else {
            let oldest = records.last().map_or(0, |record| record.number);
            return absent(format!(
                "{domain} has no number {}: the numbers {oldest} to {} are kept",
                number.unwrap_or_default(),
                newest.number
            ));
        };
        if record.is_withdrawal() {
            return absent(format!(
                "number {} withdrew what was published: it has no document",
                record.number
            ));
        }
        let document = self.text_of(&domain, record).await?;
        Ok(DocumentText { domain, record: record.clone(), document })
    }

    async fn text_of(&self, domain: &str, record: &DocumentRecord) -> Result<Value, Fault> {
        let text = self.control.document(domain, record.number).await?;
        let document = text.and_then(|text| serde_json::from_slice(&text).ok());
        document
            .ok_or_else(|| Fault::Absent(format!("the text of number {} is lost", record.number)))
    }

    /// The given domain, or the only known one. A document may be published before a proxy reports
    /// its domain.
    async fn domain(&self, given: Option<&str>) -> Result<String, Fault> {
        match given {
            Some(given) if is_domain(given) => Ok(given.to_owned()),
            given => self.directory.domain(given).await,
        }
    }
}

impl Wish<'_> {
    /// Whether it may follow the last document. It `repairs` that one if it has the same content,
    /// and the text is lost. The last one `is_lost` if proxies have one, and there is no record.
    ///
    /// # Errors
    /// If it changes nothing, or something else must be decided first.
    fn check(
        &self,
        last: &LastRecord,
        repairs: bool,
        is_lost: bool,
        now: Duration,
    ) -> Result<(), Fault> {
        let domain = self.domain;
        let digest = self.content.as_ref().map(|content| &*content.digest);
        let kind = self.content.as_ref().map(DocumentContent::kind);
        if self.percent.is_some() && kind == Some(DocumentKind::Rules) {
            return Err(Fault::invalid("percent", NO_SHARE_OF_RULES));
        }
        match last {
            LastRecord::Unreadable => self.check_unlimited(),
            LastRecord::Known(state) if let Some(limited) = state.limited_at(now) => {
                // What an earlier number says ends it, and so does a withdrawal.
                if self.content.is_none() || self.rollback_to.is_some() {
                    return Ok(());
                }
                Err(Fault::InUse(format!(
                    "number {} is published in {domain} {}: `quotagate document promote` keeps \
                     it for all proxies, and `quotagate document rollback` goes back to the one \
                     before. Then publish again",
                    limited.number,
                    limits(
                        limited,
                        limited.until_ms.map(|until| until.saturating_sub(millis(now)))
                    )
                )))
            }
            // Whatever was before one whose time is over: its end could not be written down.
            LastRecord::Known(state) if state.is_over_at(now) => self.check_unlimited(),
            LastRecord::Known(_) if repairs => self.check_unlimited(),
            LastRecord::Known(state) => match digest {
                Some(digest) if digest == state.all.digest => Err(Fault::InUse(format!(
                    "{domain} has this very document published, as number {} ({digest}): nothing \
                     would change",
                    state.all.number
                ))),
                None if state.all.is_withdrawal() => {
                    Err(Fault::Absent(format!("no document is published in {domain}")))
                }
                _ => Ok(()),
            },
            LastRecord::Absent if is_lost => self.check_unlimited(),
            LastRecord::Absent if digest.is_none() => {
                Err(Fault::Absent(format!("no document is published in {domain}")))
            }
            LastRecord::Absent => Ok(()),
        }
    }

    /// # Errors
    /// If proxies would have to go back to what was before it, which cannot be read.
    fn check_unlimited(&self) -> Result<(), Fault> {
        let limited = self.percent.map(|_| "percent").or(self.for_ms.map(|_| "for_ms"));
        match limited {
            Some(field) => Err(Fault::invalid(
                field,
                "what was in force before it cannot be read, so nothing can go back to that: \
                 publish one for all proxies first",
            )),
            None => Ok(()),
        }
    }
}

/// # Errors
/// If a share or a time is out of its bounds, or has no document.
fn check_limits(wish: &PublishDocument) -> Result<(), Fault> {
    check_time(wish.for_ms)?;
    if wish.percent.is_some_and(|percent| !(1..=99).contains(&percent)) {
        return Err(Fault::invalid("percent", "is 1 to 99: without it, all proxies take it up"));
    }
    let limited = wish.percent.map(|_| "percent").or(wish.for_ms.map(|_| "for_ms"));
    match limited.filter(|_| wish.document.is_none()) {
        Some(field) => Err(Fault::invalid(field, "goes with a document, and not with rollback_to")),
        None => Ok(()),
    }
}

/// The oldest number, if a further document has no room beside it.
fn dropped(snapshot: &Snapshot, next: u64) -> Option<u64> {
    let records = records(snapshot);
    let oldest = records.last().filter(|_| records.len() >= MAX_DOCUMENTS)?;
    (oldest.number < next).then_some(oldest.number)
}

fn overtaken(domain: &str, last: Option<&DocumentRecord>) -> Fault {
    let what = match last {
        None => "the published documents are gone".to_owned(),
        Some(DocumentRecord { number, by, .. }) => format!("number {number} was made by {by}"),
    };
    Fault::InUse(format!(
        "{what} in {domain} since you looked, so nothing was changed: look at `quotagate document \
         list` and `quotagate document diff`, and publish again"
    ))
}

/// What was done, in a sentence.
fn done(record: &DocumentRecord, is_promotion: bool, for_ms: Option<u64>) -> String {
    let DocumentRecord { number, digest, policies, rollback_to, .. } = record;
    let note = record.note.as_ref().map_or_else(String::new, |note| format!(": {note}"));
    if record.is_withdrawal() {
        return format!("withdrew the published document, as number {number}{note}");
    }
    let back = rollback_to.map_or_else(String::new, |to| {
        let verb = if is_promotion { "promotes" } else { "has the content of" };
        format!(", which {verb} number {to}")
    });
    let (what, word) = match (record.kind, *policies) {
        (DocumentKind::Policies, 1) => ("document", "policy"),
        (DocumentKind::Policies, _) => ("document", "policies"),
        (DocumentKind::Rules, 1) => ("rule file", "rule"),
        (DocumentKind::Rules, _) => ("rule file", "rules"),
    };
    let limits =
        if record.is_limited() { format!(" {}", limits(record, for_ms)) } else { String::new() };
    format!("published {what} number {number} ({digest}, {policies} {word}){limits}{back}{note}")
}

/// For whom and for how much longer a document is published, in words.
fn limits(record: &DocumentRecord, for_ms: Option<u64>) -> String {
    let share = record.percent.map(|percent| format!("for {percent} % of the proxies"));
    let time = for_ms.map(|for_ms| format!("for {}", span(for_ms)));
    share.into_iter().chain(time).collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(numbers: std::ops::RangeInclusive<u64>) -> Snapshot {
        let record = |number: u64| {
            let digest = "0123456789ab".to_owned();
            let record = DocumentRecord { number, digest, ..DocumentRecord::default() };
            (number.to_string(), write(&record))
        };
        let mut fields: Vec<_> = numbers.map(record).collect();
        fields.push(("7x".to_owned(), b"{}".to_vec()));
        fields.sort();
        Snapshot { fields, ..Snapshot::default() }
    }

    #[test]
    fn oldest_document_makes_room() {
        assert_eq!(dropped(&snapshot(1..=63), 64), None);
        assert_eq!(dropped(&snapshot(1..=64), 65), Some(1));
        assert_eq!(dropped(&snapshot(9..=72), 73), Some(9));
        let numbers: Vec<u64> =
            records(&snapshot(1..=3)).iter().map(|record| record.number).collect();
        assert_eq!(numbers, [3, 2, 1], "what is no record is left out");
    }
}
