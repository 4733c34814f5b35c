//! Internal redirects: the host ends a stream and serves its request again, with the declared
//! filter state.

use crate::document::{ALL_LOG_FIELDS, document, grant, policy};
use crate::host::{configure, end, host, reply, request, response};

/// Redirects a request: the stream `from` ends, and the request arrives again on the stream `to`.
/// Returns whether it continues at once.
fn redirect(from: u32, to: u32) -> bool {
    host(|h| {
        h.properties.insert("response.code_details".into(), Ok(b"internal_redirect".to_vec()))
    });
    end(from);
    host(|h| {
        h.properties.remove("response.code_details");
        let declared = h.declared.first().expect("a declaration").clone();
        let name =
            declared.trim_start_matches(|c: char| !c.is_alphanumeric()).trim_end_matches("(\u{1}");
        let mark = h.filter_state.get(&(from, name.to_owned())).expect("a mark").clone();
        h.properties.insert(name.to_owned(), Ok(mark.into_bytes()));
    });
    request(to)
}

#[test]
fn redirected_request_is_counted_once_and_its_answer_has_the_headers() {
    assert!(configure(&document(&policy("p", ""), ALL_LOG_FIELDS, "")));
    request(2);
    reply(1, 200, &grant(1, 40));
    assert!(redirect(2, 3), "the request is already counted");
    assert_eq!(host(|h| h.calls.len()), 1);
    response(3, 200);
    assert_eq!(host(|h| h.response_headers["x-ratelimit-remaining"].clone()), "60");
    assert_eq!(host(|h| h.filter_state[&(3, "quotagate.decision".into())].clone()), "admitted");
    end(3);
    assert!(!request(4), "another request is counted separately, whatever mark it has");
}
