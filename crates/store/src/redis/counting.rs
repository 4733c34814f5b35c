//! Counting: the operations of a batch are grouped by server and sent in one pipeline for each.

use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_protocol::Adjustment;
use redis::{Pipeline, Value};

use super::backend::Redis;
use super::node::{Link, Node, Topology};
use super::routing::{Route, Router, Urgency, no_primary};
use super::script::{
    Form, MAX_OPERATIONS, Operation, OverrideSource, Rejection, ScriptAnswer, ScriptCall,
    lacks_rights, override_key, refuses_all, unexpected,
};
use crate::store::{Batch, OnReserved, Reserved, StoreError};

/// The longest wait for a connection to refund units.
const REFUND: Duration = Duration::from_secs(1);

/// The operations of one server.
type Group<'a> = (Arc<Node>, Vec<Operation<'a>>);

impl Redis {
    /// Carries out a batch: [`Store::carry_out`](crate::store::Store::carry_out).
    pub(super) async fn count_batch(&self, batch: &Batch, on_reserved: &OnReserved<'_>) {
        let budget = batch.deadline.saturating_duration_since(Instant::now());
        self.patience.learn(budget);
        let late = budget.is_zero();
        if late {
            (0..batch.reservations.len())
                .for_each(|index| on_reserved(index, Err(StoreError::Late)));
        }
        let reservations = batch.reservations.iter().enumerate().filter(|_| !late);
        let reserve =
            reservations.map(|(index, reservation)| Operation::Reserve { index, reservation });
        let (groups, unroutable) =
            self.group(adjustments(&batch.refunds, &batch.charges).chain(reserve));
        for operation in &unroutable {
            if let Operation::Reserve { index, .. } = *operation {
                on_reserved(index, Err(no_primary()));
            }
        }
        if !unroutable.is_empty() {
            self.reread_map();
        }
        let count = |group| self.count_group(group, batch.deadline, on_reserved);
        match groups.as_slice() {
            [group] => count(group).await,
            // Concurrently, so that a slow server delays no other.
            groups => drop(join_all(groups.iter().map(count)).await),
        }
    }

    /// Refunds units: [`Store::refund`](crate::store::Store::refund).
    pub(super) async fn refund_all(&self, refunds: &[Adjustment]) {
        let deadline = Instant::now() + REFUND;
        let (groups, _) = self.group(refunds.iter().map(Operation::Refund));
        join_all(groups.iter().map(|(node, group)| self.send_group(node, group, deadline))).await;
    }

