//! The soak in its shortest form: one store is restarted under mixed load.

#![cfg(test)]

use std::time::Duration;

use quotagate_chaos::soak::{page, run};

#[test]
fn under_mixed_load_every_window_is_held_to_its_quota() {
    let soaked = run(Duration::from_secs(45), 1).unwrap();
    let page = page::page(&soaked, 1);
    assert_eq!(soaked.faults(), Vec::<String>::new(), "{page}");
    assert!(!soaked.events.is_empty(), "{page}");
}
