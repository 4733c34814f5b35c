//! Configurations, and what the store says.

/// A configuration with these policies, sections beside them (with a comma at their end), and
/// fields of `store` (with a comma at their beginning).
pub fn document(policies: &str, sections: &str, store: &str) -> String {
    format!(
        r#"{{"domain":"d","store":{{"cluster":"s","timeout":"60s"{store}}},{sections}
            "identities":{{"tenant":[{{"header":{{"name":"x-tenant"}}}}]}},"policies":[{policies}]}}"#
    )
}

/// A policy of 100 units a minute, with these fields (with a comma at their beginning). Without a
/// `partition_by` among them it counts everybody together.
pub fn policy(name: &str, fields: &str) -> String {
    let everybody = if fields.contains("partition_by") { "" } else { r#""partition_by":[],"# };
    format!(r#"{{"name":"{name}",{everybody}"quota":100,"window":"1m"{fields}}}"#)
}

/// The store's reply to one reservation of such a policy: so many units granted, and so many used
/// by then.
pub fn grant(granted: u64, used: u64) -> String {
    format!(
        r#"{{"grants":[{{"granted":{granted},"used":{used},"quota":100,"reset_ms":30000,"window":1}}]}}"#
    )
}
