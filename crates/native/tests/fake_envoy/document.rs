//! Builds policy documents and replies of the store.

/// The section with all fields for access logs.
pub const ALL_LOG_FIELDS: &str = r#""access_log":["decision","policy","partition","used"],"#;

/// A document with a memory store of its own, which no other `name` shares. `sections` has a
/// trailing comma, `store` a leading one.
pub fn in_memory(name: &str, policies: &str, sections: &str, store: &str) -> String {
    let reach = format!(r#""redis":"memory:","prefix":"{name}""#);
    document(&reach, policies, sections, store)
}

/// A document with a store behind the cluster `s`.
pub fn behind_cluster(policies: &str, sections: &str, store: &str) -> String {
    document(r#""cluster":"s""#, policies, sections, store)
}

fn document(reach: &str, policies: &str, sections: &str, store: &str) -> String {
    let timeout = if store.contains("timeout") { "" } else { r#","timeout":"20s""# };
    format!(
        r#"{{"domain":"d","store":{{{reach}{timeout}{store}}},{sections}
            "identities":{{"tenant":[{{"header":{{"name":"x-tenant"}}}}]}},"policies":[{policies}]}}"#
    )
}

/// A policy of so many units per hour, with these fields (with a leading comma). Without
/// `partition_by` all clients share one counter.
pub fn policy(name: &str, quota: u64, fields: &str) -> String {
    let everybody = if fields.contains("partition_by") { "" } else { r#""partition_by":[],"# };
    format!(r#"{{"name":"{name}",{everybody}"quota":{quota},"window":"1h"{fields}}}"#)
}

/// The store's reply to one reservation of such a policy: units granted, and units used so far.
pub fn grant(granted: u64, used: u64, quota: u64) -> String {
    format!(
        r#"{{"grants":[{{"granted":{granted},"used":{used},"quota":{quota},"reset_ms":3000000,"window":1}}]}}"#
    )
}
