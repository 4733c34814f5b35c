//! Marks: when a request gets one, and that no client can bring one along.

use crate::document::{in_memory, policy};
use crate::host::{Envoy, Request};

const MARK: &str = "x-quotagate-exceeded";
const MARKING: &str = r#","mode":"mark""#;

#[test]
fn request_beyond_the_quota_gets_the_mark_and_another_route() {
    let envoy = Envoy::start(1, &in_memory("marks", &policy("p", 1, MARKING), "", ""));
    for (mark, route_clears) in [(vec![], 0), (vec!["p".to_owned()], 1)] {
        let stream = envoy.request(0, Request::get("/"));
        assert_eq!(stream.status(), 0);
        assert_eq!(stream.sent(MARK), (mark, route_clears));
        stream.end();
    }
}

#[test]
fn mark_of_a_client_is_removed_and_the_route_chosen_again() {
    let envoy = Envoy::start(1, &in_memory("forged", &policy("p", 9, MARKING), "", ""));
    let stream = envoy.request(0, Request::get("/").header(MARK, "p").header(MARK, "q"));
    assert_eq!(stream.status(), 0);
    assert_eq!(stream.sent(MARK), (vec![], 1));
}

#[test]
fn document_that_marks_nothing_leaves_the_header_alone() {
    let envoy = Envoy::start(1, &in_memory("unmarked", &policy("p", 9, ""), "", ""));
    let stream = envoy.request(0, Request::get("/").header(MARK, "other"));
    assert_eq!(stream.status(), 0);
    assert_eq!(stream.sent(MARK), (vec!["other".to_owned()], 0));
}
