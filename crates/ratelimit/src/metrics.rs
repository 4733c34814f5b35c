//! The metrics of envoyproxy/ratelimit, by the names that its default mapper gives them, and which
//! published rules are in force.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quotagate_protocol::dials::DocumentVersion;

/// Most rules and values that metrics tell apart. Beyond that, a rule counts under its own path
/// only.
const MAX_SERIES: usize = 10_000;
/// The longest path that is told apart. A request can have values of megabytes.
const MAX_PATH: usize = 1024;
/// Upper bounds in seconds of the time that an answer took.
const BOUNDS: [f64; 11] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0];

/// What happened to the hits of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitOutcome {
    /// They passed. So many of them were near the limit.
    Within {
        /// At least four fifths of the limit were used when they came.
        near: u64,
    },
    /// They did not pass.
    Over(HitsOver),
    /// They would not have passed, but the rule only counts.
    Shadow(HitsOver),
}

/// The hits of a descriptor that is over its limit. It may have crossed the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitsOver {
    /// So many of them were beyond the limit.
    pub over: u64,
    /// So many were near the limit, and not beyond it.
    pub near: u64,
}

/// Why a request had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The store failed.
    Redis,
    /// The request made no sense.
    Service,
}

/// Counts what the original counts.
#[derive(Default)]
pub struct ServiceMetrics {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    rules: Vec<RuleCounts>,
    /// The indexes of rules and values.
    series: BTreeMap<Labels, usize>,
    /// The same by paths, because labels take longer to make than a request should.
    paths: HashMap<Box<str>, usize>,
    redis_errors: u64,
    service_errors: u64,
    requests: u64,
    buckets: [u64; BOUNDS.len()],
    seconds: f64,
    loads: u64,
    failed_loads: u64,
    /// The version of the published rules of each domain, if the service follows them. Number 0:
    /// its own are in force.
    published: Vec<(String, DocumentVersion)>,
}

/// The domain, the first entry of a path, and the second.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels(String, String, Option<String>);

#[derive(Clone, Copy, Default)]
struct RuleCounts {
    total_hits: u64,
    over_limit: u64,
    near_limit: u64,
    within_limit: u64,
    shadow_mode: u64,
}

impl ServiceMetrics {
    /// Counts the hits of a descriptor under a path such as `domain.key_value.key2`, or under
    /// `fallback` if there are too many.
    pub fn count(&self, path: &str, fallback: &str, hits: u64, outcome: HitOutcome) {
        let mut counts = self.lock();
        let index = counts.index(path, fallback);
        let Some(rule) = counts.rules.get_mut(index) else { return };
        rule.total_hits += hits;
        match outcome {
            HitOutcome::Within { near } => {
                rule.within_limit += hits;
                rule.near_limit += near;
            }
            HitOutcome::Over(HitsOver { over, near }) => {
                rule.over_limit += over;
                rule.near_limit += near;
            }
            HitOutcome::Shadow(HitsOver { over, near }) => {
                rule.over_limit += over;
                rule.near_limit += near;
                rule.shadow_mode += over;
            }
        }
    }

