//! With less memory than all counts need: exact numbers stay exact, and estimates stay within their
//! errors.

use std::fmt::Write as _;
use std::fs;

use quotagate_advise::{Advice, Fields, Length, Options, advise};

use crate::brute::Brute;
use crate::random_logs::options;

const SECONDS: u64 = 300;
const BEGIN_S: u64 = 1_795_300_000;

/// A request: user, second, cost.
type Request = (u32, u64, u32);

/// Half of the users in each second, one after another. A few have high costs.
fn requests(users: u32) -> Vec<Request> {
    let cost = |user: u32, second: u64| {
        1 + (u64::from(user) * 7 + second) as u32 % 5 + 40 / (1 + user % 97)
    };
    (0..SECONDS)
        .flat_map(|second| {
            let some = (0..users).filter(move |user| (u64::from(*user) + second) % 2 == 0);
            some.map(move |user| (user, second, cost(user, second)))
        })
        .collect()
}

/// Lines are as long as those of an access log, so that a chunk has as many.
fn run(requests: impl Iterator<Item = Request>, memory: usize) -> Advice {
    let mut text = String::new();
    for (user, second, cost) in requests {
        let _ = writeln!(text, "{} {user} {cost} {:>80}", BEGIN_S + second, "GET /");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, text).unwrap();
    let operator = |name: &str| Some(format!("REQ({name})"));
    let fields = Fields {
        format: Some("%START_TIME% %REQ(USER)% %REQ(COST)% %REQ(PATH)%".to_owned()),
        key: operator("USER"),
        cost: operator("COST"),
        ..Fields::default()
    };
    // With several threads, the memory that is needed would depend on the speed of the machine.
    let scarce = Options {
        fields,
        windows: vec![Length::Seconds(1)],
        lateness_s: 5,
        memory,
        threads: 1,
        ..options(vec![path])
    };
    advise(&scarce).unwrap()
}

/// The number of counts, which need more than the memory.
fn brute(requests: &[Request], memory: usize) -> Brute {
    let brute = Brute::of(requests.iter().copied());
    assert!(brute.windows.len() * 17 > memory, "{} counts", brute.windows.len());
    brute
}

#[test]
fn closed_windows_are_exact_for_lines_out_of_order() {
    let memory = 4 << 20;
    let requests = requests(2000);
    // Each line is some seconds late. A third of the users has a second line, with others in
    // between.
    let line = |(user, second, cost): Request, behind: u32| {
        (second * 10 + u64::from(behind), (user, second, cost))
    };
    let again = requests
        .iter()
        .filter(|(user, ..)| user % 3 == 0)
        .map(|request| line(*request, 40 + request.0 % 7));
    let mut placed: Vec<(u64, Request)> = requests
        .iter()
        .map(|request| line(*request, request.0 * request.0 % 37))
        .chain(again)
        .collect();
    placed.sort_unstable();
    let requests: Vec<Request> = placed.into_iter().map(|(_, request)| request).collect();
    let brute = brute(&requests, memory);
    let advice = run(requests.into_iter(), memory);
    assert_eq!((&advice.windows[0].sample, advice.windows[0].late), (&None, 0));
    brute.check(&advice);
}

#[test]
fn lines_for_closed_windows_count_as_windows_of_their_own() {
    let memory = 4 << 20;
    let requests = requests(2000);
    // The late lines at the end are for the first second, which no other line has.
    let late = || (0..2000).step_by(2).map(|user| (user, 100));
    let apart: Vec<Request> =
        requests.iter().copied().chain(late().map(|(user, cost)| (user, SECONDS, cost))).collect();
    let advice =
        run(requests.iter().copied().chain(late().map(|(user, cost)| (user, 0, cost))), memory);
    assert_eq!((&advice.windows[0].sample, advice.windows[0].late), (&None, 1000));
    brute(&apart, memory).check(&advice);
}

#[test]
fn estimates_from_a_sample_stay_within_their_errors() {
    let memory = 2 << 20;
    let requests =
        requests(40_000).into_iter().filter(|(_, second, _)| *second < 30).collect::<Vec<_>>();
    let brute = brute(&requests, memory);
    let advice = run(requests.into_iter(), memory);
    let window = &advice.windows[0];
    let sample = window.sample.as_ref().unwrap();
    assert!(sample.one_in >= 2 && sample.users >= 500, "{sample:?}");
    let close = |estimate: f64, truth: f64, error: f64| {
        assert!(
            (estimate - truth).abs() <= 4.0 * error,
            "{estimate} for {truth}, ± {error}: {advice:?}"
        );
    };
    // Each user is sampled independently, so the number of users has an error, too.
    let (all, looked_at) = (brute.users.len() as f64, sample.users as f64);
    close(window.users as f64, all, all / looked_at.sqrt());
    for candidate in &window.candidates {
        let truth = Brute::above(&brute.users, candidate.quota.into()) as f64 / all;
        close(candidate.users_share, truth, (truth * (1.0 - truth) / looked_at).sqrt());
    }
    let quota = window.recommended.quota.into();
    let refused = Brute::above(&brute.users, quota) as f64 / all;
    assert!(refused < advice.limits.users + 4.0 * sample.users_error, "{refused}: {advice:?}");
    let one_less = Brute::above(&brute.users, quota - 1) as f64 / all;
    let windows = Brute::above(&brute.windows, quota - 1) as f64 / brute.windows.len() as f64;
    let needed = one_less > advice.limits.users - 4.0 * sample.users_error;
    assert!(
        needed || windows > advice.limits.windows - 4.0 * sample.user_windows_error,
        "{one_less}, {windows}: {advice:?}"
    );
}
