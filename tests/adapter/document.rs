//! Builds configurations and replies of the store.

/// The section with all fields for access logs.
pub const ALL_LOG_FIELDS: &str = r#""access_log":["decision","policy","partition","used"],"#;

/// The field of `store` for 503 while requests cannot be counted.
pub const DENY: &str = r#","on_failure":"deny""#;

/// A configuration with these policies, further sections (with a trailing comma), and fields of
/// `store` (with a leading comma).
pub fn document(policies: &str, sections: &str, store: &str) -> String {
    format!(
        r#"{{"domain":"d","store":{{"cluster":"s","timeout":"60s"{store}}},{sections}
            "identities":{{"tenant":[{{"header":{{"name":"x-tenant"}}}}],
                "sub":[{{"jwt":{{"claim":"a.b"}}}},{{"client_ip":{{}}}}]}},"policies":[{policies}]}}"#
    )
}

/// A policy of 100 units per minute, with these fields (with a leading comma). Without
/// `partition_by` all clients share one counter.
pub fn policy(name: &str, fields: &str) -> String {
    let everybody = if fields.contains("partition_by") { "" } else { r#""partition_by":[],"# };
    format!(r#"{{"name":"{name}",{everybody}"quota":100,"window":"1m"{fields}}}"#)
}

/// The store's reply to one reservation of such a policy: units granted, and units used so far.
pub fn grant(granted: u64, used: u64) -> String {
    format!(
        r#"{{"grants":[{{"granted":{granted},"used":{used},"quota":100,"reset_ms":30000,"window":1}}]}}"#
    )
}
