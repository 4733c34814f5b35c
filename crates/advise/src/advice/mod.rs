//! From counts to advice: what each quota would have refused, and the smallest quota within the
//! limits.

mod in_flight;
mod judge;
mod model;
mod sample;
mod snippet;

pub use self::model::{
    Advice, Candidate, Damage, Excluded, InFlightAdvice, InFlightLimit, InFlightPercentile,
    MalformedLine, Percentile, Reading, TopUser, WindowAdvice, WithoutTop,
};
pub use self::sample::Sample;

use self::judge::{Judge, Sizes, candidates, curve};
use self::sample::Shares;
use crate::count::{Counted, Taker};
use crate::display::shown;
use crate::error::Error;
use crate::options::Options;
use crate::run::{OfWindow, Outcome, Read};
use crate::window::Scale;

/// Percentiles in the advice, in thousandths.
const PERCENTILES: [u16; 4] = [500, 900, 990, 999];

/// Judges the counts.
pub(crate) fn of(options: &Options, outcome: Outcome) -> Result<Advice, Error> {
    let Outcome { read, windows, concurrent, policy, unreadable, damaged } = outcome;
    let Some((first_ms, last_ms)) = read.span else {
        return Err(Error::Nothing(why_nothing(options, &read)));
    };
    let name = |number: usize| {
        options.logs.get(number).map(|path| path.display().to_string()).unwrap_or_default()
    };
    let malformed_first = read.malformed.first();
    let malformed_first = malformed_first
        .map(|(log, byte, text)| MalformedLine { log: name(log), byte, text: text.to_owned() })
        .collect();
    let damaged = damaged
        .into_iter()
        .map(|(log, why)| Damage { log: log.display().to_string(), why })
        .collect();
    let excluded = options.exclude.iter().zip(&read.excluded);
    let excluded = excluded
        .map(|(users, requests)| Excluded { users: users.clone(), requests: *requests })
        .collect();
    let windows: Vec<WindowAdvice> = windows.iter().map(|of| judge(options, of)).collect();
    let has_durations = read.without_duration < read.requests;
    let in_flight = concurrent.filter(|_| has_durations);
    let in_flight = in_flight.map(|concurrent| in_flight::of(options.limits, &concurrent));
    let limit = in_flight.as_ref().and_then(|of| of.recommended.as_ref()).map(|of| of.in_flight);
    let partition = read.partition.as_deref();
    Ok(Advice {
        limits: options.limits,
        snippet: snippet::of(options, policy.as_deref(), partition, &windows, limit),
        windows,
        in_flight,
        policy,
        read: Reading {
            lines: read.lines,
            bytes: read.bytes,
            requests: read.requests,
            units: read.units,
            without_cost: read.without_cost,
            without_duration: read.without_duration,
            without_field: read.without_field,
            not_counted: read.not_counted,
            without_user: read.without_user,
            excluded,
            not_selected: read.not_selected,
            malformed: read.malformed.number(),
            malformed_first,
            unreadable: unreadable.into_iter().map(|log| log.display().to_string()).collect(),
            damaged,
            first_ms,
            last_ms,
        },
    })
}

fn judge(options: &Options, of: &OfWindow) -> WindowAdvice {
    let counted = &of.counted;
    let (users, windows) = (Sizes::of(&counted.users), Sizes::of(&counted.windows));
    // Slices count the same units several times, so their sum means nothing.
    let judge = Judge { users, windows, sums: of.scale.reach() == 0 };
    let recommended = judge.candidate(judge.smallest(options.limits));
    let one_less = recommended
        .quota
        .checked_sub(1)
        .filter(|quota| *quota > 0)
        .map(|quota| judge.candidate(quota));
    let shares = Shares { users: recommended.users_share, windows: recommended.user_windows_share };
    let sample = (counted.level > 0)
        .then(|| Sample::of(counted, recommended.quota, shares, judge.users.number()));
    WindowAdvice {
        window: of.window.clone(),
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
        without_top: without_top(options, counted, judge.sums),
        top_users: counted
            .top
            .iter()
            .take(options.show_users)
            .map(|taker| top_user(options, &of.scale, taker))
            .collect(),
    }
}

fn without_top(options: &Options, counted: &Counted, sums: bool) -> Option<WithoutTop> {
    let left_out = options.without_top.min(counted.top.len());
    let others = Sizes::of(&counted.users).number().saturating_sub(left_out as u64);
    let recommended = counted.without.as_ref().filter(|_| others > 0).map(|without| {
        let (users, windows) = (Sizes::of(&without.users), Sizes::of(&without.windows));
        let judge = Judge { users, windows, sums };
        judge.candidate(judge.smallest(options.limits))
    });
    (left_out > 0).then_some(WithoutTop { left_out, others, recommended })
}

fn top_user(options: &Options, scale: &Scale, taker: &Taker) -> TopUser {
    let user = if options.fields.key_is_secret() {
        // `xxhsum -H3` gives the same hash.
        format!("~{:016x}", taker.user)
    } else {
        shown(&taker.name)
    };
    TopUser { user, most: taker.units, window_ms: scale.begin_ms(taker.window) }
}

/// Why no request was counted: the kinds of lines.
fn why_nothing(options: &Options, read: &Read) -> String {
    if read.lines == 0 {
        return "no line was read".to_owned();
    }
    let key = options.fields.key.as_deref().unwrap_or("quota_partition");
    let kinds = [
        (read.without_field, format!("have no field {key}")),
        (read.not_counted, format!("have an empty field {key}: no policy counted them")),
        (read.without_user, format!("have no user in {key}")),
        (read.excluded.iter().sum(), "are excluded".to_owned()),
        (read.not_selected, "are of other policies or paths".to_owned()),
        (read.malformed.number(), "are malformed".to_owned()),
    ];
    let kinds = kinds.into_iter().filter(|(number, _)| *number > 0);
    let kinds: Vec<String> = kinds.map(|(number, what)| format!("{number} {what}")).collect();
    format!("of {} lines {}", read.lines, kinds.join(", "))
}
