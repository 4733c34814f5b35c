//! Counters in Redis: one server, a primary behind Sentinel, or a Redis Cluster.
//!
//! A command is sent once. A reservation is sent again only after an answer which proves that the first one
//! was not carried out; a return never is.

mod again;
mod cluster;
mod control;
mod errors;
mod eviction;
mod node;
mod probe;
mod rights;
mod script;
mod search;
mod silence;
mod target;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, join_all};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use quotagate_quota::protocol::Refund;
use redis::{Pipeline, Value};

use self::cluster::{Cluster, slot_of};
use self::errors::Errors;
use self::node::{Link, Node};
use self::script::{Answer, Deed, Form, TOGETHER};
use self::silence::patience;
use self::target::Target;
use crate::control::ControlStore;
use crate::store::{Batch, CheckedReservation, Health, Settle, Store, StoreError};
use crate::url::StoreUrl;

/// The longest wait for a connection to give units back.
const PATIENCE: Duration = Duration::from_secs(1);

/// The backends `redis:`, `redis-cluster:` and `redis-sentinel:`.
pub struct Redis {
    prefix: String,
    topology: Topology,
    /// What operators call it.
    backend: &'static str,
    commands: Counter,
    errors: Errors,
}

enum Topology {
    One(Arc<Node>),
    Cluster(Cluster),
}

/// What goes to one node.
type Group<'a> = (Arc<Node>, Vec<Item<'a>>);

/// One command of a batch.
#[derive(Clone, Copy)]
enum Item<'a> {
    Refund(&'a Refund),
    Ask { at: usize, ask: &'a CheckedReservation },
}

impl<'a> Item<'a> {
    /// What the script does for it, with a window predicted for `now`.
    fn deed(&self, now: Duration) -> Deed<'a> {
        match *self {
            Item::Refund(back) => Deed::Refund(back),
            Item::Ask { ask, .. } => Deed::Reserve(ask, ask.window().number_at(now)),
        }
    }
}

impl Redis {
    /// Starts to connect; `None` for `memory:`. Needs a Tokio runtime.
    pub fn start(url: &StoreUrl, prefix: &str) -> Option<Self> {
        // A provider that is installed already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let sentinel = matches!(url, StoreUrl::Sentinel(..));
        let topology = match url.clone() {
            StoreUrl::Memory => return None,
            StoreUrl::Redis(login, address) => {
                Topology::One(Node::start(Target::Fixed(login, address), prefix, false))
            }
            StoreUrl::Socket(login, path) => {
                Topology::One(Node::start(Target::Socket(login, path), prefix, false))
            }
            StoreUrl::Cluster(login, seeds) => Topology::Cluster(Cluster::start(login, seeds, prefix)),
            StoreUrl::Sentinel(login, sentinels, name) => {
                Topology::One(Node::start(Target::Sentinel { login, sentinels, name }, prefix, false))
            }
        };
        let (commands, errors) = (Counter::default(), Errors::default());
        let backend = control::backend(&topology, sentinel);
        Some(Self { prefix: prefix.to_owned(), topology, backend, commands, errors })
    }

    fn owner(&self, key: &str) -> Option<Arc<Node>> {
        match &self.topology {
            Topology::One(node) => Some(Arc::clone(node)),
            Topology::Cluster(cluster) => cluster.owner(slot_of(key)),
        }
    }

    async fn send_all(&self, batch: &Batch, settle: &Settle<'_>) {
        let late = Instant::now() >= batch.deadline;
        if late {
            (0..batch.reservations.len()).for_each(|at| settle(at, Err(StoreError::Late)));
        }
        let asks =
            batch.reservations.iter().enumerate().filter(|_| !late).map(|(at, ask)| Item::Ask { at, ask });
        let (groups, homeless) = self.group(batch.refunds.iter().map(Item::Refund).chain(asks));
        for item in &homeless {
            if let Item::Ask { at, .. } = *item {
                settle(
                    at,
                    Err(StoreError::Unreachable("no primary is known for this key's slot".to_owned())),
                );
            }
        }
        if !homeless.is_empty() {
            self.suspect();
        }
        // Each node on its own: one that is slow holds up nothing of the others.
        let nodes = groups.iter().map(|(node, items)| self.send_group(node, items, batch.deadline, settle));
        join_all(nodes).await;
    }

