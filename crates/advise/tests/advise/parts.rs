//! Lines that CRI has cut into parts.

use std::fmt::Write as _;
use std::fs;

use quotagate_advise::advise;

use crate::random_logs::options;

const TIME: &str = "2026-11-21T22:55:00.123456789Z";
/// Bytes of a part, as containerd and CRI-O cut.
const PART: usize = 16 * 1024;

#[test]
fn parts_of_a_line_are_one_request() {
    const REQUESTS: usize = 100;
    // Several chunks of 2 MiB, whose borders are anywhere between parts.
    let path = "x".repeat(100_000);
    let (mut text, mut notes) = (String::new(), 0);
    for request in 0..REQUESTS {
        let line = format!(
            r#"{{"time":"{TIME}","quota_policy":"p","quota_partition":"u","path":"{path} ","cost":7}}"#
        );
        let mut rest = &*line;
        while rest.len() > PART {
            let (part, after) = rest.split_at(PART);
            let _ = writeln!(text, "{TIME} stdout P {part}");
            // Envoy's own log, in between.
            if request % 3 == 0 {
                let _ = writeln!(text, "{TIME} stderr F a note");
                notes += 1;
            }
            rest = after;
        }
        let _ = writeln!(text, "{TIME} stdout F {rest}");
    }
    // Its last part never comes.
    let _ = writeln!(text, "{TIME} stdout P {{");
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    fs::write(&log, text).unwrap();
    let read = advise(&options(vec![log])).unwrap().read;
    let requests = REQUESTS as u64;
    assert_eq!((read.requests, read.units, read.malformed), (requests, 7 * requests, notes + 1));
    assert_eq!(read.lines, requests + notes + 1);
}

/// No part waits for its line for ever, however many there are.
#[test]
fn parts_without_an_end_are_malformed() {
    let mut text = String::new();
    for _ in 0..500 {
        let _ = writeln!(text, "{TIME} stdout P {}", "x".repeat(PART));
    }
    let _ = writeln!(text, "{TIME} stdout F x");
    let line = r#"{"time":1795301700,"quota_policy":"p","quota_partition":"u"}"#;
    let _ = writeln!(text, "{TIME} stdout F {line}");
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    fs::write(&log, text).unwrap();
    let read = advise(&options(vec![log])).unwrap().read;
    assert_eq!(read.requests, 1);
    assert!((1..10).contains(&read.malformed), "{}", read.malformed);
}
