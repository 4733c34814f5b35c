//! Rule files that operators publish through the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quotagate_control::{PublishedRules, RuleFileSummary, RulesSighting, Serving};
use quotagate_protocol::OnFailure;
use quotagate_protocol::dials::{DOCUMENT_DIGEST, DocumentVersion};
use quotagate_quota::config::{Config, Precision, Reach, StoreConfig};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::domain::{CountingOptions, configuration};
use crate::rules::{
    FileFault, Rule, RuleDomain, RuleFile, RuleLimit, SharedDomains, read_files, written_name,
};

/// A Redis that was emptied or restored names earlier numbers. For so long the rules in force stay,
/// so that a folder of documents can be published again.
const GRACE: Duration = Duration::from_secs(10);

/// Reads a rule file that an operator publishes, as the service reads its own.
///
/// # Errors
/// A line for each fault, with its path and the remedy.
pub fn read_published(text: &str) -> Result<RuleFileSummary, Vec<String>> {
    let rules = rules_of(text)?;
    Ok(RuleFileSummary {
        domain: written_name(rules.name()),
        digest: digest_of(text),
        rules: rules.rules().len() as u64,
    })
}

/// The rules of a file of one domain.
///
/// # Errors
/// As [`read_published`].
pub fn rules_of(text: &str) -> Result<Arc<RuleDomain>, Vec<String>> {
    let file = RuleFile { name: String::new(), text: text.into() };
    let line = |FileFault { line, fault, .. }: FileFault| format!("line {line}: {fault}");
    let domains = read_files(&[file], SharedDomains::Refuse)
        .map_err(|faults| faults.into_iter().map(line).collect::<Vec<_>>())?;
    // A file without faults has one domain.
    domains.into_values().next().ok_or_else(|| vec!["line 1: domain: is required".to_owned()])
}

/// The rules of a file that was published under this version, for the domain of this name.
///
/// # Errors
/// As [`read_published`], or that it is another file.
fn rules_as_named(
    text: &str,
    name: &Arc<str>,
    version: &DocumentVersion,
) -> Result<Arc<RuleDomain>, Vec<String>> {
    let digest = digest_of(text);
    if digest != version.digest {
        return Err(vec![format!("the text has the digest {digest}, not {}", version.digest)]);
    }
    let rules = rules_of(text)?;
    if rules.name() != name {
        return Err(vec![format!("domain: is {:?}, and not {name:?}", rules.name())]);
    }
    Ok(rules)
}

/// The rules of a published file as policies, and what it says of each, to compare it with another
/// one.
pub fn as_policies(rules: &RuleDomain) -> (Config, Value) {
    let store = StoreConfig {
        reach: Reach::Nowhere,
        timeout: Duration::ZERO,
        on_failure: OnFailure::Deny,
        local_share: 0.0,
    };
    let (precision, precisions, count_refused) = (Precision::Exact, BTreeMap::new(), false);
    let options = CountingOptions { store, precision, precisions, count_refused };
    let policies: Vec<Value> = rules.rules().iter().map(said).collect();
    let config = configuration(rules, &options);
    let value = json!({"domain": &*config.domain, "policies": policies});
    (config, value)
}

/// What a rule says besides the values that it matches.
fn said(rule: &Rule) -> Value {
    let limit = match rule.limit {
        RuleLimit::Unlimited => "unlimited".to_owned(),
        RuleLimit::Hits(hits, unit) => format!("{hits} per {}", unit.name().to_lowercase()),
    };
    json!({
        "name": &*rule.policy,
        "path": &*rule.path,
        "limit": limit,
        "replaces": rule.replaces.join(", "),
        "shadow_mode": rule.shadow_mode,
        "quota_mode": rule.quota_mode,
        "detailed_metric": rule.detailed_metric,
        "metadata": &rule.metadata,
    })
}

fn digest_of(text: &str) -> String {
    let digits = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    digits.chars().take(DOCUMENT_DIGEST).collect()
}

/// What a service knows of the published rules of a domain.
#[derive(Clone, Default)]
pub(crate) struct PublishedDomain {
    /// Those in force.
    taken_up: Option<(DocumentVersion, Arc<RuleDomain>)>,
    /// The last version that was taken up or refused, while the store names it.
    settled: Option<DocumentVersion>,
    /// Since when the store has named an earlier number than the one in force.
    earlier: Option<Instant>,
    /// What the log said last of those that were not taken up.
    complaint: String,
}

