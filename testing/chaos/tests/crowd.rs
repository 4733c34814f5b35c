//! The crowd of made-up identities, in its short form.

#![cfg(test)]

use quotagate_chaos::crowd::{self, Form};

#[test]
fn crowd_of_made_up_identities_is_counted_in_bounded_memory() {
    let crowd = crowd::run(Form::Short, |row| println!("{row}")).unwrap();
    assert_eq!(crowd.faults(), [""; 0]);
}
