//! From running requests to advice on `in_flight`: the rule is that of quotas, with arrivals in the
//! place of user-windows.

use super::PERCENTILES;
use super::judge::{Judge, Sizes};
use super::model::{InFlightAdvice, InFlightLimit, InFlightPercentile};
use crate::concurrency::Concurrent;
use crate::options::Limits;

/// Judges the running requests.
pub(super) fn of(limits: Limits, concurrent: &Concurrent) -> InFlightAdvice {
    let (users, windows) = (Sizes::of(&concurrent.peaks), Sizes::of(&concurrent.arrivals));
    let judge = Judge { users, windows, sums: false };
    let smallest = (judge.users.number() > 0).then(|| judge.smallest(limits));
    let limit = |in_flight: u32| {
        let of = judge.candidate(in_flight);
        InFlightLimit {
            in_flight,
            users: of.users,
            users_share: of.users_share,
            requests: of.user_windows,
            requests_share: of.user_windows_share,
        }
    };
    let percentile = |per_mille: u16| {
        let of = judge.percentile(per_mille);
        InFlightPercentile { share: of.share, requests: of.user_windows, users: of.users }
    };
    InFlightAdvice {
        users: judge.users.number(),
        requests: judge.windows.number(),
        most: judge.windows.most().max(judge.users.most()),
        late: concurrent.late,
        one_in: concurrent.one_in,
        percentiles: PERCENTILES.map(percentile).into(),
        recommended: smallest.map(limit),
        one_less: smallest.map(|smallest| smallest - 1).filter(|less| *less > 0).map(limit),
    }
}
