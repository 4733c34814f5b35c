//! The filter's statistics, which the two forms of the filter spell differently.
//!
//! The Wasm ABI has no labels: `wasmcustom.quotagate_requests.shop.one.admitted`. The native module
//! has them: `quotagate_requests{domain="shop",policy="one",outcome="admitted"}` in Prometheus'
//! format.

use anyhow::{Context, Result};

use super::Envoy;

impl Envoy {
    /// The value of one of the filter's metrics with these labels, in the order in which the Wasm
    /// filter joins them; `None` before it counted.
    ///
    /// # Errors
    /// When the admin interface does not answer, or the value is no number.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> Result<Option<u64>> {
        if let Some(value) = self.prometheus()?.value(name, labels) {
            return Ok(Some(value as u64));
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
