//! A configuration without a document, for a host that finds the counters of a request itself.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::dials::PartitionEntry;
use quotagate_protocol::{Mode, OnFailure, Window};

use super::{
    Config, Count, CountedResponses, Denied, OnWrongDocument, Policy, Precision, Reset,
    ResponseConfig, StoreConfig,
};
use crate::request::allowance::{Cost, QuotaSources};
use crate::request::facts::SharedIdentities;
use crate::request::index::Index;
use crate::request::key::{
    Digester, EVERYONE, Secrecy, close, descriptor_label, head, write_entry,
};
use crate::request::matching::Matcher;
use crate::request::partition::Partition;

/// A policy whose counters and costs the host finds.
#[derive(Clone, Debug)]
pub struct HostedPolicy {
    /// Unique among the policies, and a [name of a policy](quotagate_protocol::is_policy).
    pub name: Arc<str>,
    /// Units in a window, 0 to [`MAX_UNITS`](quotagate_protocol::MAX_UNITS).
    pub quota: u64,
    /// The window.
    pub window: Window,
    /// Whether it refuses.
    pub mode: Mode,
    /// The keys of the entries that tell its counters apart. Empty: it has one counter.
    pub partition_by: Vec<Arc<str>>,
    /// Whether workers hold leases.
    pub precision: Precision,
    /// Whether requests that it refuses count, too. Not with [`Precision::Lease`].
    pub count_denied: bool,
}

impl Config {
    /// A configuration of these policies. [`evaluate`](Self::evaluate) finds no counter: the host
    /// makes the [checks](crate::evaluate::Check) of each request itself, several of one policy if
    /// it likes, and decides what becomes of the units that an admitted request
    /// [holds](crate::decision::Admission::held).
    ///
    /// `domain` is a [name of a domain](quotagate_protocol::is_domain).
    pub fn hosted(domain: &str, store: StoreConfig, policies: Vec<HostedPolicy>) -> Self {
        let on_failure = store.on_failure;
        let digester = Digester::derived(domain);
        Self {
            domain: domain.into(),
            store,
            policies: policies
                .into_iter()
                .map(|policy| policy.resolve(on_failure, &digester))
                .collect(),
            response: unused_response(),
            access_log: Box::default(),
            digester,
            marks: false,
            has_slots: false,
            index: Arc::new(Index::new(std::iter::empty())),
            shared_identities: SharedIdentities::of(std::iter::empty()),
            on_wrong_document: OnWrongDocument::Keep,
            digest: Box::default(),
            process: Box::default(),
            live: None,
            refused: None,
            warnings: Box::default(),
        }
    }

    /// The key of the counter of a policy for the entries of a descriptor with these keys and
    /// values; without any, of the only counter of the policy. Long texts become digests, as those
    /// of documents do.
    pub fn counter_key<'p>(
        &self,
        policy: &str,
        entries: impl IntoIterator<Item = (&'p str, &'p str)>,
    ) -> Arc<str> {
        let mut key = head(&self.domain, policy).into_string();
        let start = key.len();
        for (name, value) in entries {
            if key.len() > start {
                key.push(',');
            }
            let label = descriptor_label(name, &self.digester);
            write_entry(&mut key, &label, value.as_bytes(), Secrecy::Plain, &self.digester);
        }
        if key.len() == start {
            key.push_str(EVERYONE);
        }
        close(&mut key, start, &self.digester);
        key.into()
    }
}

/// The host answers requests itself.
fn unused_response() -> ResponseConfig {
    let denied = Denied { status: 429, content_type: None, body: None, headers: Vec::new() };
    let (reset, grpc_pushback) = (Reset::Epoch, Duration::ZERO);
    ResponseConfig { families: Box::default(), reset, grpc_pushback, denied }
}

impl HostedPolicy {
    fn resolve(self, on_failure: OnFailure, digester: &Digester) -> Policy {
        let Self { name, quota, window, mode, partition_by, precision, count_denied } = self;
        let entry = |key: &Arc<str>| {
            let label = descriptor_label(key, digester).into_string();
            PartitionEntry { name: key.to_string(), forms: vec![label] }
        };
        Policy {
            item: Policy::own_item(&name, quota, &window),
            name,
            quota,
            dialed_quota: None,
            enforced_for: None,
            is_overridden: false,
            max_wait: std::time::Duration::ZERO,
            window,
            stagger: false,
            mode,
            on_failure,
            // The host decides on the units of every admitted request.
            count: Count::Responses(CountedResponses::default()),
            count_denied,
            precision,
            matcher: Arc::new(Matcher::default()),
            partition: Arc::new(Partition::Hosted(partition_by.iter().map(entry).collect())),
            quotas: Arc::new(QuotaSources::default()),
            cost: Arc::new(Cost::Fixed(NonZeroU64::MIN)),
            settle: None,
        }
    }
}
