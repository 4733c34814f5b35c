//! The crowd of made-up identities, in its short form.

#![cfg(test)]

use quotagate_chaos::crowd::{self, VICTIM_QUOTA};

#[test]
fn made_up_identities_fill_no_memory_and_hurt_no_honest_user() {
    // More of each kind than one worker remembers.
    let crowd = crowd::run(36_000, 1, |_| {}).unwrap();
    let rows: Vec<String> = crowd.rows.iter().map(ToString::to_string).collect();
    assert!(crowd.rows.len() > 5, "{rows:#?}");
    assert_eq!(crowd.victim, VICTIM_QUOTA, "it is served, and no more");
    assert_eq!(crowd.faults(), [""; 0], "{rows:#?}");
}
