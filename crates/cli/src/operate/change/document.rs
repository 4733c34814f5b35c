//! `quotagate document`: publishes policy documents, which proxies take up without an update of
//! their listeners, and rule files, which rate limit services take up.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

use hyper::Method;
use quotagate_control::FileDocument;
use quotagate_operate::api::{
    self, Changed, DocumentKind, DocumentRecord, DocumentText, NO_SHARE_OF_RULES, PublishDocument,
    PublishedDocuments, WithdrawDocument,
};
use quotagate_operate::comparison::{DocumentVersion, compare};
use quotagate_quota::config::PublishedDocument;
use quotagate_ratelimit::published::{as_policies, rules_of};
use serde_json::{Value, json};

use super::confirm;
use crate::check::to_publish;
use crate::operate::display::{Table, Weight, say};
use crate::operate::failure::Failure;
use crate::operate::look::document_status::{self, called, limits, sentence};
use crate::operate::session::{Common, Session};
use crate::text::{clean, count, duration, moment, number};
use crate::values::for_ms;

/// How notes of published documents begin whose author is a controller. What it is a controller of
/// follows.
pub(crate) const CONTROLLER_NOTE: &str = "quotagate controller of ";

/// The flags of `quotagate document`.
#[derive(Debug, clap::Args)]
pub(crate) struct DocumentArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    command: DocumentCommand,
}

#[derive(Debug, clap::Subcommand)]
enum DocumentCommand {
    /// Publish a document for all proxies of its domain whose own document says `live: true`, or a
    /// rule file for all rate limit services that run with `--published`
    Publish(Publish),
    /// Print a published document as JSON, or a rule file as it is
    Show {
        /// Its number [default: the one in force]
        number: Option<u64>,
    },
    /// List what was published, newest first
    List,
    /// Say what happens to counters, dials and runtime overrides between two published documents
    Diff {
        /// The number of the old document
        old: u64,
        /// The number of the new document
        new: u64,
    },
    /// Publish for all proxies, for good, what is published for a share of them or for a time
    Promote(Consent),
    /// Publish the content of an earlier number again, as a new number
    Rollback(Rollback),
    /// Withdraw what is published, so that all proxies go back to their own documents
    Withdraw(Consent),
    /// Show which proxies have the published document, and which refuse it
    Status,
}

#[derive(Debug, clap::Args)]
struct Publish {
    /// A policy document, or a configuration that contains some, or a rule file of the rate limit
    /// service; `-` reads standard input. `store`, `digest_key` and `live` may be left out: they
    /// are not published
    file: PathBuf,
    /// Only for this share of the proxies, 1 to 99 percent, until `promote` or `rollback`. A
    /// greater share has the proxies of a smaller one. Not with a rule file
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    percent: Option<u8>,
    /// Go back to what was in force before, after this time: 30m, 1h, 7d [default: do not]
    #[arg(long = "for", value_name = "TIME", value_parser = for_ms)]
    for_ms: Option<u64>,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, clap::Args)]
struct Rollback {
    /// The number [default: the last one with other content; after a rollback, one before that; the
    /// one before, if the last one is for a share of the proxies or for a time]
    number: Option<u64>,
    #[command(flatten)]
    consent: Consent,
}

