//! Which results of a fault are violations.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::audit::Counts;
use crate::document::{Kind, QUOTA, TIMEOUT};
use crate::fault::{Bounds, Breaks};
use crate::findings::{Findings, HEALED, Healing};
use crate::load::Outcome;
use crate::plan::Plan;
use crate::spared::Spared;

/// How much longer than the filter's timeout an answer may take, on a busy machine.
const GENEROUS: Duration = Duration::from_secs(2);
/// How long an answer may take if the filter that holds it dies: the `idle_timeout` of the rig's
/// route.
const IDLE: Duration = Duration::from_secs(15);
/// Requests that may fail later even in a small load: those of one call.
const STRAYS: usize = 4;
/// Once Envoy avoids a store, one request in so many may still fail, because a busy machine delays
/// calls. Without health checks it is at least one in twenty-eight.
const AVOIDED_STRAYS: usize = 50;
/// How much processes may grow between two equal rounds. A first round may open connections and
/// buffers that stay, so it may grow by as much again for each process. Besides, Envoy keeps a
/// connection to an upstream for each request that was ever under way at once, and on a busy
/// machine that may be one for each connection of the load.
const GROWTH_KIB: u64 = 8 * 1024;
const GROWTH_DESCRIPTORS: u64 = 48;
const FIRST_ROUND: u64 = 6;

