//! The server's own metrics, in Prometheus' text formats.

mod format;
mod plain;
#[cfg(target_os = "linux")]
mod process;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use quotagate_store::store::Store;

pub use self::format::Format;
use quotagate_operate::watch::DocumentSighting;
use quotagate_operate::{DomainGauges, NamedDocuments, Operate, PolicyGauge};
use quotagate_protocol::Mode;
use quotagate_protocol::dials::DocumentVersion;

/// Most documents of a domain that the gauges show.
const MAX_DOCUMENTS: usize = 64;
/// Upper bounds in seconds of the time that a call took.
const BOUNDS: [f64; 13] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0];
/// Upper bounds of the reservations of a call.
const ITEMS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Backend {
    backend: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Domain {
    domain: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Policy {
    domain: String,
    policy: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyInForce {
    domain: String,
    policy: String,
    mode: &'static str,
    counts: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Document {
    domain: String,
    digest: String,
    number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Loss {
    domain: String,
    records: &'static str,
}

/// The counters of a server, and those of its backend.
pub struct Metrics {
    registry: Registry,
    calls: Family<Status, Counter>,
    served: Counter,
    seconds: Histogram,
    items: Histogram,
    refunds: Counter,
    charges: Counter,
    undone: Counter,
    ready: Gauge,
    dials: Family<Domain, Gauge>,
    overrides: Family<Domain, Gauge>,
    documents: Family<Document, Gauge>,
    published: Family<Document, Gauge>,
    behind: Family<Domain, Gauge>,
    lost: Family<Loss, Gauge>,
    /// Files of the folder of documents that are not published as they are.
    pub faulty_files: Gauge,
    longest_dial: Family<Domain, Gauge>,
    longest_override: Family<Domain, Gauge>,
    silent: Family<Domain, Gauge>,
    policies: Family<PolicyInForce, Gauge>,
    partitions_refused: Family<Policy, Gauge>,
    /// Locked while a scrape writes the gauges, so that no other scrape reads them cleared.
    writing: Mutex<()>,
}

impl Metrics {
    /// Metrics at zero, with those of `store` and of `operate`.
    pub fn new(store: &dyn Store, operate: &Operate) -> Self {
        let mut all = Registry::default();
        #[cfg(target_os = "linux")]
        all.register_collector(Box::new(process::ProcessMetrics));
        let registry = all.sub_registry_with_prefix("quotagate_store");
        let calls = Family::<Status, Counter>::default();
        let seconds = Family::<Backend, Histogram>::new_with_constructor(|| Histogram::new(BOUNDS));
        let metrics = Self {
            served: calls.get_or_create_owned(&Status { status: 200 }),
            seconds: seconds.get_or_create_owned(&Backend { backend: store.control().backend() }),
            items: Histogram::new(ITEMS),
            refunds: Counter::default(),
            charges: Counter::default(),
            undone: Counter::default(),
            ready: Gauge::default(),
            dials: Family::default(),
            overrides: Family::default(),
            documents: Family::default(),
            published: Family::default(),
            behind: Family::default(),
            lost: Family::default(),
            faulty_files: Gauge::default(),
            longest_dial: Family::default(),
            longest_override: Family::default(),
            silent: Family::default(),
            policies: Family::default(),
            partitions_refused: Family::default(),
            writing: Mutex::default(),
            registry: Registry::default(),
            calls: calls.clone(),
        };
        let build = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The version of the store", build);
        registry.register("calls", "Calls of /v1/reserve by response status", calls);
        registry.register("refunds", "Refunds received", metrics.refunds.clone());
        registry.register("charges", "Charges received", metrics.charges.clone());
        let help = "Grants that the store refunded because the caller had stopped waiting";
        registry.register("grants_undone", help, metrics.undone.clone());
        registry.register("call_seconds", "Time from receipt of a call to its answer", seconds);
        registry.register("call_reservations", "Reservations per call", metrics.items.clone());
        registry.register(
            "ready",
            "1 while the store can count every request, else 0",
            metrics.ready.clone(),
        );
        let help = "Dials in force, including domains without traffic";
        registry.register("dials", help, metrics.dials.clone());
        let help = "Overrides in force according to their index, including domains without traffic";
        registry.register("overrides", help, metrics.overrides.clone());
        let help = "For how long the oldest dial in force has been set; 0 without a dial";
        registry.register("longest_dial_seconds", help, metrics.longest_dial.clone());
        let help = "For how long the oldest override without an end has been set; 0 without one";
        registry.register("longest_override_seconds", help, metrics.longest_override.clone());
        let help = "Seconds since a proxy reported a policy of the domain, as far as this store \
                    knows: up to ten minutes too long";
        registry.register("domain_silent_seconds", help, metrics.silent.clone());
        operate.watch.register(registry);
        store.register(registry);
        operate.watch.register_named(&mut all);
        operate.fleet.register(all.sub_registry_with_prefix("quotagate_native"));
        let help = "The mode in force of each policy, and whether it counts everybody in one \
                    counter or partitions; always 1";
        all.register("quotagate_policy", help, metrics.policies.clone());
        let help = "Partitions that were refused within about the last five minutes, as this \
                    store and native modules saw them: at least so many";
        all.register("quotagate_partitions_refused", help, metrics.partitions_refused.clone());
        let help = "Reports of workers whose policy document was refused";
        let refused = operate.watch.documents.reports.clone();
        all.register("quotagate_documents_refused", help, refused);
        let help = "Proxies that reported the policy document within the last minute, to this store \
                    or as native modules publish it";
        all.register("quotagate_document", help, metrics.documents.clone());
        let help = "1 for each document that this store names to proxies now; the number is 0 if \
                    that is the proxies' own";
        all.register("quotagate_document_published", help, metrics.published.clone());
        let help = "The longest time for which a proxy that takes published documents up has run a \
                    document other than the one that this store names to it, as of its last report; \
                    0 if none does";
        all.register("quotagate_document_behind_seconds", help, metrics.behind.clone());
        let help = "1 if the backend has no record any more of the document that proxies took up \
                    (document), or lost dials or overrides within the last hour (changes), as far \
                    as this store knows";
        all.register("quotagate_records_lost", help, metrics.lost.clone());
        let help = "Files of --documents that are not published as they are";
        all.register("quotagate_document_files_faulty", help, metrics.faulty_files.clone());
        Self { registry: all, ..metrics }
    }

    /// Counts a call that was answered with `status` after `took`.
    pub fn call(&self, status: u16, took: Duration) {
        if status == 200 {
            self.served.inc();
        } else {
            self.calls.get_or_create(&Status { status }).inc();
        }
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts the reservations, the refunds and the charges of a call.
    pub fn items(&self, reservations: usize, refunds: usize, charges: usize) {
        self.items.observe(reservations as f64);
        self.refunds.inc_by(u64::try_from(refunds).unwrap_or(u64::MAX));
        self.charges.inc_by(u64::try_from(charges).unwrap_or(u64::MAX));
    }

    /// Counts grants that the server refunded on its own.
    pub fn undone(&self, count: usize) {
        self.undone.inc_by(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// The text that Prometheus reads.
    pub fn render(&self, store: &dyn Store, operate: &Operate, format: Format) -> String {
        // A panic could leave nothing inconsistent here.
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.ready.set(store.health().faults.is_empty().into());
        let domains = operate.boards.gauges();
        self.show_documents(&domains, operate.fleet.documents_known_here());
        self.show_domains(domains);
        self.partitions_refused.clear();
        for ((domain, policy), count) in operate.fleet.refused_partitions() {
            self.partitions_refused
                .get_or_create(&Policy { domain, policy })
                .set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        if encode(&mut text, &self.registry).is_err() {
            tracing::error!("cannot write the metrics");
        }
        match format {
            Format::Open => text,
            Format::Plain => plain::of(&text),
        }
    }

    fn show_documents(
        &self,
        domains: &[DomainGauges],
        in_force: BTreeMap<String, Vec<DocumentSighting>>,
    ) {
        for gauges in [&self.documents, &self.published] {
            gauges.clear();
        }
        self.behind.clear();
        let named = domains.iter().filter_map(|of| Some((&*of.domain, of.documents.as_ref()?)));
        let named: BTreeMap<&str, &(NamedDocuments, Duration)> = named.collect();
        for (domain, (documents, _)) in &named {
            for DocumentVersion { number, digest } in documents.iter() {
                let number = if digest.is_empty() { 0 } else { *number };
                let document =
                    Document { domain: (*domain).to_owned(), digest: digest.clone(), number };
                self.published.get_or_create(&document).set(1);
            }
        }
        for (domain, mut sightings) in in_force {
            if let Some((published, known)) = named.get(&*domain)
                && sightings.iter().flat_map(|seen| &seen.proxies).any(|seen| seen.live)
            {
                let behind =
                    sightings.iter().filter_map(|seen| seen.behind_s(published, known.as_secs()));
                let behind = i64::try_from(behind.max().unwrap_or_default()).unwrap_or(i64::MAX);
                self.behind.get_or_create(&Domain { domain: domain.clone() }).set(behind);
            }
            // Those of the most proxies first.
            sightings.sort_by_key(|seen| Reverse((seen.proxies.len(), seen.number)));
            for DocumentSighting { digest, number, proxies, .. } in
                sightings.into_iter().take(MAX_DOCUMENTS)
            {
                let document = Document { domain: domain.clone(), digest, number };
                let proxies = i64::try_from(proxies.len()).unwrap_or(i64::MAX);
                self.documents.get_or_create(&document).set(proxies);
            }
        }
    }

    fn show_domains(&self, domains: Vec<DomainGauges>) {
        let by_domain = [
            &self.dials,
            &self.overrides,
            &self.longest_dial,
            &self.longest_override,
            &self.silent,
        ];
        by_domain.iter().for_each(|gauges| gauges.clear());
        self.policies.clear();
        self.lost.clear();
        for of in domains {
            for (records, lost) in [("document", of.lost_document), ("changes", of.lost_changes)] {
                let loss = Loss { domain: of.domain.clone(), records };
                self.lost.get_or_create(&loss).set(lost.into());
            }
            let domain = Domain { domain: of.domain };
            let set = |gauges: &Family<Domain, Gauge>, value: u64| {
                gauges.get_or_create(&domain).set(i64::try_from(value).unwrap_or(i64::MAX));
            };
            set(&self.dials, u64::try_from(of.dials).unwrap_or(u64::MAX));
            set(&self.overrides, u64::try_from(of.overrides).unwrap_or(u64::MAX));
            set(&self.longest_dial, of.longest_dial.as_secs());
            set(&self.longest_override, of.longest_override.as_secs());
            if let Some(silent) = of.silent {
                set(&self.silent, silent.as_secs());
            }
            for PolicyGauge { name: policy, mode, counts_everybody } in of.policies {
                let mode = match mode {
                    Mode::Enforce => "enforce",
                    Mode::Shadow => "shadow",
                    Mode::Mark => "mark",
                    Mode::Off => "off",
                };
                let counts = if counts_everybody { "everybody" } else { "partitions" };
                let domain = domain.domain.clone();
                let in_force = PolicyInForce { domain, policy, mode, counts };
                self.policies.get_or_create(&in_force).set(1);
            }
        }
    }
}