#[derive(Debug, clap::Args)]
struct Consent {
    /// A note for those who look at the list
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// Runs one of the commands.
///
/// # Errors
/// When the operator declines or cannot be asked, the document has faults, another one was
/// published meanwhile, or the store does not answer.
pub(crate) async fn run(args: &DocumentArgs, session: Session) -> Result<(), Failure> {
    match &args.command {
        DocumentCommand::Publish(args) => publish(args, session).await,
        DocumentCommand::Show { number } => show(*number, &session).await,
        DocumentCommand::List => list(&session).await,
        DocumentCommand::Diff { old, new } => diff(*old, *new, &session).await,
        DocumentCommand::Promote(consent) => promote(consent, session).await,
        DocumentCommand::Rollback(args) => rollback(args, session).await,
        DocumentCommand::Withdraw(consent) => withdraw(consent, session).await,
        DocumentCommand::Status => document_status::show(&session).await,
    }
}

async fn publish(args: &Publish, mut session: Session) -> Result<(), Failure> {
    args.consent.check("publish")?;
    let (documents, findings) =
        to_publish(&args.file).map_err(|lines| Failure::Refused(lines.join("\n")))?;
    findings.iter().for_each(|line| say(line));
    let FileDocument { domain, document } = chosen(documents, session.client.domain.as_deref())?;
    let new = published(&document)?;
    if new.kind() == DocumentKind::Rules && args.percent.is_some() {
        return Err(Failure::Usage(format!("--percent {NO_SHARE_OF_RULES}")));
    }
    session.client.domain = Some(domain);
    let listed = known(&session).await?;
    let last = listed.documents.first();
    session.explain(last, &new).await?;
    let kind = new.kind();
    if !args.consent.yes {
        let share = args.percent.map(|percent| format!(" for {percent} % of the proxies"));
        let time = args.for_ms.map(|for_ms| format!(" for {}", duration(for_ms)));
        let limits: String = share.into_iter().chain(time).collect();
        confirm(&format!("Publish it{limits}?"))?;
    }
    let change = PublishDocument {
        domain: session.client.domain.clone(),
        document: Some(new.document),
        rollback_to: None,
        percent: args.percent,
        for_ms: args.for_ms,
        after: Some(last.map_or(0, |last| last.number)),
        note: args.consent.note.clone(),
        by: session.by.clone(),
    };
    session.publish(&change, kind).await
}

async fn promote(consent: &Consent, mut session: Session) -> Result<(), Failure> {
    consent.check("promote")?;
    let listed = known(&session).await?;
    session.client.domain = Some(listed.domain.clone());
    let limited = listed.documents.first().filter(|last| last.is_limited());
    let Some(last) = limited else {
        return Err(Failure::Absent(format!(
            "nothing is published in {} for a share of the proxies or for a time",
            listed.domain
        )));
    };
    let new = published(&text(&session, Some(last.number)).await?.document)?;
    let before = if last.percent.is_some() { listed.documents.get(1) } else { Some(last) };
    session.explain(before, &new).await?;
    session.again(last, last.number, new.kind(), consent).await
}

async fn rollback(args: &Rollback, mut session: Session) -> Result<(), Failure> {
    args.consent.check("rollback")?;
    let listed = known(&session).await?;
    session.client.domain = Some(listed.domain.clone());
    let Some(last) = listed.documents.first() else {
        return Err(Failure::Absent(format!("no document was published in {}", listed.domain)));
    };
    if args.number.is_none() && last.is_limited() {
        return match listed.documents.get(1).filter(|before| !before.is_withdrawal()) {
            Some(before) => session.go_back(last, before.number, &args.consent).await,
            None => session.withdraw(&listed, &args.consent).await,
        };
    }
    // What a rollback has gone back from is no choice for the next one.
    let (mut newest, mut content) = (last.number, Some(last));
    while let Some(older) = content.and_then(|record| record.rollback_to).filter(|to| *to < newest)
    {
        newest = older;
        content = listed.documents.iter().find(|record| record.number == older);
    }
    let before = |record: &&DocumentRecord| {
        let is_of_kind = last.is_withdrawal() || record.kind == last.kind;
        is_of_kind
            && record.number <= newest
            && !record.is_withdrawal()
            && record.digest != last.digest
    };
    let number = match args
        .number
        .or_else(|| listed.documents.iter().find(before).map(|it| it.number))
    {
        Some(number) => number,
        None => {
            return Err(Failure::Absent(format!(
                "{} has no earlier document to go back to: name a number of `quotagate document \
                 list`, or go back to those of the proxies with `quotagate document withdraw`",
                listed.domain
            )));
        }
    };
    session.go_back(last, number, &args.consent).await
}

async fn withdraw(consent: &Consent, mut session: Session) -> Result<(), Failure> {
    consent.check("withdraw")?;
    let listed = known(&session).await?;
    session.client.domain = Some(listed.domain.clone());
    let last = listed.documents.first();
    // Where nobody knows what is published, a withdrawal says that nothing is.
    if listed.incomplete.is_none() && last.is_none_or(|last| last.is_withdrawal()) {
        let why = format!("no document is published in {}", listed.domain);
        return Err(Failure::Absent(why));
    }
    session.withdraw(&listed, consent).await
}

async fn show(number: Option<u64>, session: &Session) -> Result<(), Failure> {
    let number = number.map(|number| number.to_string());
    let parameters = [("number", number.as_deref())];
    let answer = session.client.get::<DocumentText>(api::DOCUMENT_TEXT, &parameters).await?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    let DocumentText { domain, record, document } = answer.value;
    say(&format!("{domain}: {}", sentence(&record)));
    let text = match document {
        // As it is, so that it can be published again.
        Value::String(rules) if !io::stdout().is_terminal() => return session.output.print(&rules),
        Value::String(rules) => Ok(rules),
        document => serde_json::to_string_pretty(&document),
    };
    let text = text.map_err(|error| Failure::Refused(error.to_string()))?;
    session.output.print(&text.lines().map(|line| clean(line) + "\n").collect::<String>())
}

async fn list(session: &Session) -> Result<(), Failure> {
    let answer = session.client.get::<PublishedDocuments>(api::DOCUMENTS, &[]).await?;
    if session.output.json {
        return session.output.json(&answer.raw);
    }
    let listed = answer.value;
    listed.incomplete.iter().for_each(|why| say(why));
    if listed.documents.is_empty() {
        say(&format!(
            "No document was published in {}: the proxies' own documents decide.",
            listed.domain
        ));
        return Ok(());
    }
    let headings = ["number", "at (UTC)", "document", "policies", "by", "note"];
    let mut table = Table::new(&headings, &[0, 3]);
    for (index, record) in listed.documents.iter().enumerate() {
        let weight = if index == 0 { Weight::Notable } else { Weight::Plain };
        let document = if record.is_withdrawal() { "withdrawn".to_owned() } else { called(record) };
        let back = record.rollback_to.map(|to| {
            let is_promoted = listed
                .documents
                .get(index + 1)
                .is_some_and(|of| of.number == to && of.is_limited());
            format!("{} {to}", if is_promoted { "promotes" } else { "rollback to" })
        });
        let note = back.into_iter().chain(limits(record)).chain(record.note.clone());
        let note: Vec<String> = note.collect();
        let row = [
            record.number.to_string(),
            moment(record.at_ms),
            document,
            number(record.policies),
            record.by.clone(),
            note.join("; "),
        ];
        table.row(weight, row);
    }
    session.output.print(&table.render(session.output.colour))
}

async fn diff(old: u64, new: u64, session: &Session) -> Result<(), Failure> {
    let of = async |number| published(&text(session, Some(number)).await?.document);
    let (before, after) = (of(old).await?, of(new).await?);
    if before.kind() != after.kind() {
        return Err(Failure::Refused(format!(
            "number {old} is {}, and number {new} is {}: nothing compares the two",
            before.kind().words(),
            after.kind().words()
        )));
    }
    let comparison = compare(&[before.version], &[after.version]);
    if session.output.json {
        let raw = serde_json::to_vec(&json!({"diff": comparison}));
        return session.output.json(&raw.map_err(|e| Failure::Refused(e.to_string()))?.into());
    }
    let text = comparison.to_string();
    session.output.print(&text.lines().map(|line| clean(line) + "\n").collect::<String>())
}

impl Consent {
    /// # Errors
    /// When nobody can be asked.
    fn check(&self, command: &str) -> Result<(), Failure> {
        let asks = format!("{command} asks before it changes the policies of all proxies");
        super::check_consent(self.yes, &asks)
    }
}

impl Session {
    /// Says what changes. Where the document of the last number is lost, or has faults, only a new
    /// one helps, so that is no failure.
    async fn explain(
        &self,
        last: Option<&DocumentRecord>,
        new: &Publishable,
    ) -> Result<(), Failure> {
        let domain = &new.version.config.domain;
        if let Some(why) = last.and_then(|last| last.excludes(domain, new.kind())) {
            return Err(Failure::Refused(why));
        }
        let version = &new.version;
        let policies =
            version.value.get("policies").and_then(Value::as_array).map_or(0, Vec::len) as u64;
        let text = match last.filter(|last| !last.is_withdrawal()) {
            Some(last) => {
                let old = text(self, Some(last.number)).await;
                match old.and_then(|old| published(&old.document)) {
                    Ok(old) => compare(&[old.version], std::slice::from_ref(version)).to_string(),
                    Err(failure @ Failure::Unreachable(_)) => return Err(failure),
                    Err(failure) => format!(
                        "What changes is not known, because number {} cannot be read: {failure}",
                        last.number
                    ),
                }
            }
            None => match new.kind() {
                DocumentKind::Policies => format!(
                    "No document is published in {}: proxies go from their own to this one, with \
                     {}. `quotagate check --diff` compares the two.",
                    version.config.domain,
                    count(policies, "policy", "policies")
                ),
                DocumentKind::Rules => format!(
                    "No rules are published in {}: rate limit services go from their own to these, \
                     with {}.",
                    version.config.domain,
                    count(policies, "rule", "rules")
                ),
            },
        };
        // Standard output belongs to the answer of the store.
        text.lines().for_each(say);
        say_owner(last);
        Ok(())
    }

