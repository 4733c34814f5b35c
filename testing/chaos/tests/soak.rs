//! The soak in its shortest form: one store is restarted under mixed load.

#![cfg(test)]

use std::time::Duration;

use quotagate_chaos::soak::{page, run};

#[test]
fn every_window_holds_its_quota_under_mixed_load() {
    let soaked = run(Duration::from_secs(45), 1).unwrap();
    let page = page::page(&soaked, 1);
    assert_eq!(soaked.faults(), Vec::<String>::new(), "{page}");
    assert!(!soaked.events.is_empty(), "{page}");
}
