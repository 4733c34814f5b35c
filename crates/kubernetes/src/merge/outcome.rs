//! What a merge says of an object.

use super::candidate::{Candidate, Precedence};
use crate::objects::GATEWAY_API;
use crate::resource::{
    AncestorOutcome, AncestorRef, DocumentPolicy, DocumentPolicyState, PolicyOutcome, Reason,
    Verdict,
};

impl Candidate<'_> {
    pub(super) fn outcome(self, domain: &str, is_published: bool) -> PolicyOutcome {
        let refused = |reason: Reason, message: String| AncestorOutcome {
            ancestor: AncestorRef::default(),
            accepted: Verdict { holds: false, reason, message },
            programmed: None,
        };
        let mut ancestors = Vec::new();
        for gateway in self.traffic.keys() {
            let ancestor = AncestorRef {
                group: GATEWAY_API.to_owned(),
                kind: "Gateway".to_owned(),
                namespace: gateway.namespace.clone(),
                name: gateway.name.clone(),
                section_name: None,
            };
            let outcome = match &self.refused {
                Some((reason, why)) => refused(*reason, why.clone()),
                None => AncestorOutcome {
                    ancestor: AncestorRef::default(),
                    accepted: Verdict {
                        holds: true,
                        reason: Reason::Accepted,
                        message: self.count(),
                    },
                    programmed: Some(self.programmed(domain, is_published)),
                },
            };
            ancestors.push(AncestorOutcome { ancestor, ..outcome });
        }
        for (ancestor, reason, why) in self.nothing {
            ancestors.push(AncestorOutcome { ancestor, ..refused(reason, why) });
        }
        let notes = if self.refused.is_none() { self.notes } else { Vec::new() };
        PolicyOutcome { object: self.name.clone(), ancestors, policies: self.policies, notes }
    }

    fn count(&self) -> String {
        let mut parts = Vec::new();
        let all = |wanted: fn(Precedence) -> bool| {
            self.rules().filter(|(precedence, ..)| wanted(*precedence)).count()
        };
        for (count, one, more) in [
            (all(|of| of == Precedence::Plain), "policy", "policies"),
            (all(|of| matches!(of, Precedence::Default(_))), "default", "defaults"),
            (all(|of| of == Precedence::Override), "override", "overrides"),
        ] {
            match count {
                0 => {}
                1 => parts.push(format!("1 {one}")),
                _ => parts.push(format!("{count} {more}")),
            }
        }
        parts.join(", ")
    }

    fn programmed(&self, domain: &str, is_published: bool) -> Verdict {
        if !is_published {
            return Verdict {
                holds: false,
                reason: Reason::Reconciling,
                message: format!("the document of domain {domain} has faults"),
            };
        }
        let replaced: Vec<String> = self
            .policies
            .iter()
            .filter(|policy| policy.state != DocumentPolicyState::Programmed)
            .map(|policy| {
                let by = policy.by.as_deref().unwrap_or_default();
                let part = match policy.state {
                    DocumentPolicyState::Overridden => "everywhere",
                    _ => "on some routes",
                };
                format!("{} is replaced {part} by {by}", policy.document_name)
            })
            .collect();
        let is_cap = self.rules().any(|(precedence, ..)| precedence == Precedence::Override);
        if is_cap && let [first, ..] = self.left_out.as_slice() {
            return Verdict {
                holds: false,
                reason: Reason::PartiallyProgrammed,
                message: format!(
                    "the overrides do not cap all routes. Give the Gateway a domain of its own, \
                     where they count all its traffic. {first}"
                ),
            };
        }
        let gone = |policy: &DocumentPolicy| policy.state == DocumentPolicyState::Overridden;
        let (holds, reason) = match (replaced.is_empty(), self.policies.iter().all(gone)) {
            (true, _) => (true, Reason::Programmed),
            (false, true) => (false, Reason::Overridden),
            (false, false) => (true, Reason::PartiallyProgrammed),
        };
        let message = match reason {
            Reason::Programmed => format!("the document of domain {domain} has them all"),
            _ => replaced.join("; "),
        };
        Verdict { holds, reason, message }
    }
}