    /// Publishes the content of an earlier number, after a question.
    async fn go_back(
        &self,
        last: &DocumentRecord,
        number: u64,
        consent: &Consent,
    ) -> Result<(), Failure> {
        let new = published(&text(self, Some(number)).await?.document)?;
        self.explain(Some(last), &new).await?;
        self.again(last, number, new.kind(), consent).await
    }

    async fn again(
        &self,
        last: &DocumentRecord,
        number: u64,
        kind: DocumentKind,
        consent: &Consent,
    ) -> Result<(), Failure> {
        if !consent.yes {
            let question = if number == last.number {
                format!("Publish number {number} for all {}, for good?", who(kind))
            } else {
                format!("Publish the content of number {number} again?")
            };
            confirm(&question)?;
        }
        let change = PublishDocument {
            domain: self.client.domain.clone(),
            rollback_to: Some(number),
            after: Some(last.number),
            note: consent.note.clone(),
            by: self.by.clone(),
            ..PublishDocument::default()
        };
        self.publish(&change, kind).await
    }

    async fn withdraw(
        &self,
        listed: &PublishedDocuments,
        consent: &Consent,
    ) -> Result<(), Failure> {
        say_owner(listed.documents.first());
        let kind = listed.documents.first().map(|last| last.kind).unwrap_or_default();
        if !consent.yes {
            let what = match kind {
                DocumentKind::Policies => "documents. Counters whose policy",
                DocumentKind::Rules => "rules. Counters whose rule",
            };
            say(&format!(
                "All {} of {} go back to their own {what} has another window or partition there \
                 start from zero.",
                who(kind),
                listed.domain
            ));
            confirm("Withdraw the published document?")?;
        }
        let change = WithdrawDocument {
            domain: self.client.domain.clone(),
            after: listed.documents.first().map(|last| last.number),
            note: consent.note.clone(),
            by: self.by.clone(),
        };
        let answer = self.client.change::<Changed>(Method::DELETE, api::DOCUMENTS, &change).await?;
        self.made(&answer, kind)
    }

