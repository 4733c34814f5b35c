//! Requests that reached the upstream and are redirected: to a request of any kind, or to where no
//! policy sees them.

use super::*;

impl World {
    pub(super) fn redirect(&mut self, id: u64, now: Monotonic) {
        let mut client = self.clients.remove(&id).unwrap();
        let worker = client.worker;
        let admission = client.exchange.redirected(|| true).expect("it was admitted");
        let driver = &mut self.drivers[worker];
        driver.end(&id, &mut client.exchange, &(), now);
        self.stream_is_over(id, client);
        if self.random.percent(30) {
            if admission.generation == self.drivers[worker].config().generation() {
                self.is_abandoned(&admission);
            }
            return self.drivers[worker].abandon(admission, now);
        }
        self.drivers[worker].keep_redirected(id, admission, now);
        let given = self.drivers[worker].take_redirected(|| Some(id)).expect("it was kept");
        let all = self.checks();
        let all = self.checks_of(worker, all);
        if given.generation != self.drivers[worker].config().generation() {
            // What another document counted stays counted, and this pass counts as well.
            if !all.is_empty() {
                self.pass(worker, all.clone(), Some((given, all)), Admission::default());
            }
            return;
        }
        let mut checks = all.clone();
        let stands = |check: &Check| {
            let counted = |standing: &Standing| {
                standing.counter.key == check.counter.key
                    && standing.cost == check.cost
                    && now < standing.balance.resets
            };
            given.standings.iter().any(counted)
                || given.pending.iter().any(|pending| pending.key == check.counter.key)
        };
        checks.retain(|check| !stands(check));
        let counts_again = |held: &Held| checks.iter().any(|check| check.policy == held.policy);
        let (mut kept, mut replaced) = (given.clone(), given.clone());
        for held in [&mut replaced.held, &mut replaced.unsettled] {
            held.retain(counts_again);
        }
        for held in [&mut kept.held, &mut kept.unsettled] {
            held.retain(|held| !counts_again(held));
        }
        self.is_abandoned(&replaced);
        self.pass(worker, checks, Some((given, all)), kept);
    }

    /// A request reached the upstream, and nobody sees an answer: it costs what its policies say.
    pub(super) fn is_abandoned(&mut self, admission: &Admission) {
        if !self.counts_abandoned() {
            admission.held.iter().for_each(|held| self.costs(held, 0));
        }
        let counted = admission.held.iter().filter(|_| self.counts_abandoned());
        for held in counted.chain(&admission.unsettled).cloned().collect::<Vec<_>>() {
            if let Some(MissingCost::Units(cost)) = self.missing(&held) {
                self.costs(&held, cost);
            }
        }
    }

    /// Whether policies that count by answer count requests without one: all do, or none.
    fn counts_abandoned(&self) -> bool {
        self.config.policies.iter().any(|policy| {
            matches!(&policy.count, Count::Responses(of) if of.abandoned == Abandoned::Count)
        })
    }
}