impl Findings {
    /// The violations; none if all is well.
    #[must_use]
    pub fn faults(&self, bounds: &Bounds, plan: &Plan) -> Vec<String> {
        let mut faults = Vec::new();
        let mut expect = |holds: bool, fault: String| {
            if !holds {
                faults.push(fault);
            }
        };
        let any =
            |which: fn(&Outcome) -> bool| self.samples.iter().filter(|s| which(&s.outcome)).count();
        let slowest = self.slowest();
        let held = if bounds.reloads { IDLE } else { TIMEOUT };
        expect(slowest <= held + GENEROUS + plan.slack, format!("an answer took {slowest:?}"));
        expect(self.stuck == 0, format!("{} requests or calls are stuck", self.stuck));
        let silent = any(|outcome| *outcome == Outcome::Silent);
        expect(silent == 0, format!("{silent} requests were never answered"));
        let breaks = bounds.breaks.unwrap_or(Breaks { statuses: &[], one_in: usize::MAX });
        let odd = any(|outcome| matches!(outcome, Outcome::Broken | Outcome::Other(_)));
        let may_break = self.samples.len() / breaks.one_in;
        expect(
            odd <= may_break,
            format!("{odd} requests got answers not from the filter, {may_break} may"),
        );
        let statuses = self.samples.iter().filter_map(|sample| match sample.outcome {
            Outcome::Other(status) if !breaks.statuses.contains(&status) => Some(status),
            _ => None,
        });
        let statuses: BTreeSet<u16> = statuses.collect();
        expect(statuses.is_empty(), format!("requests were answered with {statuses:?}"));
        let decided = any(Outcome::is_decided);
        let must = self.samples.len() / plan.decided;
        expect(
            decided > must,
            format!("only {decided} requests were decided, more than {must} must be"),
        );
        let uncounted = self.samples.iter().filter(|s| s.kind != Kind::Loose);
        let uncounted = uncounted.filter(|s| s.outcome == Outcome::Uncounted).count();
        expect(uncounted == 0, format!("{uncounted} passed uncounted under deny"));

        let failed = any(|outcome| *outcome == Outcome::Unavailable);
        let may_fail = bounds.fails.unwrap_or(usize::MAX);
        expect(failed <= may_fail, format!("{failed} requests failed, {may_fail} may"));

        let Counts { most, admitted, used, unsure, .. } = self.counts;
        let quota = bounds.quotas.saturating_mul(QUOTA);
        expect(most <= quota, format!("{most} units in a window, {quota} may be"));
        expect(
            bounds.forgets.is_some() || used >= admitted,
            format!("{admitted} admitted, only {used} counted"),
        );
        expect(
            used <= admitted + unsure,
            format!(
                "{used} counted, but {admitted} admitted and {unsure} of calls that failed: some counted twice"
            ),
        );

        for fault in
            bounds.spares.map_or_else(Vec::new, |users| Spared::of(self, users).faults(plan.spared))
        {
            expect(false, fault);
        }

        if let Some(start) = bounds.avoided_after {
            let (undecided, all) = self.undecided_after(start + plan.slack);
            expect(all > 0, "the fault ended before it had to be avoided".to_owned());
            expect(
                undecided <= STRAYS.max(all / AVOIDED_STRAYS),
                format!(
                    "{undecided} of {all} requests not decided later than {start:?} after the start"
                ),
            );
        }

        let bound = HEALED + plan.slack;
        let Healing { first, strays, late, .. } = self.healing(plan.slack);
        match first {
            Some(first) => expect(
                first <= bound,
                format!("nothing was admitted until {first:?} after the end"),
            ),
            None => expect(false, "nothing was admitted after the end".to_owned()),
        }
        expect(
            strays <= STRAYS.max(late / plan.strays),
            format!("{strays} of {late} requests failed later than {bound:?} after the end"),
        );
        expect(
            bounds.reloads == (self.reloads > 0),
            format!("{} virtual machines restarted", self.reloads),
        );
        if let [.., before, after] = self.footprints.as_slice() {
            let factor = if self.footprints.len() > 2 { 1 } else { FIRST_ROUND };
            let grown = |before: u64, after: u64, bound: u64| after <= before + bound * factor;
            let descriptors = GROWTH_DESCRIPTORS + self.connections;
            let fine = grown(before.kib(), after.kib(), GROWTH_KIB)
                && grown(before.descriptors, after.descriptors, descriptors);
            expect(fine, format!("processes grew: {before}, then {after}"));
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::findings::Round;
    use crate::footprint::Footprint;
    use crate::load::Sample;

    fn sample(sent: Instant, outcome: Outcome) -> Sample {
        Sample {
            kind: Kind::Open,
            user: "open-0".to_owned(),
            sent,
            took: Duration::from_millis(1),
            outcome,
        }
    }

    /// A fault of one second, a request that fails half a second after its end, and one that does
    /// not.
    fn sound() -> Findings {
        let began = Instant::now();
        let ended = began + Duration::from_secs(1);
        let at = |ms| ended + Duration::from_millis(ms);
        Findings {
            samples: vec![
                sample(began, Outcome::Unavailable),
                sample(at(500), Outcome::Unavailable),
                // Known to be spent, so the filter need not call the store.
                sample(at(550), Outcome::Refused),
                sample(at(600), Outcome::Admitted { ends: 4 }),
                sample(at(700), Outcome::Refused),
            ],
            rounds: vec![Round { began, ended }],
            footprints: vec![Footprint::default(); 2],
            counts: Counts { admitted: 1, used: 2, unsure: 2, ..Counts::default() },
            ..Findings::default()
        }
    }

    fn faults(bounds: Bounds, change: impl FnOnce(&mut Findings)) -> String {
        let mut findings = sound();
        change(&mut findings);
        findings.faults(&bounds, &Plan::long(1, 1)).join("; ")
    }

    #[test]
    fn sound_findings_have_no_fault() {
        assert_eq!(faults(Bounds::STRICT, |_| {}), "");
        let healing = sound().healing(Duration::ZERO);
        assert_eq!(healing.first, Some(Duration::from_millis(601)));
        assert_eq!((healing.last, healing.strays), (Some(Duration::from_millis(500)), 0));
        let next = Instant::now() + Duration::from_secs(9);
        let caught = |f: &mut Findings| {
            f.rounds.push(Round { began: next, ended: next });
            f.samples
                .extend(vec![sample(next - Duration::from_micros(1), Outcome::Unavailable); 9]);
            f.samples.extend(vec![sample(next, Outcome::Admitted { ends: 8 }); 12]);
        };
        assert_eq!(faults(Bounds::STRICT, caught), "", "what the next fault meets is that fault's");
    }

    #[test]
    fn every_expectation_can_be_broken() {
        type Change = fn(&mut Findings);
        let cases: [(Change, &str); 16] = [
            (|f| f.counts.most = QUOTA + 1, "11 units in a window, 10 may be"),
            (|f| f.counts.used = 0, "1 admitted, only 0 counted"),
            (|f| f.counts.used = 4, "some counted twice"),
            (|f| f.stuck = 1, "1 requests or calls are stuck"),
            (|f| f.reloads = 1, "1 virtual machines restarted"),
            (
                |f| f.samples.retain(|s| !matches!(s.outcome, Outcome::Admitted { .. })),
                "nothing was admitted after",
            ),
            (
                |f| f.samples.iter_mut().for_each(|s| s.sent += HEALED),
                "nothing was admitted until 2.601s after",
            ),
            (|f| f.samples.truncate(3), "only 1 requests were decided, more than 1 must be"),
            (
                |f| f.samples.iter_mut().for_each(|s| s.took = Duration::from_secs(3)),
                "an answer took 3s",
            ),
            (
                |f| f.samples.push(sample(Instant::now(), Outcome::Silent)),
                "1 requests were never answered",
            ),
            (
                |f| f.samples.push(sample(Instant::now(), Outcome::Other(500))),
                "1 requests got answers not from the filter, 0 may",
            ),
            (
                |f| f.samples.push(sample(Instant::now(), Outcome::Broken)),
                "1 requests got answers not from the filter, 0 may",
            ),
            (
                |f| f.samples.push(sample(Instant::now(), Outcome::Other(500))),
                "answered with {500}",
            ),
            (
                |f| f.samples.push(sample(Instant::now(), Outcome::Uncounted)),
                "passed uncounted under deny",
            ),
            (
                |f| {
                    let late =
                        sample(f.rounds[0].ended + Duration::from_secs(3), Outcome::Unavailable);
                    f.samples.extend(vec![late; 5]);
                },
                "5 of 5 requests failed later than 2s after the end",
            ),
            (
                |f| {
                    f.connections = 12;
                    f.footprints.push(Footprint { descriptors: 61, ..Footprint::default() });
                },
                "processes grew",
            ),
        ];
        for (change, fault) in cases {
            let found = faults(Bounds::STRICT, change);
            assert!(found.contains(fault), "{fault} is not in: {found}");
        }
        let spared = Bounds { fails: Some(1), ..Bounds::STRICT };
        assert!(faults(spared, |_| {}).contains("2 requests failed, 1 may"));
        let avoided =
            |ms| Bounds { avoided_after: Some(Duration::from_millis(ms)), ..Bounds::STRICT };
        assert!(faults(avoided(0), |_| {}).contains("ended before it had to be avoided"));
        let during = |f: &mut Findings| {
            let began = f.rounds[0].began;
            let one = |ms| sample(began + Duration::from_millis(ms), Outcome::Unavailable);
            f.samples.extend([100, 600, 650, 700, 750, 800].map(one));
            f.samples.extend(vec![sample(began, Outcome::Refused); 9]);
        };
        assert!(
            faults(avoided(500), during).contains("5 of 5 requests not decided later than 500ms")
        );
        let reloads = Bounds { reloads: true, ..Bounds::STRICT };
        assert!(
            faults(reloads, |_| {}).contains("0 virtual machines"),
            "the fault was not injected"
        );
        let breaks =
            Bounds { breaks: Some(Breaks { statuses: &[503], one_in: 6 }), ..Bounds::STRICT };
        let broken = |outcomes: &[Outcome]| {
            let began = Instant::now();
            let samples =
                outcomes.iter().cloned().map(|outcome| sample(began, outcome)).collect::<Vec<_>>();
            faults(breaks, |f| f.samples.splice(0..0, samples).for_each(drop))
        };
        let decided = [Outcome::Refused, Outcome::Refused];
        let [lost, unavailable, error] =
            [Outcome::Broken, Outcome::Other(503), Outcome::Other(500)];
        for (odd, fault) in [
            (vec![lost.clone()], ""),
            (vec![unavailable.clone()], ""),
            (vec![error], "requests were answered with {500}"),
            (vec![lost, unavailable], "2 requests got answers not from the filter, 1 may"),
        ] {
            assert_eq!(broken(&[&odd[..], &decided].concat()), fault, "{odd:?}");
        }
    }
}
