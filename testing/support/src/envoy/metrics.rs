//! The filter's statistics, which the two forms of the filter spell differently.
//!
//! The Wasm ABI has no labels: `wasmcustom.quotagate_requests.shop.one.admitted`, or with
//! `envoy/stats_tags.yaml`, in Prometheus' format,
//! `quotagate_requests{domain="shop",policy="one",outcome="admitted"}`. The native module has the
//! labels by itself, and a prefix that `envoy/observability/prometheus.yaml` removes.

use anyhow::{Context, Result};

use super::Envoy;

/// What Envoy puts before the names of a native module's metrics in Prometheus' format.
const NATIVE: &str = "envoy_dynamicmodulescustom_";

impl Envoy {
    /// The value of one of the filter's metrics with these labels in Prometheus' format. The Wasm
    /// filter has labels only with `envoy/stats_tags.yaml`.
    ///
    /// # Errors
    /// When the admin interface does not answer.
    pub fn labelled(&self, name: &str, labels: &[(&str, &str)]) -> Result<Option<u64>> {
        let page = self.prometheus()?;
        let value = page.value(name, labels);
        let value = value.or_else(|| page.value(&format!("{NATIVE}{name}"), labels));
        Ok(value.map(|value| value as u64))
    }

    /// The value of one of the filter's metrics with these labels, in the order in which the Wasm
    /// filter joins them; `None` before it counted.
    ///
    /// # Errors
    /// When the admin interface does not answer, or the value is no number.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<Option<u64>> {
        if let Some(value) = self.labelled(name, labels)? {
            return Ok(Some(value));
        }
        let values: String = labels.iter().map(|(_, value)| format!(".{value}")).collect();
        let name = format!("wasmcustom.{name}{values}: ");
        let stats = self.stats("wasmcustom.quotagate_")?;
        let value = stats.lines().find_map(|line| line.strip_prefix(name.as_str()));
        value
            .map(|value| value.trim().parse().with_context(|| format!("{name}{value}")))
            .transpose()
    }
}