    async fn publish(&self, change: &PublishDocument, kind: DocumentKind) -> Result<(), Failure> {
        let answer = self.client.change(Method::POST, api::DOCUMENTS, change).await?;
        self.made(&answer, kind)
    }

    fn made(
        &self,
        answer: &crate::operate::client::Answer<Changed>,
        kind: DocumentKind,
    ) -> Result<(), Failure> {
        self.changed(answer)?;
        if !self.output.json {
            if let Some(remark) = &answer.value.remark {
                say(&format!("{remark}."));
            }
            self.warn_unless_durable(&answer.value);
            let which = match kind {
                DocumentKind::Policies => "Live proxies take",
                DocumentKind::Rules => "Rate limit services that run with --published take",
            };
            say(&format!("{which} it up within 10 s: {}", self.command(&["document", "status"])));
        }
        Ok(())
    }
}

/// Says who undoes the change, if a controller owns the documents.
fn say_owner(last: Option<&DocumentRecord>) {
    let by_controller = |last: &&DocumentRecord| {
        last.note.as_ref().is_some_and(|note| note.starts_with(CONTROLLER_NOTE))
    };
    if let Some(last) = last.filter(by_controller) {
        say(&format!(
            "`quotagate controller` published number {} ({}). While it runs, it publishes what the \
             QuotaPolicies make again within seconds: change them, or stop it first.",
            last.number, last.by
        ));
    }
}

/// What was published in the domain, or in the only one that the store knows.
async fn known(session: &Session) -> Result<PublishedDocuments, Failure> {
    Ok(session.client.get(api::DOCUMENTS, &[]).await?.value)
}

async fn text(session: &Session, number: Option<u64>) -> Result<DocumentText, Failure> {
    let number = number.map(|number| number.to_string());
    let parameters = [("number", number.as_deref())];
    Ok(session.client.get(api::DOCUMENT_TEXT, &parameters).await?.value)
}

/// The document of the file that is published: of this domain, or the only one.
fn chosen(mut documents: Vec<FileDocument>, domain: Option<&str>) -> Result<FileDocument, Failure> {
    let names: Vec<String> = documents.iter().map(|document| document.domain.clone()).collect();
    documents.retain(|document| domain.is_none_or(|domain| document.domain == domain));
    match (documents.pop(), documents.is_empty(), domain) {
        (Some(document), true, _) => Ok(document),
        (None, _, domain) => Err(Failure::Refused(format!(
            "the file has no document of the domain {}: it has {}",
            domain.unwrap_or_default(),
            names.join(", ")
        ))),
        (Some(_), false, _) => Err(Failure::Usage(format!(
            "the file has several documents, and one is published at a time: choose one with \
             --domain, or write it to a file of its own ({})",
            names.join(", ")
        ))),
    }
}

/// Who takes a document of this kind up.
const fn who(kind: DocumentKind) -> &'static str {
    match kind {
        DocumentKind::Policies => "proxies",
        DocumentKind::Rules => "rate limit services",
    }
}

/// A document as it is published, and what it means.
struct Publishable {
    document: Value,
    version: DocumentVersion,
}

impl Publishable {
    fn kind(&self) -> DocumentKind {
        DocumentKind::of(&self.document)
    }
}

fn published(document: &Value) -> Result<Publishable, Failure> {
    if let Value::String(text) = document {
        let rules = rules_of(text).map_err(|faults| Failure::Refused(faults.join("\n")))?;
        let (config, value) = as_policies(&rules);
        let version = DocumentVersion { config, value };
        return Ok(Publishable { document: document.clone(), version });
    }
    let checked = PublishedDocument::check(document);
    let (value, config) = checked.map_err(|faults| Failure::Refused(faults.to_string()))?;
    Ok(Publishable { document: value.clone(), version: DocumentVersion { config, value } })
}
