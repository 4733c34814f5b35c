//! Marks: when a request gets one, and that no client can bring one along.

use crate::document::{document, grant, policy};
use crate::host::{configure, host, reply, request};

const MARK: &str = "x-quotagate-exceeded";
const MARKING: &str = r#","mode":"mark""#;

/// The mark that the upstream gets, and how often Envoy chose the route again.
fn marked() -> (Option<String>, usize) {
    host(|h| {
        let mark = h.request_headers.iter().find(|(name, _)| name == MARK);
        let mark = mark.map(|(_, value)| String::from_utf8_lossy(value).into_owned());
        (mark, h.route_clears)
    })
}

#[test]
fn request_beyond_the_quota_gets_the_mark_and_another_route() {
    assert!(configure(&document(&policy("p", MARKING), "", "")));
    assert!(!request(2));
    reply(1, 200, &grant(1, 1));
    assert_eq!(marked(), (None, 0), "within the quota");
    assert!(!request(3));
    reply(2, 200, &grant(0, 100));
    assert_eq!(marked(), (Some("p".to_owned()), 1));
    assert_eq!(host(|h| h.resumed.clone()), [2, 3]);
    assert!(host(|h| h.answered.is_empty()));
}

#[test]
fn mark_of_a_client_is_removed_and_the_route_chosen_again() {
    assert!(configure(&document(&policy("p", MARKING), "", "")));
    host(|h| h.set_request_header(MARK, b"p"));
    assert!(!request(2));
    assert_eq!(marked(), (None, 1));
    reply(1, 200, &grant(1, 1));
    assert_eq!(marked(), (None, 1));
}

#[test]
fn document_that_marks_nothing_leaves_the_header_alone() {
    assert!(configure(&document(&policy("p", ""), "", "")));
    host(|h| h.set_request_header(MARK, b"other"));
    assert!(!request(2));
    reply(1, 200, &grant(1, 1));
    assert_eq!(marked(), (Some("other".to_owned()), 0));
}
