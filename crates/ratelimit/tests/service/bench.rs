//! A service with rules, and requests to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::OnFailure;
use quotagate_quota::config::{Precision, Reach, RedisStore, StoreConfig};
use quotagate_ratelimit::domain::{CountingOptions, Domain};
use quotagate_ratelimit::messages::{
    Code, Descriptor, DescriptorEntry, RateLimitRequest, RateLimitResponse,
};
use quotagate_ratelimit::rules::{RuleFile, SharedDomains, read_files};
use quotagate_ratelimit::service::{AnswerOptions, NoAnswer, RateLimitService};
use quotagate_store::server::{CallEndpoint, Connections};
use quotagate_store::store::Store;

/// A service with the rules of one file.
pub struct Bench {
    pub service: RateLimitService,
}

/// How a service counts in tests.
pub fn counting() -> CountingOptions {
    let reach = Reach::Redis(RedisStore {
        url: "memory:".into(),
        password_file: None,
        prefix: "qg".into(),
    });
    CountingOptions {
        store: StoreConfig {
            reach,
            timeout: Duration::from_secs(20),
            on_failure: OnFailure::Deny,
            local_share: 0.1,
        },
        precision: Precision::Exact,
        precisions: BTreeMap::new(),
        count_refused: false,
    }
}

pub fn memory() -> Arc<dyn Store> {
    quotagate_store::open(&"memory:".parse().unwrap(), "qg")
}

impl Bench {
    pub fn new(rules: &str) -> Self {
        Self::with(rules, AnswerOptions::default(), counting(), memory())
    }

    pub fn with(
        rules: &str,
        answers: AnswerOptions,
        counting: CountingOptions,
        store: Arc<dyn Store>,
    ) -> Self {
        let file = RuleFile { name: "rules.yaml".to_owned(), text: rules.into() };
        let rules = read_files(&[file], SharedDomains::Refuse).unwrap();
        let endpoint =
            Arc::new(CallEndpoint::new(Arc::clone(&store), Arc::<Connections>::default()));
        let domains: BTreeMap<_, _> = rules
            .into_iter()
            .map(|(name, rules)| {
                let (endpoint, store) = (Arc::clone(&endpoint), Arc::clone(&store));
                (name, Arc::new(Domain::open(rules, &counting, endpoint, store)))
            })
            .collect();
        let service = RateLimitService::new(answers);
        service.replace_domains(Arc::new(domains));
        Self { service }
    }

    /// Answers a request of the domain `d` with these descriptors.
    pub async fn ask(&self, descriptors: &[Descriptor]) -> RateLimitResponse {
        self.try_ask(descriptors).await.unwrap()
    }

    pub async fn try_ask(&self, descriptors: &[Descriptor]) -> Result<RateLimitResponse, NoAnswer> {
        let descriptors = descriptors.to_vec();
        let request = RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 0 };
        self.service.should_rate_limit(&request).await
    }

    /// Whether a request with so many hits passes, which it gives for all its descriptors.
    pub async fn passes_with(&self, text: &str, hits_addend: u32) -> bool {
        let descriptors = vec![descriptor(text)];
        let request = RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend };
        passes(&self.service.should_rate_limit(&request).await.unwrap())
    }

    /// Whether a request with this descriptor passes.
    pub async fn passes(&self, descriptor: Descriptor) -> bool {
        passes(&self.ask(&[descriptor]).await)
    }
}

pub fn passes(answer: &RateLimitResponse) -> bool {
    answer.overall_code() == Code::Ok
}

/// The codes of the statuses, and what is left.
pub fn statuses(answer: &RateLimitResponse) -> Vec<(Code, u32)> {
    answer.statuses.iter().map(|status| (status.code(), status.limit_remaining)).collect()
}

/// A descriptor, written as `key=value,key=value`.
pub fn descriptor(text: &str) -> Descriptor {
    let entry = |text: &str| {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        DescriptorEntry { key: key.to_owned(), value: value.to_owned() }
    };
    Descriptor { entries: text.split(',').map(entry).collect(), ..Descriptor::default() }
}

/// The same with so many hits.
pub fn hits(text: &str, hits: u64) -> Descriptor {
    Descriptor { hits_addend: Some(hits), ..descriptor(text) }
}
