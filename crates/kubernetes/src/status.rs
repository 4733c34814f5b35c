//! The status that a controller writes: what merges say of an object, and what became of the
//! documents.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::merge::Domain;
use crate::objects::ObjectName;
use crate::resource::{
    AncestorOutcome, AncestorRef, AncestorStatus, CalendarUnits, DocumentStatus, PolicyOutcome,
    PolicyRule, ProxyCounts, QuotaPolicy, QuotaPolicySpec, QuotaPolicyStatus, Reason, Verdict,
};

/// Who writes the status.
pub const CONTROLLER: &str = "quotagate.io/controller";
/// The most ancestors in a status, as for all policies of the Gateway API.
const MAX_ANCESTORS: usize = 16;
/// The most documents in a status.
const MAX_DOCUMENTS: usize = 16;
/// The most characters of a message that a person reads.
const MAX_MESSAGE: usize = 1024;

/// What became of the document of a domain, for one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentProgress {
    /// The published document in which the object last changed; or why there is none. Later
    /// documents have it, too.
    pub published: Result<PublishedNumber, String>,
    /// The proxies that run this document or a later one, or why nobody knows.
    pub proxies: Result<ProxyCounts, StoreFault>,
}

/// Why a store does not say how far a document has come. Tenants read this, so it names neither the
/// store nor its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// It does not answer.
    Unreachable,
    /// It answers, and refuses the controller.
    Refused,
    /// It is not asked, because the controller has no token that it could send.
    NoToken,
}

impl StoreFault {
    fn reason(self) -> &'static str {
        match self {
            Self::Unreachable => "StoreUnreachable",
            Self::Refused | Self::NoToken => "StoreRefused",
        }
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "the store of the quotas does not answer the controller",
            Self::Refused => "the store of the quotas refuses the controller",
            Self::NoToken => "the controller has no valid token for the store of the quotas",
        })?;
        f.write_str(": proxies keep what they have. The log of the controller has the cause")
    }
}

/// A published document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishedNumber {
    /// Its number.
    pub number: u64,
    /// Its digest.
    pub digest: String,
}

/// What a merge says of an object in a domain, and what became of the document.
#[derive(Clone, Copy, Debug)]
pub struct DomainOutcome<'a> {
    /// The domain.
    pub domain: &'a Domain,
    /// What the merge says.
    pub outcome: &'a PolicyOutcome,
    /// What became of the document; or why the store has not said so since the controller began.
    /// Then what the status says of it stays.
    pub progress: Result<&'a DocumentProgress, StoreFault>,
}

/// How much two statuses differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusChange {
    /// Not at all.
    Nothing,
    /// By numbers of documents and by proxies, which change all the time.
    Progress,
    /// By what became of the object itself.
    Outcome,
}

impl StatusChange {
    /// How much a status differs from the one that an object has.
    pub fn between(old: Option<&QuotaPolicyStatus>, new: &QuotaPolicyStatus) -> Self {
        let Some(old) = old else { return Self::Outcome };
        let (mut old, mut new) = (json!(old), json!(new));
        if old == new {
            return Self::Nothing;
        }
        for status in [&mut old, &mut new] {
            without_progress(status);
        }
        if old == new { Self::Progress } else { Self::Outcome }
    }
}

/// Takes out what says how far a document has come.
fn without_progress(status: &mut Value) {
    let lists = |value: &mut Value, name: &str| -> Vec<Value> {
        value.get_mut(name).and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default()
    };
    let mut ancestors = lists(status, "ancestors");
    for ancestor in &mut ancestors {
        let mut conditions = lists(ancestor, "conditions");
        conditions.retain(|condition| condition["type"] != ENFORCED);
        for condition in conditions.iter_mut().filter(|found| found["type"] == PROGRAMMED) {
            condition["message"] = Value::Null;
        }
        ancestor["conditions"] = conditions.into();
    }
    status["ancestors"] = ancestors.into();
    let mut documents = lists(status, "documents");
    for document in &mut documents {
        for field in ["number", "digest", "proxies"] {
            document[field] = Value::Null;
        }
    }
    status["documents"] = documents.into();
}

const ACCEPTED: &str = "Accepted";
const PROGRAMMED: &str = "Programmed";
const ENFORCED: &str = "Enforced";