/// What became of the published rules of a domain.
pub(crate) enum Followed {
    /// Nothing is new.
    Same,
    /// Other rules are to be put in force. Then the log says this.
    Changed(String),
    /// They have faults, and what was in force stays.
    Refused,
}

impl PublishedDomain {
    /// The version and the rules in force; `None` if the service's own are.
    pub(crate) const fn in_force(&self) -> Option<&(DocumentVersion, Arc<RuleDomain>)> {
        self.taken_up.as_ref()
    }

    /// What operators see of it.
    pub(crate) fn sighting(&self, name: &Arc<str>, follows: bool) -> RulesSighting {
        let in_force = self.taken_up.as_ref().map(|(version, _)| version);
        let refused = self.settled.as_ref().filter(|settled| Some(*settled) != in_force);
        let DocumentVersion { number, digest } = in_force.cloned().unwrap_or_default();
        RulesSighting {
            domain: written_name(name),
            number,
            digest,
            in_force_s: 0,
            follows,
            refuses: refused.map_or(0, |refused| refused.number),
            complaint: self.complaint.clone(),
        }
    }

    /// Takes up what is published for the domain of this name, or logs once why that cannot be.
    pub(crate) async fn follow(&mut self, name: &Arc<str>, serving: &Serving) -> Followed {
        let domain = written_name(name);
        let Some(published) = serving.published_rules(&domain).await else {
            // The store is away, so nobody knows what is published.
            return Followed::Same;
        };
        if self.keeps_rules(published.number(), Instant::now()) {
            return Followed::Same;
        }
        match published {
            PublishedRules::Own(_) => {
                self.complaint.clear();
                self.give_up(&domain)
            }
            PublishedRules::Policies(_) => {
                self.complain(format!(
                    "a policy document is published in {domain}, which is for filters: the service \
                     goes by its own rules. Publish a rule file after a withdrawal"
                ));
                self.give_up(&domain)
            }
            PublishedRules::File(version) if self.is_settled(&version) => Followed::Same,
            PublishedRules::File(version) => self.take_up(name, &domain, version, serving).await,
        }
    }

    /// Whether the rules in force stay although the store names this number: for [`GRACE`], if it
    /// is an earlier one. They stay while there is none, because a withdrawal has one: what was
    /// published is lost.
    fn keeps_rules(&mut self, number: u64, now: Instant) -> bool {
        let in_force = self.taken_up.as_ref().map_or(0, |(version, _)| version.number);
        if number >= in_force {
            self.earlier = None;
            return false;
        }
        number == 0 || now.duration_since(*self.earlier.get_or_insert(now)) < GRACE
    }

    /// Whether nothing is left to do for the version that the store names. What was said of other
    /// versions is over then.
    fn is_settled(&mut self, version: &DocumentVersion) -> bool {
        if self.taken_up.as_ref().is_some_and(|(in_force, _)| in_force == version) {
            self.complaint.clear();
            self.settled = Some(version.clone());
        }
        if self.settled.as_ref() == Some(version) {
            return true;
        }
        self.settled = None;
        false
    }

    fn give_up(&mut self, domain: &str) -> Followed {
        self.settled = None;
        match self.taken_up.take() {
            None => Followed::Same,
            Some(_) => Followed::Changed(format!(
                "no rules of {domain} are published any more: the service's own are in force"
            )),
        }
    }

    async fn take_up(
        &mut self,
        name: &Arc<str>,
        domain: &str,
        version: DocumentVersion,
        serving: &Serving,
    ) -> Followed {
        let DocumentVersion { number, digest } = &version;
        let text = match serving.rule_file(domain, &version).await {
            Ok(text) => text,
            // The next look tries again.
            Err(fault) => {
                self.complain(format!(
                    "the published rules of {domain} cannot be read, and the rules before stay in \
                     force: {fault}"
                ));
                return Followed::Same;
            }
        };
        // Many rules take time.
        let (of, named) = (Arc::clone(name), version.clone());
        let read = tokio::task::spawn_blocking(move || rules_as_named(&text, &of, &named)).await;
        let read = read.unwrap_or_else(|error| Err(vec![error.to_string()]));
        let followed = match read {
            Ok(rules) => {
                self.complaint.clear();
                let count = rules.rules().len();
                let said = format!(
                    "the published rules number {number} ({digest}) of {domain} are in force: {count} \
                     rule{}",
                    if count == 1 { "" } else { "s" }
                );
                self.taken_up = Some((version.clone(), rules));
                Followed::Changed(said)
            }
            Err(faults) => {
                self.complain(format!(
                    "the published rules number {number} of {domain} have faults, and the rules \
                     before stay in force: {}",
                    faults.join("; ")
                ));
                Followed::Refused
            }
        };
        self.settled = Some(version);
        followed
    }

