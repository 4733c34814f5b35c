//! From counts to advice: what each quota would have refused, and the smallest one that refuses little enough.

use serde::Serialize;

use crate::count::{Counted, Taker};
use crate::faults::shown;
use crate::judge::{Judge, Sizes, candidates, curve};
use crate::run::Outcome;
use crate::sample::{Sample, Shares};
use crate::snippet;
use crate::{Error, Options};

/// What is told of: half, nine in ten, and so on.
const PERCENTILES: [u16; 4] = [500, 900, 990, 999];

/// The shares that a recommended quota must stay below.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// Of users, 0.001 for 0.1 %.
    pub users: f64,
    /// Of user-windows.
    pub windows: f64,
}

/// What a quota would have refused.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The quota.
    pub quota: u32,
    /// Users with at least one window above it.
    pub users: u64,
    /// Their share.
    pub users_share: f64,
    /// User-windows above it.
    pub user_windows: u64,
    /// Their share.
    pub user_windows_share: f64,
    /// Units above it: requests, unless costs are read.
    pub units: u64,
    /// Their share.
    pub units_share: f64,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// Lines that are not empty.
    pub lines: u64,
    /// Bytes, decompressed.
    pub bytes: u64,
    /// Requests that were counted.
    pub requests: u64,
    /// Units that they asked for.
    pub units: u64,
    /// Requests whose lines have no field for who is counted.
    pub without_field: u64,
    /// Requests with empty fields: no policy counted them, or the fields were lost.
    pub not_counted: u64,
    /// Requests that name nobody, though a policy applied, or a field of one's own is read.
    pub nameless: u64,
    /// Requests of users who are left out.
    pub excluded: Vec<Excluded>,
    /// Requests that were not asked for.
    pub left_out: u64,
    /// Lines that are not understood.
    pub malformed: u64,
    /// The first few of them.
    pub malformed_first: Vec<MalformedLine>,
    /// Logs that have lines, and none that is understood.
    pub no_logs: Vec<String>,
    /// Logs that were cut short.
    pub damaged: Vec<Damage>,
    /// When the first request began, in milliseconds since the Unix epoch.
    pub first_ms: i64,
    /// When the last one began.
    pub last_ms: i64,
}

/// Users who are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Excluded {
    /// Their name, or the beginning of their names with `*` behind.
    pub users: String,
    /// Their requests.
    pub requests: u64,
}

/// A line that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MalformedLine {
    /// Its log.
    pub log: String,
    /// Where it begins in the decompressed log.
    pub byte: u64,
    /// Its beginning.
    pub text: String,
}

/// A log that was cut short: what came before counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The log.
    pub log: String,
    /// How.
    pub why: String,
}

/// What there is to say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// The only policy that the log names.
    pub policy: Option<String>,
    /// What was read.
    pub read: Reading,
    /// The limits that were asked for.
    pub limits: Limits,
    /// What there is to say of each length of windows, in the order in which they were asked for.
    pub windows: Vec<WindowAdvice>,
    /// A policy in shadow mode for each of them, as YAML.
    pub snippet: String,
}

/// What there is to say of one length of windows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowAdvice {
    /// Length of the window in seconds.
    pub window_s: u32,
    /// All users.
    pub users: u64,
    /// All user-windows.
    pub user_windows: u64,
    /// The most units that anybody took in a window.
    pub most: u32,
    /// Requests that came after their window had been closed to save memory: counted as a window of their own.
    pub late: u64,
    /// Whether counts of 1,024 and more were rounded up, by less than 0.05 %.
    pub rounded: bool,
    /// Set where memory did not suffice for all users.
    pub sample: Option<Sample>,
    /// How many units most took at most.
    pub percentiles: Vec<Percentile>,
    /// The quotas, from the smallest on.
    pub candidates: Vec<Candidate>,
    /// The smallest quota that keeps both limits.
    pub recommended: Candidate,
    /// What the next smaller one would have refused; none for 1.
    pub one_less: Option<Candidate>,
    /// The recommendation without the users who took most, if that was asked for.
    pub without_top: Option<WithoutTop>,
    /// The users who took most, the largest first.
    pub top_users: Vec<TopUser>,
    /// The quotas of the picture.
    #[serde(skip)]
    pub(crate) curve: Vec<Candidate>,
}

/// How many units most took at most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentile {
    /// So many of them: 0.99 for 99 %.
    pub share: f64,
    /// Of the user-windows.
    pub user_windows: u32,
    /// Of the users, in their largest window.
    pub users: u32,
}

/// The recommendation without the users who took most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WithoutTop {
    /// How many users that leaves out.
    pub left_out: usize,
    /// How many users are left.
    pub others: u64,
    /// The smallest quota that keeps both limits for the others; none where nobody is left, or memory did not suffice to
    /// tell.
    pub recommended: Option<Candidate>,
}

/// A user who took much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopUser {
    /// As the log names it, cut; a digest where the field may hold a secret.
    pub user: String,
    /// The most units that it took in a window.
    pub most: u32,
    /// When that window began, in milliseconds since the Unix epoch.
    pub window_ms: i64,
}

