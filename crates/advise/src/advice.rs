//! From counts to advice: what each quota would have refused, and the smallest one that refuses little enough.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::count::{Counted, Taker, Tally};
use crate::faults::shown;
use crate::run::Outcome;
use crate::sample::{Sample, Shares};
use crate::snippet;
use crate::{Error, Options};

/// Points of a curve.
const POINTS: u32 = 200;

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
    /// The smallest quota that keeps both limits for the others; none where memory did not suffice to tell.
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
    let recommended = counted.without.as_ref().map(|without| {
        let judge = Judge { users: Sizes::of(&without.users), windows: Sizes::of(&without.windows) };
        judge.candidate(judge.smallest(options.limits))
    });
    (left_out > 0).then_some(WithoutTop { left_out, recommended })
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

fn candidates(options: &Options, judge: &Judge, recommended: u32) -> Vec<Candidate> {
    if !options.quotas.is_empty() {
        let quotas: BTreeSet<u32> = options.quotas.iter().copied().chain([recommended]).collect();
        return quotas.into_iter().map(|quota| judge.candidate(quota)).collect();
    }
    let most = judge.windows.most();
    let mut quotas: BTreeSet<u32> = ladder().take_while(|quota| *quota < most).collect();
    quotas.extend(ladder().find(|quota| *quota >= most));
    quotas.insert(recommended);
    let all: Vec<Candidate> = quotas.into_iter().map(|quota| judge.candidate(quota)).collect();
    // Of those that refuse most users one is enough.
    let hopeless = all.iter().take_while(|candidate| candidate.users_share > 0.5).count();
    all.into_iter().skip(hopeless.saturating_sub(1)).collect()
}

/// Close to each other, from 1 to the most that anybody took.
fn curve(judge: &Judge) -> Vec<Candidate> {
    let most = judge.windows.most().max(1);
    let quotas =
        (0..=POINTS).map(|step| f64::from(most).powf(f64::from(step) / f64::from(POINTS)).round() as u32);
    let quotas: BTreeSet<u32> = quotas.collect();
    quotas.into_iter().map(|quota| judge.candidate(quota.min(most))).collect()
}

/// 1, 2, 3, 5, 7, 10, 20, ...
fn ladder() -> impl Iterator<Item = u32> {
    let decades = std::iter::successors(Some(1_u32), |decade| decade.checked_mul(10));
    decades.flat_map(|decade| [1, 2, 3, 5, 7].into_iter().filter_map(move |step| decade.checked_mul(step)))
}

/// Sizes in order, and what lies above each.
struct Sizes {
    /// Size, how many things are larger, and by how much all together.
    steps: Vec<(u32, u64, u128)>,
    number: u64,
    sum: u128,
}

impl Sizes {
    fn of(tally: &Tally) -> Self {
        let sizes: Vec<(u32, u64)> = tally.iter().collect();
        let mut steps = Vec::with_capacity(sizes.len());
        let (mut number, mut sum) = (0_u64, 0_u128);
        for (size, count) in sizes.into_iter().rev() {
            steps.push((size, number, sum - u128::from(number) * u128::from(size)));
            number += count;
            sum += u128::from(count) * u128::from(size);
        }
        steps.reverse();
        Self { steps, number, sum }
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn most(&self) -> u32 {
        self.steps.last().map_or(0, |(size, ..)| *size)
    }

    /// How many things are larger than this, and by how much all together.
    fn above(&self, quota: u32) -> (u64, u128) {
        let next = self.steps.partition_point(|(size, ..)| *size <= quota);
        match next.checked_sub(1).and_then(|last| self.steps.get(last)) {
            Some((size, number, excess)) => {
                (*number, excess - u128::from(*number) * u128::from(quota - size))
            }
            None => (self.number, self.sum - u128::from(self.number) * u128::from(quota)),
        }
    }

    /// The smallest size that so many of them do not exceed.
    fn percentile(&self, per_mille: u16) -> u32 {
        let enough = |above: u64| {
            u128::from(self.number - above) * 1000 >= u128::from(self.number) * u128::from(per_mille)
        };
        let found = self.steps.iter().find(|(_, above, _)| enough(*above));
        found.map_or(self.most(), |(size, ..)| *size)
    }

    /// The smallest size that leaves less than this share above it; at least 1.
    fn smallest(&self, limit: f64) -> u32 {
        let little = |above: u64| share(above, self.number) < limit;
        let found = self.steps.iter().find(|(_, above, _)| little(*above));
        found.map_or(self.most(), |(size, ..)| *size).max(1)
    }
}

struct Judge {
    users: Sizes,
    windows: Sizes,
}

impl Judge {
    fn smallest(&self, limits: Limits) -> u32 {
        self.users.smallest(limits.users).max(self.windows.smallest(limits.windows))
    }

    fn percentile(&self, per_mille: u16) -> Percentile {
        Percentile {
            share: f64::from(per_mille) / 1000.0,
            user_windows: self.windows.percentile(per_mille),
            users: self.users.percentile(per_mille),
        }
    }

    fn candidate(&self, quota: u32) -> Candidate {
        let (users, _) = self.users.above(quota);
        let (user_windows, units) = self.windows.above(quota);
        Candidate {
            quota,
            users,
            users_share: share(users, self.users.number),
            user_windows,
            user_windows_share: share(user_windows, self.windows.number),
            units: u64::try_from(units).unwrap_or(u64::MAX),
            units_share: if self.windows.sum == 0 { 0.0 } else { units as f64 / self.windows.sum as f64 },
        }
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(list: &[(u32, u64)]) -> Sizes {
        let mut tally = Tally::default();
        list.iter().for_each(|(size, number)| tally.add(*size, *number));
        Sizes::of(&tally)
    }

    #[test]
    fn what_lies_above_is_counted() {
        let sizes = sizes(&[(2, 10), (5, 3), (2000, 1)]);
        assert_eq!((sizes.number(), sizes.most()), (14, 2000));
        let above: Vec<_> = [0, 1, 2, 3, 5, 1999, 2000, u32::MAX].map(|quota| sizes.above(quota)).into();
        let expected = [(14, 2035), (14, 2021), (4, 2007), (4, 2003), (1, 1995), (1, 1), (0, 0), (0, 0)];
        assert_eq!(above, expected);
    }

    #[test]
    fn the_smallest_quota_stays_below_the_limit() {
        let sizes = sizes(&[(1, 998), (7, 1), (9, 1)]);
        // Two of a thousand are above 1, one above 7: not less than a thousandth.
        assert_eq!(
            [0.01, 0.0021, 0.002, 0.0011, 0.001, 0.0].map(|limit| sizes.smallest(limit)),
            [1, 1, 7, 7, 9, 9]
        );
    }

    #[test]
    fn percentiles_are_sizes_that_so_many_do_not_exceed() {
        let sizes = sizes(&[(1, 5), (2, 4), (7, 1)]);
        assert_eq!(PERCENTILES.map(|per_mille| sizes.percentile(per_mille)), [1, 2, 7, 7]);
    }

    #[test]
    fn the_ladder_climbs_by_small_steps() {
        assert_eq!(ladder().take(7).collect::<Vec<_>>(), [1, 2, 3, 5, 7, 10, 20]);
        assert_eq!(ladder().last(), Some(3_000_000_000));
    }
}
