//! What must hold for a crowd.
//!
//! Every identity is counted. Each sends one request, so each is admitted with the headers of its
//! quota (one in a hundred may be too late for the store), and Redis holds a counter of each whose
//! window has not ended. Honest users are admitted. Memory does not grow once the filter's tables
//! are full.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Crowd, Form, Row, VICTIM_QUOTA};

/// This many identities fill a worker's tables. Three in four have a quota that one request spends,
/// and a worker remembers 16,384 of those. The others use leases, and a worker holds at most 4,096.
const FULL: u64 = 24_000;
/// How much memory may grow beyond that if no window ends. The store's table of watched partitions,
/// which ends at 65,536, doubles once more and takes some 8 MiB, and Envoy's allocator may take
/// some 4 MiB more. A table that drops nothing takes some 300 bytes per counter, which is another
/// 17 MiB in the short form.
const GROWTH_KIB: u64 = 15 * 1024;
/// How much memory may grow in the second half of a long crowd. Windows end and tables empty and
/// fill again, so an Envoy of two workers grows by some 11 MiB and then stops.
const LONG_GROWTH_KIB: u64 = 16 * 1024;
/// The least time that a counter stays in Redis.
const KEPT: Duration = Duration::from_secs(10);
/// How much longer honest users may wait beside a crowd (99 of 100): so many times what they wait
/// beside one identity that is as busy, and so much more.
const SLOWER: u32 = 4;
const SLOWER_BY: Duration = Duration::from_secs(1);

