//! Estimates from a sample of the users, against the truth and their own errors.

use std::fmt::Write as _;
use std::fs;

use quotagate_advise::{Fields, Length, Limits, Options, advise};

const USERS: usize = 12_000;
const WINDOWS: usize = 40;
const POPULATIONS: usize = 12;

/// One user in twenty has several units in every window. The others have one unit in one or two
/// windows.
fn windows_of(user: usize) -> usize {
    if user.is_multiple_of(20) { WINDOWS } else { 1 + user % 2 }
}

#[test]
fn standard_errors_match_the_real_deviations() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let windows: usize = (0..USERS).map(windows_of).sum();
    let truth = [0.05, (USERS / 20 * WINDOWS) as f64 / windows as f64];
    let mut squares = [0.0; 2];
    for population in 0..POPULATIONS {
        let mut text = String::new();
        for window in 0..WINDOWS {
            let seconds = window * 10;
            let time = format!("2026-11-21T22:{:02}:{:02}Z", seconds / 60, seconds % 60);
            for user in (0..USERS).filter(|user| window < windows_of(*user)) {
                let cost = if user.is_multiple_of(20) { 5 } else { 1 };
                // Other names make another sample.
                let _ = writeln!(
                    text,
                    "{{\"time\":\"{time}\",\"quota_partition\":\"{population}.{user}\",\"cost\":{cost}}}"
                );
            }
        }
        fs::write(&path, text).unwrap();
        let options = Options {
            logs: vec![path.clone()],
            fields: Fields { cost: Some("cost".to_owned()), ..Fields::default() },
            windows: vec![Length::Seconds(10)],
            limits: Limits { users: 0.5, windows: 0.99 },
            memory: 256 << 10,
            lateness_s: 60,
            threads: 2,
            ..Options::default()
        };
        let advice = advise(&options).unwrap();
        let window = &advice.windows[0];
        let sample = window.sample.as_ref().unwrap();
        assert!(sample.one_in > 2 && window.late == 0, "{sample:?}");
        assert_eq!(window.recommended.quota, 1);
        let shares = [window.recommended.users_share, window.recommended.user_windows_share];
        let errors = [sample.users_error, sample.user_windows_error];
        for (((share, truth), error), square) in
            shares.iter().zip(truth).zip(errors).zip(&mut squares)
        {
            let off = (share - truth) / error;
            assert!(off.abs() < 3.5, "{share} is {off} errors off {truth}");
            *square += off * off / POPULATIONS as f64;
        }
    }
    // On average one standard error: neither too small, nor so large that it means nothing.
    assert!(squares.iter().all(|square| (0.3..2.2).contains(square)), "{squares:?}");
}
