//! The crowd of made-up identities, in its short form.

#![cfg(test)]

use quotagate_chaos::crowd::{self, Form};

#[test]
fn made_up_identities_are_counted_fill_no_memory_and_hurt_no_honest_user() {
    let crowd = crowd::run(Form::Short, |row| println!("{row}")).unwrap();
    assert_eq!(crowd.faults(), [""; 0]);
}