/// The status of an object. Conditions whose status stays keep the time of their last transition.
pub fn status(
    name: &ObjectName,
    object: &QuotaPolicy,
    outcomes: &[DomainOutcome<'_>],
    now: Timestamp,
) -> QuotaPolicyStatus {
    let mut writer = StatusWriter {
        old: object.status.as_ref(),
        generation: object.metadata.generation,
        now,
        ancestors: Vec::new(),
        documents: Vec::new(),
    };
    for of_domain in outcomes {
        writer.add(*of_domain);
    }
    if writer.ancestors.is_empty() {
        writer.unplaced(name, &object.spec);
    }
    let StatusWriter { mut ancestors, mut documents, .. } = writer;
    if ancestors.len() > MAX_ANCESTORS {
        // What is refused must be seen.
        let is_accepted = |of: &AncestorStatus| {
            of.conditions.iter().all(|found| found.type_ != ACCEPTED || found.status == "True")
        };
        ancestors.sort_by_key(is_accepted);
        ancestors.truncate(MAX_ANCESTORS);
    }
    documents.truncate(MAX_DOCUMENTS);
    QuotaPolicyStatus { quota: summary(&object.spec), ancestors, documents }
}

struct StatusWriter<'a> {
    old: Option<&'a QuotaPolicyStatus>,
    generation: Option<i64>,
    now: Timestamp,
    ancestors: Vec<AncestorStatus>,
    documents: Vec<DocumentStatus>,
}

impl StatusWriter<'_> {
    fn add(&mut self, of_domain: DomainOutcome<'_>) {
        let DomainOutcome { domain, outcome, progress } = of_domain;
        for at in &outcome.ancestors {
            let conditions = self.conditions(at, of_domain);
            let known = self.ancestors.iter_mut().find(|known| known.ancestor_ref == at.ancestor);
            match known {
                // A target that does not exist is missing in each domain.
                Some(_) if !at.accepted.holds => {}
                Some(known) => known.conditions = conditions,
                None => self.ancestors.push(AncestorStatus {
                    ancestor_ref: at.ancestor.clone(),
                    controller_name: CONTROLLER.to_owned(),
                    conditions,
                }),
            }
        }
        match progress.map(|progress| (&progress.published, &progress.proxies)) {
            _ if outcome.policies.is_empty() => {}
            Err(_) => {
                let old = self.old.into_iter().flat_map(|old| &old.documents);
                self.documents.extend(old.filter(|old| old.domain == domain.name()).cloned());
            }
            Ok((Err(_), _)) => {}
            Ok((Ok(published), proxies)) => self.documents.push(DocumentStatus {
                domain: domain.name().to_owned(),
                number: i64::try_from(published.number).unwrap_or(i64::MAX),
                digest: published.digest.clone(),
                proxies: proxies.as_ref().ok().cloned(),
                policies: outcome.policies.clone(),
            }),
        }
    }

    /// An object that no domain has a place for.
    fn unplaced(&mut self, name: &ObjectName, spec: &QuotaPolicySpec) {
        let target = spec.target_refs.first().cloned().unwrap_or_default();
        let ancestor = AncestorRef {
            group: target.group,
            kind: target.kind,
            namespace: name.namespace.clone(),
            name: target.name,
            section_name: target.section_name,
        };
        let why = "no domain has a Gateway that it reaches: the platform's configuration lists \
                   the Gateways of each domain";
        let condition =
            self.condition(&ancestor, ACCEPTED, "False", Reason::TargetNotFound.name(), why);
        self.ancestors.push(AncestorStatus {
            ancestor_ref: ancestor,
            controller_name: CONTROLLER.to_owned(),
            conditions: vec![condition],
        });
    }

    fn conditions(&self, at: &AncestorOutcome, of_domain: DomainOutcome<'_>) -> Vec<Condition> {
        let DomainOutcome { domain, outcome, progress } = of_domain;
        let Verdict { holds, reason, message } = &at.accepted;
        let notes: Vec<&str> = outcome.notes.iter().map(String::as_str).collect();
        let message = match notes.is_empty() || !holds {
            true => message.clone(),
            false => format!("{message}; {}", notes.join("; ")),
        };
        let of = |kind, status, reason, message: &str| {
            self.condition(&at.ancestor, kind, status, reason, message)
        };
        let mut conditions = vec![of(ACCEPTED, word(*holds), reason.name(), &message)];
        let Some(programmed) = &at.programmed else { return conditions };
        let progress = match progress {
            Ok(progress) => progress,
            Err(fault) => {
                conditions.extend(self.kept(&at.ancestor, fault));
                return conditions;
            }
        };
        let published = match (&progress.published, programmed.holds) {
            (Err(why), true) => {
                conditions.push(of(PROGRAMMED, "False", Reason::Reconciling.name(), why));
                return conditions;
            }
            (Err(_), false) => None,
            (Ok(published), _) => Some(published),
        };
        let message = match published {
            Some(PublishedNumber { number, .. }) => {
                format!("published as number {number}: {}", programmed.message)
            }
            None => programmed.message.clone(),
        };
        let (status, reason) = (word(programmed.holds), programmed.reason.name());
        conditions.push(of(PROGRAMMED, status, reason, &message));
        if let (Some(PublishedNumber { number, .. }), true) = (published, programmed.holds) {
            let (status, reason, message) = enforced(*number, domain.name(), &progress.proxies);
            conditions.push(of(ENFORCED, status, reason, &message));
        }
        conditions
    }

    /// What the status says of a document while nobody knows how far it has come.
    fn kept(&self, ancestor: &AncestorRef, fault: StoreFault) -> Vec<Condition> {
        let unknown = |kind, status, reason| {
            self.condition(ancestor, kind, status, reason, &fault.to_string())
        };
        let programmed = self.old(ancestor, PROGRAMMED).cloned();
        let enforced = self.old(ancestor, ENFORCED);
        let programmed =
            programmed.unwrap_or_else(|| unknown(PROGRAMMED, "False", Reason::Reconciling.name()));
        let enforced = enforced.map(|_| unknown(ENFORCED, "Unknown", fault.reason()));
        [programmed].into_iter().chain(enforced).collect()
    }

    /// A condition of the status that the object has.
    fn old(&self, ancestor: &AncestorRef, kind: &str) -> Option<&Condition> {
        let ancestors = self.old.map(|old| old.ancestors.as_slice()).unwrap_or_default();
        let old = ancestors.iter().find(|old| old.ancestor_ref == *ancestor)?;
        old.conditions.iter().find(|old| old.type_ == kind)
    }

    fn condition(
        &self,
        ancestor: &AncestorRef,
        kind: &str,
        status: &str,
        reason: &str,
        message: &str,
    ) -> Condition {
        let old = self.old(ancestor, kind).filter(|old| old.status == status);
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: short(message),
            last_transition_time: old
                .map_or(Time(self.now), |old| old.last_transition_time.clone()),
            observed_generation: self.generation,
        }
    }
}

