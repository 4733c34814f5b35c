//! The section `store`.

use schemars::JsonSchema;

/// How the store of the counters is reached, and what happens when it is not.
#[derive(JsonSchema)]
#[schemars(rename = "Store", deny_unknown_fields)]
pub struct StoreDocument {
    /// The name of the Envoy cluster of `quotagate serve`.
    #[schemars(length(min = 1))]
    pub cluster: String,
    /// The longest that a request waits for quota, from 1ms to 60s.
    #[schemars(extend("default" = "50ms"))]
    pub timeout: Option<Duration>,
    /// What becomes of requests while the store fails, where their policy does not say so itself.
    #[schemars(extend("default" = "allow"))]
    pub on_failure: Option<OnFailure>,
    /// For `on_failure: local`: the part of a quota that each worker may admit by itself.
    #[schemars(extend("default" = 0.1, "exclusiveMinimum" = 0, "maximum" = 1))]
    pub local_share: Option<f64>,
    /// The bearer token that the store checks (`quotagate serve --token-file`).
    #[schemars(regex(pattern = r"^[A-Za-z0-9._~+/-]+=*$"), length(max = 4096))]
    pub token: Option<String>,
}

/// What becomes of a request while the store fails.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum OnFailure {
    /// It is admitted, without quota headers.
    Allow,
    /// It is answered with 503.
    Deny,
    /// Each worker counts for itself, against the part `local_share` of the quota.
    Local,
}

/// Digits and one unit: ms, s, m, h or d.
#[derive(JsonSchema)]
pub struct Duration(
    #[schemars(regex(pattern = r"^0*[1-9][0-9]*(ms|s|m|h|d)$"), extend("examples" = ["500ms", "10s", "1m", "1h", "7d"]))]
    pub String,
);
