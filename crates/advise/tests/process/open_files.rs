//! More logs of the same time than this process may open files.

use std::fs;
use std::path::PathBuf;

use quotagate_advise::{Fields, Length, Limits, Options, advise};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LOGS: usize = 24;
const ALLOWED: u64 = 16;

#[test]
fn more_logs_than_open_files_allowed_are_all_read() {
    let _alone = super::alone();
    let directory = tempfile::tempdir().unwrap();
    // Two chunks each, so that every log stays open while others have their turns.
    let fill = "x".repeat(1 << 20);
    let line = |user: usize, second: u32| {
        let time = format!("2026-11-21T22:55:{second:02}.000Z");
        format!("{{\"time\":\"{time}\",\"quota_partition\":\"u{user}\",\"fill\":\"{fill}\"}}\n")
    };
    let write = |log: usize| {
        let path = directory.path().join(format!("{log}"));
        // A user has the requests of four logs.
        fs::write(&path, [0, 20, 40].map(|second| line(log % 6, second)).concat()).unwrap();
        path
    };
    let logs: Vec<PathBuf> = (0..LOGS).map(write).collect();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(ALLOWED), ..limit }).unwrap();
    let options = Options {
        logs,
        fields: Fields::default(),
        windows: vec![Length::Seconds(60)],
        limits: Limits { users: 0.001, windows: 0.0001 },
        memory: 1 << 20,
        lateness_s: 60,
        threads: 3,
        ..Options::default()
    };
    let advice = advise(&options);
    setrlimit(Resource::Nofile, limit).unwrap();
    let advice = advice.unwrap();
    let window = &advice.windows[0];
    assert_eq!((window.users, window.user_windows, window.most), (6, 6, 12));
    assert_eq!((advice.read.requests, advice.read.damaged.len()), (3 * LOGS as u64, 0));
}