    fn complain(&mut self, complaint: String) {
        if self.complaint != complaint {
            tracing::error!("{complaint}");
            self.complaint = complaint;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_file_is_read_as_the_service_reads_its_own() {
        let text = "domain: my shop\ndescriptors:\n- {key: user, rate_limit: {unit: day, \
                    requests_per_unit: 5}}\n";
        let read = read_published(text).unwrap();
        assert_eq!((read.domain.as_str(), read.rules), ("my%20shop", 1));
        assert_eq!(read.digest.len(), DOCUMENT_DIGEST);
        assert_ne!(read.digest, read_published(&text.replace('5', "6")).unwrap().digest);
    }

    #[test]
    fn file_is_the_one_that_the_store_named() {
        let text = "domain: shop\ndescriptors: []\n";
        let version = DocumentVersion { number: 1, digest: digest_of(text) };
        let read = |text: &str, name: &str| rules_as_named(text, &name.into(), &version);
        assert_eq!(&**read(text, "shop").unwrap().name(), "shop");
        let faults = read("domain: shop\ndescriptors: [ ]\n", "shop").unwrap_err();
        assert!(faults[0].starts_with("the text has the digest "), "{faults:?}");
        let faults = read(text, "other").unwrap_err();
        assert_eq!(faults, ["domain: is \"shop\", and not \"other\""]);
    }

    #[test]
    fn earlier_number_must_stay_for_the_grace() {
        let rules = rules_of("domain: shop\ndescriptors: []\n").unwrap();
        let version = DocumentVersion { number: 5, digest: String::new() };
        let mut domain =
            PublishedDomain { taken_up: Some((version, rules)), ..PublishedDomain::default() };
        let start = Instant::now();
        let mut keeps =
            |number, seconds| domain.keeps_rules(number, start + Duration::from_secs(seconds));
        assert!(!keeps(5, 0) && !keeps(6, 0));
        assert!(keeps(4, 0) && keeps(0, 9) && keeps(0, 90));
        // The folder was published again meanwhile.
        assert!(!keeps(5, 91));
        assert!(keeps(1, 100) && keeps(1, 109) && !keeps(1, 110));
    }

    #[test]
    fn complaint_and_refusal_are_those_of_the_version_that_the_store_names() {
        let rules = rules_of("domain: shop\ndescriptors: []\n").unwrap();
        let version = |number| DocumentVersion { number, digest: format!("{number:012}") };
        let mut domain = PublishedDomain {
            taken_up: Some((version(3), rules)),
            settled: Some(version(4)),
            complaint: "number 4 has faults".to_owned(),
            ..PublishedDomain::default()
        };
        let shown = |domain: &PublishedDomain| {
            let RulesSighting { number, refuses, complaint, .. } =
                domain.sighting(&"shop".into(), true);
            (number, refuses, complaint)
        };
        assert!(domain.is_settled(&version(4)));
        assert_eq!(shown(&domain), (3, 4, "number 4 has faults".to_owned()));
        // A later one, which cannot be read, is not refused, and neither is number 4 any more.
        assert!(!domain.is_settled(&version(5)));
        domain.complain("number 5 cannot be read".to_owned());
        assert!(!domain.is_settled(&version(5)), "the next look tries again");
        assert_eq!(shown(&domain), (3, 0, "number 5 cannot be read".to_owned()));
        // Its time is over, or Redis was restored.
        assert!(domain.is_settled(&version(3)));
        assert_eq!(shown(&domain), (3, 0, String::new()));
    }

    #[test]
    fn faults_of_a_published_file_have_their_line_path_and_remedy() {
        let text = "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: windw}}\n";
        let faults = read_published(text).unwrap_err();
        assert!(faults[0].starts_with("line 3: descriptors[0].rate_limit.unit: "), "{faults:?}");
        for text in ["", "- a", "{", "domain: shop\npolicies: []\n", "descriptors: []\n"] {
            assert!(!read_published(text).unwrap_err().is_empty(), "{text}");
        }
    }
}