    /// Counts a request that was answered after `took`.
    pub fn answered(&self, took: Duration) {
        let mut counts = self.lock();
        let seconds = took.as_secs_f64();
        counts.requests += 1;
        counts.seconds += seconds;
        for (bucket, bound) in counts.buckets.iter_mut().zip(BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
    }

    /// Counts a request without an answer.
    pub fn failed(&self, kind: ErrorKind) {
        let mut counts = self.lock();
        match kind {
            ErrorKind::Redis => counts.redis_errors += 1,
            ErrorKind::Service => counts.service_errors += 1,
        }
    }

    /// Counts rules that were put in force, or refused.
    pub fn loaded(&self, is_good: bool) {
        let mut counts = self.lock();
        if is_good {
            counts.loads += 1;
        } else {
            counts.failed_loads += 1;
        }
    }

    /// These published rules are in force in these domains, or the service's own: number 0.
    pub fn follows(&self, published: Vec<(String, DocumentVersion)>) {
        self.lock().published = published;
    }

    /// All metrics in Prometheus' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = self.lock().write(&mut text);
        text
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn index(&mut self, path: &str, fallback: &str) -> usize {
        if let Some(&index) = self.paths.get(path) {
            return index;
        }
        let has_series = self.paths.len() < MAX_SERIES && path.len() <= MAX_PATH;
        let path = if has_series { path } else { fallback };
        if let Some(&index) = self.paths.get(path) {
            return index;
        }
        let next = self.rules.len();
        let index = *self.series.entry(Labels::of(path)).or_insert(next);
        if index == next {
            self.rules.push(RuleCounts::default());
        }
        self.paths.insert(path.into(), index);
        index
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        type Read = fn(&RuleCounts) -> u64;
        let families: [(&str, Read); 5] = [
            ("total_hits", |rule| rule.total_hits),
            ("over_limit", |rule| rule.over_limit),
            ("near_limit", |rule| rule.near_limit),
            ("within_limit", |rule| rule.within_limit),
            ("shadow_mode", |rule| rule.shadow_mode),
        ];
        for (name, read) in families {
            writeln!(out, "# TYPE ratelimit_service_rate_limit_{name} counter")?;
            for (Labels(domain, key1, key2), &index) in &self.series {
                let Some(rule) = self.rules.get(index) else { continue };
                let (domain, key1) = (escaped(domain), escaped(key1));
                write!(
                    out,
                    "ratelimit_service_rate_limit_{name}{{domain=\"{domain}\",key1=\"{key1}\""
                )?;
                if let Some(key2) = key2 {
                    write!(out, ",key2=\"{}\"", escaped(key2))?;
                }
                writeln!(out, "}} {}", read(rule))?;
            }
        }
        let errors = "ratelimit_service_should_rate_limit_error";
        writeln!(out, "# TYPE {errors} counter")?;
        writeln!(out, "{errors}{{err_type=\"redis_error\"}} {}", self.redis_errors)?;
        writeln!(out, "{errors}{{err_type=\"service_error\"}} {}", self.service_errors)?;
        let method = "grpc_method=\"ShouldRateLimit\"";
        writeln!(out, "# TYPE ratelimit_service_total_requests counter")?;
        writeln!(out, "ratelimit_service_total_requests{{{method}}} {}", self.requests)?;
        let time = "ratelimit_service_response_time_seconds";
        writeln!(out, "# TYPE {time} histogram")?;
        for (bucket, bound) in self.buckets.iter().zip(BOUNDS) {
            writeln!(out, "{time}_bucket{{{method},le=\"{bound}\"}} {bucket}")?;
        }
        writeln!(out, "{time}_bucket{{{method},le=\"+Inf\"}} {}", self.requests)?;
        writeln!(out, "{time}_sum{{{method}}} {}", self.seconds)?;
        writeln!(out, "{time}_count{{{method}}} {}", self.requests)?;
        writeln!(out, "# TYPE ratelimit_service_config_load_success counter")?;
        writeln!(out, "ratelimit_service_config_load_success {}", self.loads)?;
        writeln!(out, "# TYPE ratelimit_service_config_load_error counter")?;
        writeln!(out, "ratelimit_service_config_load_error {}", self.failed_loads)?;
        if !self.published.is_empty() {
            writeln!(out, "# TYPE quotagate_rules gauge")?;
        }
        self.published.iter().try_for_each(|(domain, DocumentVersion { number, digest })| {
            // Names of domains and digests need no escape.
            writeln!(
                out,
                "quotagate_rules{{domain=\"{domain}\",digest=\"{digest}\",number=\"{number}\"}} 1"
            )
        })
    }
}

impl Labels {
    /// A dot separates the parts of a path, apart from those of an IPv4 address. What follows the
    /// second part is left out.
    fn of(path: &str) -> Self {
        let plain = without_addresses(&path.replace([':', '|'], "_"));
        let mut parts = plain.split('.');
        let mut next = || parts.next().map(str::to_owned);
        Self(next().unwrap_or_default(), next().unwrap_or_default(), next())
    }
}

/// The text with `_` for the dots of IPv4 addresses.
fn without_addresses(text: &str) -> String {
    let parts: Vec<&str> = text.split('.').collect();
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let number = |part: &str| (1..=3).contains(&part.len()) && digits(part);
    let ends = |part: &str| part.bytes().last().is_some_and(|byte| byte.is_ascii_digit());
    let begins = |part: &str| part.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    let mut out = String::with_capacity(text.len());
    let mut joined = 0_u32;
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            out.push(if joined > 0 { '_' } else { '.' });
            joined = joined.saturating_sub(1);
        }
        out.push_str(part);
        let rest = parts.get(index + 1..index + 4).unwrap_or_default();
        if let [second, third, fourth] = rest
            && joined == 0
            && ends(part)
            && number(second)
            && number(third)
            && begins(fourth)
        {
            joined = 3;
        }
    }
    out
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn over(over: u64) -> HitOutcome {
        HitOutcome::Over(HitsOver { over, near: 0 })
    }

    #[test]
    fn paths_become_the_labels_of_the_default_mapper() {
        for (path, domain, key1, key2) in [
            ("d.a_b", "d", "a_b", None),
            ("d.a.b_c", "d", "a", Some("b_c")),
            ("d.a.b.c", "d", "a", Some("b")),
            ("d.ip_192.0.2.7.x", "d", "ip_192_0_2_7", Some("x")),
            ("d.v_1.2", "d", "v_1", Some("2")),
            ("a:b|c.k", "a_b_c", "k", None),
        ] {
            let expected = Labels(domain.into(), key1.into(), key2.map(str::to_owned));
            assert_eq!(Labels::of(path), expected, "{path}");
        }
    }

    #[test]
    fn counts_are_written_as_prometheus_reads_them() {
        let metrics = ServiceMetrics::default();
        metrics.count("d.a", "d.a", 3, HitOutcome::Within { near: 1 });
        metrics.count("d.a", "d.a", 2, over(2));
        metrics.count("d.a.b\"", "d.a", 1, HitOutcome::Shadow(HitsOver { over: 1, near: 0 }));
        metrics.answered(Duration::from_micros(200));
        metrics.failed(ErrorKind::Redis);
        metrics.loaded(true);
        assert!(!metrics.text().contains("quotagate_rules"), "the service follows none");
        let version = DocumentVersion { number: 3, digest: "0123456789ab".to_owned() };
        let own = DocumentVersion::default();
        metrics.follows(vec![("d".to_owned(), version), ("e".to_owned(), own)]);
        let text = metrics.text();
        for line in [
            "ratelimit_service_rate_limit_total_hits{domain=\"d\",key1=\"a\"} 5",
            "ratelimit_service_rate_limit_over_limit{domain=\"d\",key1=\"a\"} 2",
            "ratelimit_service_rate_limit_near_limit{domain=\"d\",key1=\"a\"} 1",
            "ratelimit_service_rate_limit_within_limit{domain=\"d\",key1=\"a\"} 3",
            "ratelimit_service_rate_limit_shadow_mode{domain=\"d\",key1=\"a\",key2=\"b\\\"\"} 1",
            "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"} 1",
            "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 1",
            "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.0001\"} 0",
            "ratelimit_service_response_time_seconds_bucket{grpc_method=\"ShouldRateLimit\",le=\"0.00025\"} 1",
            "ratelimit_service_config_load_success 1",
            "ratelimit_service_config_load_error 0",
            "quotagate_rules{domain=\"d\",digest=\"0123456789ab\",number=\"3\"} 1",
            "quotagate_rules{domain=\"e\",digest=\"\",number=\"0\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn too_many_values_count_under_their_rule() {
        let metrics = ServiceMetrics::default();
        for number in 0..=MAX_SERIES {
            metrics.count(&format!("d.k_{number}"), "d.k", 1, over(1));
        }
        assert!(metrics.text().contains("over_limit{domain=\"d\",key1=\"k\"} 1"));
    }

    #[test]
    fn long_value_counts_under_its_rule() {
        let metrics = ServiceMetrics::default();
        metrics.count(&format!("d.k_{}", "x".repeat(MAX_PATH)), "d.k", 1, over(1));
        assert!(metrics.text().contains("over_limit{domain=\"d\",key1=\"k\"} 1"));
        assert!(metrics.text().len() < 4 * MAX_PATH);
    }
}