    /// Sorts operations by the server of their key, in their order. The others have no known
    /// server.
    fn group<'a>(
        &self,
        operations: impl Iterator<Item = Operation<'a>>,
    ) -> (Vec<Group<'a>>, Vec<Operation<'a>>) {
        let (mut groups, mut unroutable): (Vec<Group<'a>>, _) = (Vec::new(), Vec::new());
        for operation in operations {
            let Some(node) = self.owner(operation.key()) else {
                unroutable.push(operation);
                continue;
            };
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &node)) {
                Some((_, group)) => group.push(operation),
                None => groups.push((node, vec![operation])),
            }
        }
        (groups, unroutable)
    }

    async fn count_group(
        &self,
        (node, group): &Group<'_>,
        deadline: Instant,
        on_reserved: &OnReserved<'_>,
    ) {
        let answers = self.send_group(node, group, deadline).await;
        let mut retries = Vec::new();
        for (operation, answer) in group.iter().zip(answers) {
            let Operation::Reserve { index, .. } = *operation else { continue };
            match answer {
                ScriptAnswer::Granted(grant) => on_reserved(index, Ok(grant)),
                ScriptAnswer::Failed(error) => {
                    if error.is_outage() {
                        self.reread_map();
                    }
                    on_reserved(index, Err(error));
                }
                answer => retries.push(async move {
                    on_reserved(index, self.reserve_again(node, operation, answer, deadline).await);
                }),
            }
        }
        join_all(retries).await;
    }

    /// Sends operations to their server in one pipeline. Returns one answer for each.
    async fn send_group(
        &self,
        node: &Arc<Node>,
        group: &[Operation<'_>],
        deadline: Instant,
    ) -> Vec<ScriptAnswer> {
        let fail =
            |error: StoreError| group.iter().map(|_| ScriptAnswer::Failed(error.clone())).collect();
        let mut link = match self.link(node, deadline).await {
            Ok(link) => link,
            Err(error) => {
                self.adjust_unanswered(node, group);
                return fail(error);
            }
        };
        let (now, source) = (node.now(), node.override_source());
        let per_command = self.per_command(node);
        let command = |call: &ScriptCall<'_>| call.command(&self.prefix, Form::Digest, &source);
        if group.len() <= per_command {
            let call = ScriptCall { operations: group, now };
            return match self.send_alone(node, &mut link, &command(&call)).await {
                Ok(reply) => self.read(node, &link, &reply, call),
                Err(error) => fail(error),
            };
        }
        let calls = group.chunks(per_command).map(|operations| ScriptCall { operations, now });
        let mut commands = Pipeline::with_capacity(calls.len());
        for call in calls.clone() {
            commands.add_command(command(&call));
        }
        match self.send(node, &mut link, &commands).await {
            Ok(replies) => {
                let read = |(reply, call)| self.read(node, &link, reply, call);
                replies.iter().zip(calls).flat_map(read).collect()
            }
            Err(error) => fail(error),
        }
    }

    /// Most operations of one command. A single server has all counters. In a cluster each counter
    /// may be on its way to another node.
    fn per_command(&self, node: &Node) -> usize {
        if self.topology == Topology::Cluster || node.is_single_key() { 1 } else { MAX_OPERATIONS }
    }

    /// Sends the refunds and charges of `group` to a node that is connected but silent. Waits for
    /// no answer.
    fn adjust_unanswered(&self, node: &Arc<Node>, group: &[Operation<'_>]) {
        let Some(link) = node.connected().filter(|link| link.silence().has_room()) else { return };
        let mut commands = Pipeline::new();
        let adjusts = |operation: &&Operation<'_>| !matches!(operation, Operation::Reserve { .. });
        for adjustment in group.iter().filter(adjusts) {
            let call = ScriptCall { operations: slice::from_ref(adjustment), now: node.now() };
            commands.add_command(call.command(
                &self.prefix,
                Form::Digest,
                &OverrideSource::Undeclared,
            ));
        }
        if !commands.is_empty() {
            self.send_unawaited(node, link, commands);
        }
    }

    /// Reads the answers to a command, and learns from them about the server.
    fn read(
        &self,
        node: &Node,
        link: &Link,
        reply: &Value,
        call: ScriptCall<'_>,
    ) -> Vec<ScriptAnswer> {
        let (answers, clock) = call.read(reply);
        clock.inspect(|now| node.observe(*now));
        self.errors.answer(reply);
        // Some proxies in front of shards refuse several keys with another error than CROSSSLOT.
        let several = call.operations.len() > 1;
        if matches!(reply, Value::ServerError(error) if several && error.code() == "ERR") {
            node.set_single_key();
        }
        for answer in &answers {
            match answer {
                ScriptAnswer::Rejected(rejection) => node.learn(link, rejection),
                ScriptAnswer::Failed(StoreError::Refused(reason))
                    if refuses_all(reason).is_some() || lacks_rights(reason) =>
                {
                    node.probe_soon();
                }
                _ => {}
            }
        }
        if let Some(answer) = answers.last() {
            link.silence()
                .set_rejects(matches!(answer, ScriptAnswer::Rejected(Rejection::NotNow(_))));
        }
        answers
    }

    /// Sends one reservation again, after an answer which proves that it was not carried out.
    async fn reserve_again(
        &self,
        node: &Arc<Node>,
        operation: &Operation<'_>,
        proof: ScriptAnswer,
        deadline: Instant,
    ) -> Reserved {
        let (mut router, mut route) =
            Router::sent_to(self, operation.key(), node, Urgency::Call, deadline);
        // When the window ended once; the override, where it was read without the script.
        let (mut rolled, mut read) = (None, None);
        let mut answer = proof;
        loop {
            match answer {
                ScriptAnswer::Granted(grant) => return Ok(grant),
                ScriptAnswer::Failed(error) => return Err(error),
                ScriptAnswer::Adjusted => return Err(StoreError::unexpected_reply()),
                ScriptAnswer::OtherWindow(_) if rolled.is_some() => return Err(StoreError::Rolled),
                ScriptAnswer::OtherWindow(now) => rolled = Some(now),
                ScriptAnswer::OverrideElsewhere => {
                    read = Some(self.read_override(&route.node, operation.key(), deadline).await?);
                }
                // The slot migrates, and the declared key of the override is not on this node.
                ScriptAnswer::Rejected(rejection)
                    if rejection.is_try_again()
                        && read.is_none()
                        && route.node.override_source() == OverrideSource::Declared =>
                {
                    read = Some(self.read_override(&route.node, operation.key(), deadline).await?);
                }
                ScriptAnswer::Rejected(rejection) => router.follow(rejection).await?,
            }
            route = router.next().await?;
            let source = read.clone().unwrap_or_else(|| route.node.override_source());
            // A reply to another call may have set the clock back to before the window's end.
            let now = route.node.now().max(rolled.unwrap_or_default());
            answer = self.reserve_once(&route, operation, now, &source, deadline).await;
        }
    }

    async fn reserve_once(
        &self,
        route: &Route,
        operation: &Operation<'_>,
        now: Duration,
        source: &OverrideSource,
        deadline: Instant,
    ) -> ScriptAnswer {
        let call = ScriptCall { operations: slice::from_ref(operation), now };
        let command = call.command(&self.prefix, route.form, source);
        match self.send_one(&route.node, command, route.asking, deadline).await {
            Ok((link, reply)) => {
                self.read(&route.node, &link, &reply, call).pop().unwrap_or_else(unexpected)
            }
            Err(error) => ScriptAnswer::Failed(error),
        }
    }

    /// Reads the override of a partition whose slot migrates, from the node that has it.
    async fn read_override(
        &self,
        node: &Arc<Node>,
        key: &str,
        deadline: Instant,
    ) -> Result<OverrideSource, StoreError> {
        let get = |_| {
            let mut get = redis::cmd("GET");
            get.arg(override_key(&self.prefix, key));
            get
        };
        let router = Router::at(self, key, node, Urgency::Call, deadline);
        match self.query(router, get).await? {
            Value::Nil => Ok(OverrideSource::Argument(None)),
            Value::BulkString(value) => Ok(OverrideSource::Argument(Some(value))),
            _ => {
                Err(StoreError::Refused("the override of this partition cannot be read".to_owned()))
            }
        }
    }
}

fn adjustments<'a>(
    refunds: &'a [Adjustment],
    charges: &'a [Adjustment],
) -> impl Iterator<Item = Operation<'a>> {
    refunds.iter().map(Operation::Refund).chain(charges.iter().map(Operation::Charge))
}

