//! Which versions of the filter report: how an operator sees that an upgrade has reached every
//! proxy.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use quotagate_protocol::dials::Report;
use quotagate_protocol::{BUILD, PROTOCOL};

/// Most builds with a count of their own. A fleet has two or three.
const MAX_BUILDS: usize = 16;
/// Longest name of a build, in bytes.
const MAX_NAME: usize = 32;
/// The build under which the rest is counted.
const OTHER: &str = "other";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    protocol: u32,
    version: String,
}

/// The reports by the build that sent them.
#[derive(Default)]
pub struct Builds {
    family: Family<Build, Counter>,
    known: Mutex<HashMap<Build, Counter>>,
    has_warned: AtomicBool,
}

impl Builds {
    pub fn register(&self, registry: &mut Registry) {
        let help = "Reports of workers by the protocol and the version of their filter";
        registry.register("reports", help, self.family.clone());
    }

    /// Counts a report. The first one of a newer protocol than this store's is logged.
    pub fn reported(&self, report: &Report) {
        self.counter(Build::of(report)).inc();
        if report.protocol > PROTOCOL && !self.has_warned.swap(true, Relaxed) {
            tracing::warn!(
                "a filter (version {:?}) speaks protocol {}, this store (version {BUILD}) protocol \
                 {PROTOCOL}: what the store does not know fails or is ignored; upgrade the stores \
                 before the filters",
                Build::of(report).version,
                report.protocol,
            );
        }
    }

    fn counter(&self, build: Build) -> Counter {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let build = if known.contains_key(&build) || known.len() < MAX_BUILDS {
            build
        } else {
            Build { protocol: 0, version: OTHER.to_owned() }
        };
        let new = || self.family.get_or_create_owned(&build);
        known.entry(build.clone()).or_insert_with(new).clone()
    }
}

impl Build {
    fn of(report: &Report) -> Self {
        let is_name = |text: &str| {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._+-".contains(&b);
            (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(allowed)
        };
        let version = match &*report.build {
            "" => "unknown".to_owned(),
            name if is_name(name) => name.to_owned(),
            _ => OTHER.to_owned(),
        };
        Self { protocol: report.protocol, version }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_counted_apart_and_their_number_is_bounded() {
        let builds = Builds::default();
        let report = |protocol, build: &str| {
            builds.reported(&Report { protocol, build: build.to_owned(), ..Report::default() });
        };
        let count = |protocol, version: &str| {
            builds.counter(Build { protocol, version: version.to_owned() }).get()
        };
        report(0, "");
        report(1, "1.2.3");
        report(1, "1.2.3");
        report(PROTOCOL + 1, "2.0.0-rc.1");
        report(1, "a\"} 1\n");
        assert_eq!((count(0, "unknown"), count(1, "1.2.3"), count(1, OTHER)), (1, 2, 1));
        assert!(builds.has_warned.load(Relaxed));
        for number in 0..100 {
            report(7, &number.to_string());
        }
        let known = builds.known.lock().unwrap();
        assert!(known.len() <= MAX_BUILDS + 1, "{}", known.len());
        let total: u64 = known.values().map(Counter::get).sum();
        assert_eq!(total, 105);
    }
}