/// Whether the proxies of a domain run a document: status, reason and message.
fn enforced(
    number: u64,
    domain: &str,
    proxies: &Result<ProxyCounts, StoreFault>,
) -> (&'static str, &'static str, String) {
    match proxies {
        Err(fault) => ("Unknown", fault.reason(), fault.to_string()),
        Ok(ProxyCounts { reporting: 0, .. }) => (
            "False",
            "NoProxies",
            format!("no proxy reported the domain {domain} in the last minute"),
        ),
        Ok(ProxyCounts { running, reporting }) => {
            let all = running == reporting;
            let (status, reason) =
                if all { ("True", ENFORCED) } else { ("False", "PartiallyEnforced") };
            let help = match all {
                true => "",
                false => {
                    ". `quotagate document status` names the others; proxies whose own document \
                     does not say `live: true` never do"
                }
            };
            let message = format!(
                "{running} of {reporting} proxies that reported in the last minute run number \
                 {number}{help}"
            );
            (status, reason, message)
        }
    }
}

fn word(holds: bool) -> &'static str {
    if holds { "True" } else { "False" }
}

/// A message that is not longer than people read.
fn short(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", message.get(..end).unwrap_or_default()),
        None => message.to_owned(),
    }
}

/// The first quota of an object, and how many others it has.
fn summary(spec: &QuotaPolicySpec) -> Option<String> {
    let lists = [
        spec.policies.as_ref(),
        spec.defaults.as_ref().map(|defaults| &defaults.policies),
        spec.overrides.as_ref().map(|overrides| &overrides.policies),
    ];
    let rules: Vec<&PolicyRule> = lists.into_iter().flatten().flat_map(|list| &list.0).collect();
    let (first, others) = rules.split_first()?;
    let window = match (&first.window, &first.calendar) {
        (Some(window), _) => window.clone(),
        (None, Some(CalendarUnits { unit, .. })) => format!("{unit:?}").to_lowercase(),
        (None, None) => String::new(),
    };
    let more = if others.is_empty() { String::new() } else { format!(" +{}", others.len()) };
    Some(match (first.in_flight, first.quota) {
        (Some(slots), _) => format!("{slots} in flight{more}"),
        (None, quota) => format!("{}/{window}{more}", quota.unwrap_or_default()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::Domains;
    use crate::resource::{DocumentPolicy, DocumentPolicyState};

    const GATEWAY: &str = "public";

    fn object() -> QuotaPolicy {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "team-a", "generation": 3},
            "spec": {
                "targetRefs": [{"group": "g", "kind": "HTTPRoute", "name": "r"}],
                "policies": [
                    {"name": "q", "partitionBy": [], "quota": 100, "window": "1m"},
                    {"name": "s", "partitionBy": [], "quota": 5, "window": "1h"},
                ],
            },
        }))
        .unwrap()
    }

    #[test]
    fn limit_of_running_requests_is_shown_without_a_window() {
        let mut spec = object().spec;
        let policies = &mut spec.policies.as_mut().unwrap().0;
        policies.insert(0, PolicyRule { in_flight: Some(4), ..PolicyRule::default() });
        assert_eq!(summary(&spec).as_deref(), Some("4 in flight +2"));
    }

    fn outcome(accepted: Reason) -> PolicyOutcome {
        let verdict = |reason, holds| Verdict { holds, reason, message: "why".to_owned() };
        let is_accepted = accepted == Reason::Accepted;
        PolicyOutcome {
            object: ObjectName::new("team-a", "p"),
            ancestors: vec![AncestorOutcome {
                ancestor: AncestorRef { name: GATEWAY.to_owned(), ..AncestorRef::default() },
                accepted: verdict(accepted, is_accepted),
                programmed: is_accepted.then(|| verdict(Reason::Programmed, true)),
            }],
            policies: vec![DocumentPolicy {
                document_name: "team-a/p/q".to_owned(),
                state: DocumentPolicyState::Programmed,
                by: None,
            }],
            notes: Vec::new(),
        }
    }

    fn progress(number: u64, running: i64, reporting: i64) -> DocumentProgress {
        DocumentProgress {
            published: Ok(PublishedNumber { number, digest: "0123456789ab".to_owned() }),
            proxies: Ok(ProxyCounts { running, reporting }),
        }
    }

    /// The status at this second.
    fn at(
        object: &QuotaPolicy,
        outcome: &PolicyOutcome,
        progress: &DocumentProgress,
        second: i64,
    ) -> QuotaPolicyStatus {
        at_any(object, outcome, Ok(progress), second)
    }

    fn at_any(
        object: &QuotaPolicy,
        outcome: &PolicyOutcome,
        progress: Result<&DocumentProgress, StoreFault>,
        second: i64,
    ) -> QuotaPolicyStatus {
        let domains = Domains::one("shop").unwrap();
        let domain = domains.iter().next().unwrap();
        let name = ObjectName::new("team-a", "p");
        let now = Timestamp::from_second(second).unwrap();
        status(&name, object, &[DomainOutcome { domain, outcome, progress }], now)
    }

    /// The type, the status and the reason of each condition.
    fn conditions(status: &QuotaPolicyStatus) -> Vec<String> {
        let all = status.ancestors.iter().flat_map(|ancestor| &ancestor.conditions);
        all.map(|found| format!("{} {} {}", found.type_, found.status, found.reason)).collect()
    }

    #[test]
    fn status_says_what_is_published_and_how_many_proxies_run_it() {
        for (progress, enforced) in [
            (progress(7, 3, 3), "Enforced True Enforced"),
            (progress(7, 2, 3), "Enforced False PartiallyEnforced"),
            (progress(7, 0, 0), "Enforced False NoProxies"),
            (
                DocumentProgress { proxies: Err(StoreFault::Unreachable), ..progress(7, 0, 0) },
                "Enforced Unknown StoreUnreachable",
            ),
            (
                DocumentProgress { proxies: Err(StoreFault::Refused), ..progress(7, 0, 0) },
                "Enforced Unknown StoreRefused",
            ),
            (
                DocumentProgress { proxies: Err(StoreFault::NoToken), ..progress(7, 0, 0) },
                "Enforced Unknown StoreRefused",
            ),
        ] {
            let status = at(&object(), &outcome(Reason::Accepted), &progress, 0);
            let expected = ["Accepted True Accepted", "Programmed True Programmed", enforced];
            assert_eq!(conditions(&status), expected);
            assert_eq!(status.documents[0].number, 7);
            assert_eq!(status.quota.as_deref(), Some("100/1m +1"));
            assert_eq!(status.ancestors[0].conditions[0].observed_generation, Some(3));
        }
    }

    #[test]
    fn status_of_a_document_that_is_not_published_says_why() {
        let unpublished =
            DocumentProgress { published: Err("away".to_owned()), ..progress(7, 0, 0) };
        let status = at(&object(), &outcome(Reason::Accepted), &unpublished, 0);
        assert_eq!(conditions(&status), ["Accepted True Accepted", "Programmed False Reconciling"]);
        assert!(status.documents.is_empty());
        // What is not accepted has no other condition, also if it had before.
        let mut object = object();
        object.status = Some(at(&object, &outcome(Reason::Accepted), &progress(7, 1, 1), 0));
        for reason in [Reason::Conflicted, Reason::TargetNotFound] {
            let status = at(&object, &outcome(reason), &progress(7, 1, 1), 0);
            assert_eq!(conditions(&status), [format!("Accepted False {}", reason.name())]);
        }
    }

    #[test]
    fn what_a_store_that_never_answered_may_have_stays() {
        let (mut object, accepted) = (object(), outcome(Reason::Accepted));
        let first = at_any(&object, &accepted, Err(StoreFault::Refused), 100);
        assert_eq!(conditions(&first), ["Accepted True Accepted", "Programmed False Reconciling"]);
        object.status = Some(at(&object, &accepted, &progress(7, 3, 3), 100));
        let later = at_any(&object, &accepted, Err(StoreFault::Unreachable), 200);
        let expected = ["Programmed True Programmed", "Enforced Unknown StoreUnreachable"];
        assert_eq!(conditions(&later)[1..], expected);
        assert_eq!(later.documents[0].number, 7);
        let change = StatusChange::between(object.status.as_ref(), &later);
        assert_eq!(change, StatusChange::Progress);
    }

    #[test]
    fn object_that_no_domain_has_a_place_for_is_not_accepted() {
        let name = ObjectName::new("team-a", "p");
        let status = status(&name, &object(), &[], Timestamp::UNIX_EPOCH);
        assert_eq!(conditions(&status), ["Accepted False TargetNotFound"]);
        assert_eq!(status.ancestors[0].ancestor_ref.name, "r");
    }

    #[test]
    fn condition_keeps_the_time_of_its_transition_and_progress_is_told_from_outcomes() {
        let accepted = outcome(Reason::Accepted);
        let mut object = object();
        let first = at(&object, &accepted, &progress(7, 1, 3), 100);
        object.status = Some(first.clone());
        let change = |new: &QuotaPolicyStatus| StatusChange::between(Some(&first), new);

        let same = at(&object, &accepted, &progress(7, 1, 3), 200);
        assert_eq!(change(&same), StatusChange::Nothing);
        let time = |status: &QuotaPolicyStatus, index: usize| {
            status.ancestors[0].conditions[index].last_transition_time.0.as_second()
        };
        assert_eq!([time(&same, 0), time(&same, 2)], [100, 100]);

        let later = at(&object, &accepted, &progress(8, 3, 3), 200);
        assert_eq!(change(&later), StatusChange::Progress);
        assert_eq!([time(&later, 0), time(&later, 1), time(&later, 2)], [100, 100, 200]);

        let refused = at(&object, &outcome(Reason::Conflicted), &progress(8, 3, 3), 200);
        assert_eq!(change(&refused), StatusChange::Outcome);
        assert_eq!(time(&refused, 0), 200);
        object.metadata.generation = Some(4);
        let newer = at(&object, &accepted, &progress(7, 1, 3), 200);
        assert_eq!(change(&newer), StatusChange::Outcome);
        assert_eq!(StatusChange::between(None, &first), StatusChange::Outcome);
    }
}