/// Judges what was counted.
pub(crate) fn of(options: &Options, outcome: Outcome) -> Result<Advice, Error> {
    let Outcome { read, counted, policy, no_logs, damaged } = outcome;
    let Some((first_ms, last_ms)) = read.span else {
        return Err(Error::Nothing(why_nothing(options, &read)));
    };
    let name =
        |number: usize| options.logs.get(number).map(|path| path.display().to_string()).unwrap_or_default();
    let malformed_first = read.malformed.first();
    let malformed_first = malformed_first
        .map(|(log, byte, text)| MalformedLine { log: name(log), byte, text: text.to_owned() })
        .collect();
    let damaged =
        damaged.into_iter().map(|(log, why)| Damage { log: log.display().to_string(), why }).collect();
    let excluded = options.exclude.iter().zip(&read.excluded);
    let excluded =
        excluded.map(|(users, requests)| Excluded { users: users.clone(), requests: *requests }).collect();
    let windows: Vec<WindowAdvice> = options
        .windows_s
        .iter()
        .zip(&counted)
        .map(|(window, counted)| judge(options, *window, counted))
        .collect();
    let quotas: Vec<(u32, u32)> =
        windows.iter().map(|window| (window.window_s, window.recommended.quota)).collect();
    Ok(Advice {
        limits: options.limits,
        windows,
        snippet: snippet::of(options, policy.as_deref(), read.somebody.as_deref(), &quotas),
        policy,
        read: Reading {
            lines: read.lines,
            bytes: read.bytes,
            requests: read.requests,
            units: read.units,
            without_field: read.no_field,
            not_counted: read.not_counted,
            nameless: read.nameless,
            excluded,
            left_out: read.other,
            malformed: read.malformed.number(),
            malformed_first,
            no_logs: no_logs.into_iter().map(|log| log.display().to_string()).collect(),
            damaged,
            first_ms,
            last_ms,
        },
    })
}

fn judge(options: &Options, window_s: u32, counted: &Counted) -> WindowAdvice {
    let judge = Judge { users: Sizes::of(&counted.users), windows: Sizes::of(&counted.windows) };
    let recommended = judge.candidate(judge.smallest(options.limits));
    let one_less =
        recommended.quota.checked_sub(1).filter(|quota| *quota > 0).map(|quota| judge.candidate(quota));
    let shares = Shares { users: recommended.users_share, windows: recommended.user_windows_share };
    let sample =
        (counted.level > 0).then(|| Sample::of(counted, recommended.quota, shares, judge.users.number()));
    WindowAdvice {
        window_s,
        users: judge.users.number(),
        user_windows: judge.windows.number(),
        most: judge.windows.most(),
        late: counted.late,
        rounded: counted.users.is_rounded() || counted.windows.is_rounded(),
        sample,
        percentiles: PERCENTILES.map(|per_mille| judge.percentile(per_mille)).into(),
        candidates: candidates(options, &judge, recommended.quota),
        curve: curve(&judge),
        one_less,
        recommended,
        without_top: without_top(options, counted),
        top_users: counted
            .top
            .iter()
            .take(options.show_users)
            .map(|taker| top_user(options, window_s, taker))
            .collect(),
    }
}

fn without_top(options: &Options, counted: &Counted) -> Option<WithoutTop> {
    let left_out = options.without_top.min(counted.top.len());
    let others = Sizes::of(&counted.users).number().saturating_sub(left_out as u64);
    let recommended = counted.without.as_ref().filter(|_| others > 0).map(|without| {
        let judge = Judge { users: Sizes::of(&without.users), windows: Sizes::of(&without.windows) };
        judge.candidate(judge.smallest(options.limits))
    });
    (left_out > 0).then_some(WithoutTop { left_out, others, recommended })
}

fn top_user(options: &Options, window_s: u32, taker: &Taker) -> TopUser {
    let user = if options.fields.key_is_secret() {
        // What a program that hashes the value (`xxhsum -H3`) finds as well.
        format!("~{:016x}", taker.user)
    } else {
        shown(&taker.name)
    };
    TopUser { user, most: taker.units, window_ms: i64::from(taker.window) * i64::from(window_s) * 1000 }
}

/// What became of the lines, where nothing was counted.
fn why_nothing(options: &Options, read: &crate::run::Read) -> String {
    if read.lines == 0 {
        return "no line was read".to_owned();
    }
    let key = options.fields.key.as_deref().unwrap_or("quota_partition");
    let kinds = [
        (read.no_field, format!("have no field {key}")),
        (read.not_counted, format!("have nothing in {key}: no policy counted them")),
        (read.nameless, format!("name nobody in {key}")),
        (read.excluded.iter().sum(), "are excluded".to_owned()),
        (read.other, "are not asked for".to_owned()),
        (read.malformed.number(), "are malformed".to_owned()),
    ];
    let kinds = kinds.into_iter().filter(|(number, _)| *number > 0);
    let kinds: Vec<String> = kinds.map(|(number, what)| format!("{number} {what}")).collect();
    format!("of {} lines {}", read.lines, kinds.join(", "))
}