    async fn send_group(&self, node: &Arc<Node>, items: &[Item<'_>], deadline: Instant, settle: &Settle<'_>) {
        let answers = self.send(node, items, deadline).await;
        let mut open = Vec::new();
        for (item, answer) in items.iter().zip(answers) {
            let Item::Ask { at, ask } = *item else { continue };
            match answer {
                Answer::Granted(grant) => settle(at, Ok(grant)),
                Answer::Failed(error) => {
                    if error.is_outage() {
                        self.suspect();
                    }
                    settle(at, Err(error));
                }
                proof => open.push(async move {
                    settle(at, self.ask_again(Arc::clone(node), ask, proof, deadline).await);
                }),
            }
        }
        join_all(open).await;
    }

    /// Sorts items by the node of their key, in their order; and those that have none.
    fn group<'a>(&self, items: impl Iterator<Item = Item<'a>>) -> (Vec<Group<'a>>, Vec<Item<'a>>) {
        let (mut groups, mut homeless): (Vec<Group<'a>>, _) = (Vec::new(), Vec::new());
        for item in items {
            let key = match item {
                Item::Refund(back) => &back.key,
                Item::Ask { ask, .. } => &ask.key,
            };
            let Some(node) = self.owner(key) else {
                homeless.push(item);
                continue;
            };
            match groups.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &node)) {
                Some((_, items)) => items.push(item),
                None => groups.push((node, vec![item])),
            }
        }
        (groups, homeless)
    }

    /// Sends items to their node in one go; one answer an item.
    async fn send(&self, node: &Arc<Node>, items: &[Item<'_>], deadline: Instant) -> Vec<Answer> {
        let fail = |error: StoreError| items.iter().map(|_| Answer::Failed(error.clone())).collect();
        let mut link = match self.link(node, deadline).await {
            Ok(link) => link,
            Err(error) => {
                self.refund_unheard(node, items);
                return fail(error);
            }
        };
        let now = node.now();
        let deeds: Vec<_> = items.iter().map(|item| item.deed(now)).collect();
        let scripts = deeds.chunks(self.together(node));
        let mut commands = Pipeline::with_capacity(scripts.len());
        for deeds in scripts.clone() {
            commands.add_command(script::command(&self.prefix, deeds, Form::Digest, &node.over()));
        }
        match self.exchange(node, &mut link, &commands).await {
            Ok(replies) => {
                let read = |(reply, deeds): (&Value, _)| self.read(node, &link, reply, deeds);
                replies.iter().zip(scripts).flat_map(read).collect()
            }
            Err(error) => fail(error),
        }
    }

    /// Most counters of one call of the script: one server has them all, and others get their turn between two
    /// calls. In a cluster each counter may be on its way to another node.
    fn together(&self, node: &Node) -> usize {
        match self.topology {
            Topology::One(_) if !node.keeps_apart() => TOGETHER,
            Topology::One(_) | Topology::Cluster(_) => 1,
        }
    }

    async fn exchange(
        &self,
        node: &Node,
        link: &mut Link,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, StoreError> {
        let count = u64::try_from(commands.len()).unwrap_or(u64::MAX);
        self.commands.inc_by(count);
        match node.send(link, commands).await {
            Ok(replies) if replies.len() == commands.len() => Ok(replies),
            Ok(_) => Err(StoreError::Refused("fewer answers than commands".to_owned())),
            Err(error) => {
                self.errors.unanswered(&error, count);
                Err(StoreError::NoAnswer(format!("{}: {error}", node.name())))
            }
        }
    }

    fn read(&self, node: &Node, link: &Link, reply: &Value, deeds: &[Deed<'_>]) -> Vec<Answer> {
        let (answers, clock) = script::read(reply, deeds);
        clock.inspect(|now| node.observe(*now));
        self.errors.answer(reply);
        // Not every proxy in front of shards says CROSSSLOT when it refuses several keys.
        if matches!(reply, Value::ServerError(error) if deeds.len() > 1 && error.code() == "ERR") {
            node.keep_apart();
        }
        for answer in &answers {
            match answer {
                // A primary that became a replica: the right one must be looked up.
                Answer::NotNow(code) if code == "READONLY" => node.give_up(link),
                Answer::Apart => node.keep_apart(),
                Answer::NotNow(code) if code != "TRYAGAIN" => node.look_soon(),
                Answer::Failed(StoreError::Refused(reason))
                    if script::refuses_all(reason).is_some() || script::lacks_rights(reason) =>
                {
                    node.look_soon();
                }
                _ => {}
            }
        }
        if let Some(answer) = answers.last() {
            link.silence().refuses(matches!(answer, Answer::NotNow(_)));
        }
        answers
    }

    /// Has the map of a cluster read again.
    fn suspect(&self) {
        if let Topology::Cluster(cluster) = &self.topology {
            cluster.read_again();
        }
    }
}

impl Store for Redis {
    fn carry_out<'a>(&'a self, batch: &'a Batch, settle: &'a Settle<'a>) -> BoxFuture<'a, ()> {
        self.send_all(batch, settle).boxed()
    }

    fn refund<'a>(&'a self, returns: &'a [Refund]) -> BoxFuture<'a, ()> {
        async move {
            let deadline = Instant::now() + PATIENCE;
            let (groups, _) = self.group(returns.iter().map(Item::Refund));
            join_all(groups.iter().map(|(node, items)| self.send(node, items, deadline))).await;
        }
        .boxed()
    }

    fn serves_others(&self) -> bool {
        match &self.topology {
            Topology::One(_) => false,
            Topology::Cluster(cluster) => cluster.serves(),
        }
    }

    fn is_silent(&self, key: &str, budget: Duration) -> bool {
        match &self.topology {
            Topology::One(_) => false,
            Topology::Cluster(cluster) => {
                cluster.owner(slot_of(key)).is_some_and(|node| node.is_silent(patience(budget)))
            }
        }
    }

    fn health(&self) -> Health {
        match &self.topology {
            Topology::Cluster(cluster) => cluster.health(),
            Topology::One(node) => {
                let (fault, warning) = (node.fault(), node.eviction());
                Health {
                    faults: fault.into_iter().collect(),
                    warnings: warning.into_iter().collect(),
                    outage: !node.serves(),
                }
            }
        }
    }

    fn control(&self) -> &dyn ControlStore {
        self
    }

    fn register(&self, registry: &mut Registry) {
        registry.register("redis_commands", "Commands sent to Redis", self.commands.clone());
        self.errors.register(registry);
    }
}

#[cfg(test)]
mod tests {
    use quotagate_quota::protocol::Reservation;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_wrongly_predicted_window_is_asked_for_once_more() {
        let server = quotagate_support::redis::Redis::start().unwrap();
        let store = Redis::start(&server.url().parse().unwrap(), "qg").unwrap();
        let node = store.owner("").unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        node.link(deadline).await.unwrap();
        let reservation = Reservation {
            key: "test:p:{*}".to_owned(),
            window_s: 3600,
            offset_s: 0,
            quota: 9,
            want: 2,
            min: 1,
            spare: 0,
            count_denied: false,
            shadow: false,
        };
        let batch = Batch {
            deadline,
            refunds: vec![],
            reservations: vec![CheckedReservation::new(reservation).unwrap(); 2],
        };
        for used in [4, 8] {
            node.observe(Duration::from_secs(1));
            let commands = store.commands.get();
            let settled = store.reserve(&batch).await;
            assert_eq!(store.commands.get() - commands, 3, "once together, then each alone");
            assert_eq!(settled.iter().map(|s| s.as_ref().unwrap().used).max(), Some(used));
            assert!(node.now() > Duration::from_secs(1_000_000), "the clock was learned");
        }
        assert_eq!(server.cli(&["DBSIZE"]).unwrap().lines().trim(), "1", "no key of another window");
    }
}
