//! Helpers for tests of operating.

use std::sync::Arc;

use quotagate_operate::Operate;
use quotagate_operate::api::{ClearDial, SetDial};
use quotagate_protocol::dials::{DialsReply, DocumentOverrides, PolicyReport, Report};
use quotagate_protocol::{Kind, Mode, OnFailure};
use quotagate_store::store::Store;

/// A filter's report of these policies.
pub fn report(names: &[&str]) -> Vec<u8> {
    let policy = |name: &&str| PolicyReport {
        name: (*name).to_owned(),
        quota: 5,
        kind: Kind::Fixed,
        window_s: 3600,
        stagger: *name == "staggered",
        mode: Mode::Enforce,
        on_failure: OnFailure::Allow,
        partition_by: None,
        tiers: false,
        overrides: DocumentOverrides::None,
        settles: false,
        admitted: 1,
        refused: 0,
        shadow_refused: 0,
        marked: 0,
        missing_identity: 0,
        store_error: 0,
        settled_if_missing: 0,
    };
    serde_json::to_vec(&Report {
        policies: names.iter().map(policy).collect(),
        ..Report::default()
    })
    .unwrap()
}

/// An operator's view, after a filter has reported these policies.
pub async fn reported(store: &Arc<dyn Store>, domain: &str, names: &[&str]) -> Operate {
    let operate = Operate::new(Arc::clone(store));
    let cached = operate.views.wanted(domain).await.unwrap();
    cached.learn(&report(names)).unwrap();
    operate.directory.write_down(&cached).await;
    operate
}

pub fn set(domain: &str, policy: &str) -> SetDial {
    SetDial {
        domain: Some(domain.to_owned()),
        policy: policy.to_owned(),
        mode: None,
        include_shadow: false,
        enforced_for: None,
        quota: None,
        on_failure: None,
        for_ms: None,
        by: "ann".to_owned(),
    }
}

pub fn clear(domain: &str, policy: &str) -> ClearDial {
    ClearDial { domain: Some(domain.to_owned()), policy: policy.to_owned(), by: "ben".to_owned() }
}

pub async fn reply(operate: &Operate, domain: &str) -> DialsReply {
    operate.views.wanted(domain).await.unwrap().reply(Some(&Report::default())).unwrap()
}