impl Crowd {
    /// What is wrong; nothing if all is well.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut must = |holds: bool, text: String| {
            if !holds {
                faults.push(text);
            }
        };
        let [_, one, crowd @ ..] = self.rows.as_slice() else {
            return vec![format!("{} rows: there is nothing to compare", self.rows.len())];
        };
        let (answers, all) = (&self.answers, self.answers.all());
        must(answers.other == 0, format!("{} answers are not from the filter", answers.other));
        must(
            answers.uncounted == 0,
            format!("{} of {all} were admitted uncounted", answers.uncounted),
        );
        must(
            answers.refused == 0,
            format!("{} of {all} first requests were refused", answers.refused),
        );
        let late = answers.unavailable;
        must(late * 100 <= all, format!("{late} of {all} were not counted in time"));
        if let Some(row) = crowd.iter().find(|row| !self.counters(row).contains(&row.counters)) {
            must(
                false,
                format!("{} counters of {}, not {:?}", row.counters, row.whose, self.counters(row)),
            );
        }
        must(self.victim == VICTIM_QUOTA, format!("{} admitted of {VICTIM_QUOTA}", self.victim));
        must(self.reloads == 0, format!("the filter restarted {} times", self.reloads));
        let failed: u64 = self.rows.iter().map(|row| row.honest.failed).sum();
        let asked: u64 = self.rows.iter().map(|row| row.honest.took.len() as u64).sum();
        must(
            asked > 0 && failed * 100 <= asked,
            format!("{failed} of {asked} requests of honest users failed"),
        );
        let (from, most) = self.growth();
        match crowd.iter().filter(|row| row.identities >= from).collect::<Vec<_>>().as_slice() {
            [first, .., last] => {
                let grown = last.footprint.kib().saturating_sub(first.footprint.kib());
                must(
                    grown <= most,
                    format!("{grown} KiB more than beside {}, over {most}", first.whose),
                );
            }
            _ => must(false, format!("fewer than two rows of {from} identities and more")),
        }
        if let Form::Long(_) = self.form {
            let bound = one.honest.quantile(0.99) * SLOWER + SLOWER_BY;
            let waited = |row: &Row| row.honest.quantile(0.99);
            if let Some(row) = crowd.iter().find(|row| waited(row) > bound) {
                must(
                    false,
                    format!(
                        "honest users waited {:?} beside {}, over {bound:?}",
                        waited(row),
                        row.whose
                    ),
                );
            }
        }
        faults
    }

    /// The identities after which memory is compared, and by how many KiB it may grow from there.
    fn growth(&self) -> (u64, u64) {
        match self.form {
            Form::Short => (FULL * u64::from(self.form.workers()), GROWTH_KIB),
            Form::Long(identities) => (identities / 2, LONG_GROWTH_KIB),
        }
    }

    /// How many counters Redis must and may hold at a row.
    fn counters(&self, row: &Row) -> RangeInclusive<u64> {
        let percent = |percent: u64| row.identities * percent / 100;
        match self.form {
            Form::Short => percent(98)..=percent(102),
            Form::Long(_) => {
                let kept = (KEPT.as_secs_f64() / row.took.as_secs_f64()).min(1.0);
                // The crowd does not send its requests evenly.
                (row.asked as f64 * kept / 2.0) as u64..=percent(102)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::{Answers, Honest};
    use crate::footprint::Footprint;

    /// A sound crowd of three parts.
    fn crowd(form: Form) -> Crowd {
        let row = |identities: u64, asked: u64| Row {
            identities,
            asked,
            took: Duration::from_secs(5),
            counters: identities,
            footprint: Footprint { envoys_kib: 100 * 1024, stores_kib: 8 * 1024, descriptors: 9 },
            honest: Honest { took: vec![Duration::from_millis(40); 100], failed: 1 },
            ..Row::default()
        };
        let rows = vec![
            row(0, 0),
            row(0, 20_000),
            row(20_000, 20_000),
            row(50_000, 30_000),
            row(100_000, 50_000),
        ];
        let answers = Answers { counted: 99_000, unavailable: 1_000, ..Answers::default() };
        Crowd { form, rows, answers, victim: VICTIM_QUOTA, reloads: 0 }
    }

    type Case = (&'static str, fn(&mut Crowd));

    #[test]
    fn each_violation_is_reported_separately() {
        let cases: [Case; 13] = [
            ("1 rows: there is nothing", |crowd| crowd.rows.truncate(1)),
            ("1 answers are not from the filter", |crowd| crowd.answers.other = 1),
            ("1 of 100001 were admitted uncounted", |crowd| crowd.answers.uncounted = 1),
            ("1 of 100001 first requests were refused", |crowd| crowd.answers.refused = 1),
            ("1011 of 100011 were not counted in time", |crowd| crowd.answers.unavailable = 1_011),
            ("24999 counters", |crowd| crowd.rows[4].counters = 24_999),
            ("102001 counters", |crowd| crowd.rows[4].counters = 102_001),
            ("4 admitted of 5", |crowd| crowd.victim = 4),
            ("6 admitted of 5", |crowd| crowd.victim = 6),
            ("the filter restarted 1 times", |crowd| crowd.reloads = 1),
            ("6 of 500 requests of honest", |crowd| crowd.rows[4].honest.failed = 2),
            ("16385 KiB more", |crowd| crowd.rows[4].footprint.envoys_kib += 16_385),
            ("fewer than two rows of 50000", |crowd| drop(crowd.rows.pop())),
        ];
        assert_eq!(crowd(Form::Long(100_000)).faults(), [""; 0]);
        for (expected, change) in cases {
            let mut crowd = crowd(Form::Long(100_000));
            change(&mut crowd);
            let faults = crowd.faults();
            assert!(
                matches!(faults.as_slice(), [fault] if fault.contains(expected)),
                "{expected}: {faults:?}"
            );
        }
    }

    #[test]
    fn form_specific_bounds_apply_only_to_that_form() {
        assert_eq!(crowd(Form::Short).faults(), [""; 0]);
        let slow = |form: Form| {
            let mut crowd = crowd(form);
            crowd.rows[3].honest.took = vec![Duration::from_millis(1161); 100];
            crowd.faults()
        };
        assert_eq!(slow(Form::Short), [""; 0]);
        assert_eq!(slow(Form::Long(100_000)).len(), 1);
        let grown = |form: Form| {
            let mut crowd = crowd(form);
            crowd.rows[4].footprint.envoys_kib += 15 * 1024 + 1;
            crowd.faults()
        };
        assert_eq!(grown(Form::Short).len(), 1);
        assert_eq!(grown(Form::Long(100_000)), [""; 0]);
        // Redis has a counter of each identity only if no window ends.
        let forgotten = |form: Form| {
            let mut crowd = crowd(form);
            crowd.rows[4].counters = 97_999;
            crowd.faults()
        };
        assert_eq!(forgotten(Form::Short).len(), 1);
        assert_eq!(forgotten(Form::Long(100_000)), [""; 0]);
    }
}