#[cfg(test)]
mod tests {
    use quotagate_protocol::Reservation;

    use super::*;
    use crate::redis::Target;
    use crate::store::{CheckedReservation, Store};
    use crate::url::StoreUrl;

    #[tokio::test(flavor = "multi_thread")]
    async fn wrongly_predicted_window_is_asked_for_once_more() {
        let server = quotagate_support::redis::Redis::start().unwrap();
        let Ok(StoreUrl::Redis(login, address)) = server.url().parse() else {
            panic!("one server")
        };
        let store = Redis::start(Target::Address(login, address), "qg");
        let node = store.owner("").unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        node.link(deadline).await.unwrap();
        let reservation = Reservation {
            key: "test:p:{*}".into(),
            window_s: 3600,
            quota: 9,
            want: 2,
            min: 1,
            ..Reservation::default()
        };
        let batch = Batch {
            deadline,
            refunds: vec![],
            charges: vec![],
            reservations: vec![CheckedReservation::new(reservation).unwrap(); 2],
        };
        for used in [4, 8] {
            node.observe(Duration::from_secs(1));
            let commands = store.commands.get();
            let reserved = store.reserve(&batch).await;
            assert_eq!(store.commands.get() - commands, 3, "once together, then each alone");
            assert_eq!(reserved.iter().map(|s| s.as_ref().unwrap().used).max(), Some(used));
            assert!(node.now() > Duration::from_secs(1_000_000), "the clock was learned");
        }
        assert_eq!(
            server.cli(&["DBSIZE"]).unwrap().lines().trim(),
            "1",
            "no key of another window"
        );
    }
}
