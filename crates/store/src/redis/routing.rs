//! Following Redis: where a command goes after an answer which proves that no server executed it.
//!
//! Another node of the cluster has the slot, the script must be sent in full, or the server cannot
//! serve now. Every repetition of a command goes through a [`Router`], which bounds them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::time::{sleep, timeout_at};

use super::backend::Redis;
use super::node::{Node, Topology, silence_limit};
use super::script::{Form, Rejection};
use crate::store::StoreError;

/// How often one command is sent at most.
const MAX_SENT: u32 = 16;
/// A command that was redirected more often goes round in circles.
const MAX_HOPS: u32 = 4;
/// The pause after the first server that cannot serve now. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// A node is away after a pause of this length: half a second after the first one began.
const AWAY: Duration = Duration::from_millis(256);

/// Where a command is sent next, and how.
#[derive(Clone)]
pub struct Route {
    /// The server.
    pub node: Arc<Node>,
    /// How the command names its script.
    pub form: Form,
    /// Whether `ASKING` comes first, because the node is about to take over the slot.
    pub asking: bool,
}

/// How long a command waits for servers that are unreachable or cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Other items of the same call wait with it: it fails if its server is unreachable, or cannot
    /// serve for long.
    Call,
    /// It waits while its next pause ends before the deadline. In a cluster only the first one
    /// waits for a node that is away, so that an operator who asks for much sees the rest in time.
    Operator,
}

/// Follows the answers to one command. Ask for a route, send the command there, and
/// [follow](Self::follow) the answer if it is a rejection; then ask for the next route.
pub struct Router<'a> {
    redis: &'a Redis,
    key: &'a str,
    urgency: Urgency,
    deadline: Instant,
    /// `None`: the owner of the key's slot, which is looked up.
    route: Option<Route>,
    sent: u32,
    hops: u32,
    pause: Duration,
    last: StoreError,
}

impl<'a> Router<'a> {
    /// Begins at the owner of the slot of `key`.
    pub fn new(redis: &'a Redis, key: &'a str, urgency: Urgency, deadline: Instant) -> Self {
        let (pause, last) = (FIRST_PAUSE, no_primary());
        Self { redis, key, urgency, deadline, route: None, sent: 0, hops: 0, pause, last }
    }

    /// Begins at `node`.
    pub fn at(
        redis: &'a Redis,
        key: &'a str,
        node: &Arc<Node>,
        urgency: Urgency,
        deadline: Instant,
    ) -> Self {
        Self {
            route: Some(Route::new(Arc::clone(node))),
            ..Self::new(redis, key, urgency, deadline)
        }
    }

    /// Begins after the command was sent to `node`. Returns the route that it took.
    pub fn sent_to(
        redis: &'a Redis,
        key: &'a str,
        node: &Arc<Node>,
        urgency: Urgency,
        deadline: Instant,
    ) -> (Self, Route) {
        let route = Route::new(Arc::clone(node));
        let router = Self {
            route: Some(route.clone()),
            sent: 1,
            ..Self::new(redis, key, urgency, deadline)
        };
        (router, route)
    }

    /// Where the command is sent next.
    ///
    /// # Errors
    /// When it was sent often enough, or time is over.
    pub async fn next(&mut self) -> Result<Route, StoreError> {
        loop {
            if Instant::now() >= self.deadline {
                return Err(match self.urgency {
                    Urgency::Call => StoreError::Late,
                    Urgency::Operator => self.last.clone(),
                });
            }
            if self.sent >= MAX_SENT {
                return Err(self.last.clone());
            }
            if self.route.is_none() {
                self.route = self.redis.owner(self.key).map(Route::new);
            }
            match &self.route {
                Some(route) => {
                    self.sent += 1;
                    return Ok(route.clone());
                }
                None if self.urgency == Urgency::Call => return Err(self.last.clone()),
                None => self.wait(self.last.clone()).await?,
            }
        }
    }

    /// Follows the answer to the command that was sent last.
    ///
    /// # Errors
    /// When it leads nowhere in the time that is left.
    pub async fn follow(&mut self, rejection: Rejection) -> Result<(), StoreError> {
        let Some(Route { node, asking, .. }) = self.route.clone() else { return Ok(()) };
        self.last = StoreError::Unreachable(format!("{} answers {rejection}", node.name()));
        match rejection {
            Rejection::NoScript => self.route = Some(Route { node, form: Form::Text, asking }),
            // Sent alone, the key has one server.
            Rejection::CrossSlot => {}
            Rejection::Moved(address) => {
                let owner = self.redis.moved(self.key, &address, &node);
                self.redirected(&node, &address, owner.map(Route::new)).await?;
            }
            Rejection::Ask(address) => {
                let other = self.redis.named(&address, &node);
                let route = other.map(|other| Route { asking: true, ..Route::new(other) });
                self.redirected(&node, &address, route).await?;
            }
            Rejection::NotNow(_) => {
                let error = self.last.clone();
                if self.is_given_up(&node) {
                    self.redis.reread_map();
                    return Err(error);
                }
                self.wait(error).await?;
            }
        }
        Ok(())
    }

    /// Takes the route that a redirect of `node` names. If it names no server, or leads in circles,
    /// waits for the map, and fails if the map shows no other way.
    async fn redirected(
        &mut self,
        node: &Node,
        address: &str,
        route: Option<Route>,
    ) -> Result<(), StoreError> {
        self.hops += 1;
        let fault = match route {
            Some(_) if self.hops > MAX_HOPS => {
                "leads in circles: the nodes disagree on who owns this slot (CLUSTER SLOTS of each)"
            }
            Some(_) => {
                self.route = route;
                return Ok(());
            }
            None => {
                "names no server: set cluster-announce-ip, or cluster-announce-hostname, on every \
                 node"
            }
        };
        let why = format!("{} redirects to {address:?}, which {fault}", node.name());
        self.redis.reread_map();
        let call = self.urgency == Urgency::Call;
        // The map was read in the meantime.
        let waited = self.pause >= AWAY || self.redis.is_losing(&why);
        let error = StoreError::Unreachable(why.clone());
        let way = if call && waited { Err(error) } else { self.wait(error).await };
        if way.is_err() {
            self.redis.note_lost(why);
        }
        way
    }

    /// Follows the failure of a command that was never sent.
    ///
    /// # Errors
    /// When the command must not wait for another try.
    pub async fn unreachable(&mut self, error: StoreError) -> Result<(), StoreError> {
        match self.urgency {
            Urgency::Call => Err(error),
            Urgency::Operator => self.wait(error).await,
        }
    }

    /// Waits, to look up the owner again then. Fails with `error` if too little time is left.
    async fn wait(&mut self, error: StoreError) -> Result<(), StoreError> {
        self.redis.reread_map();
        let away = self.away();
        if self.pause == FIRST_PAUSE && away.is_some_and(|away| away.load(Relaxed)) {
            return Err(error);
        }
        if Instant::now() + self.pause >= self.deadline {
            return Err(error);
        }
        sleep(self.pause).await;
        if self.pause >= AWAY {
            away.inspect(|away| away.store(true, Relaxed));
        }
        self.pause *= 2;
        (self.route, self.last) = (None, error);
        Ok(())
    }

    /// Where it is noted that operators have waited in vain: for the node of this command, or for a
    /// node that owns its slot.
    fn away(&self) -> Option<&AtomicBool> {
        let of_slots = self.redis.slots_away().filter(|_| self.urgency == Urgency::Operator)?;
        Some(self.route.as_ref().map_or(of_slots, |route| route.node.away()))
    }

    /// Whether a node of a cluster has rejected calls for so long that the items of other nodes
    /// must not wait for it.
    fn is_given_up(&self, node: &Node) -> bool {
        let limit = silence_limit(self.deadline.saturating_duration_since(Instant::now()));
        let since = node.connected().and_then(|link| link.silence().rejects_since());
        self.urgency == Urgency::Call
            && self.redis.topology == Topology::Cluster
            && since.is_some_and(|since| since.elapsed() >= limit)
    }
}

impl Route {
    const fn new(node: Arc<Node>) -> Self {
        Self { node, form: Form::Digest, asking: false }
    }
}

impl Redis {
    /// Sends a command for one key until a server executes or refuses it. The reply may be an error
    /// of the server.
    pub(super) async fn query(
        &self,
        mut router: Router<'_>,
        command: impl Fn(Form) -> Cmd,
    ) -> Result<Value, StoreError> {
        loop {
            let Route { node, form, asking } = router.next().await?;
            let sent = self.send_one(&node, command(form), asking, router.deadline);
            let sent = match router.urgency {
                Urgency::Call => sent.await,
                Urgency::Operator => in_time(&node, sent, router.deadline).await,
            };
            let (link, reply) = match sent {
                Ok(answered) => answered,
                Err(error @ StoreError::Unreachable(_)) => {
                    router.unreachable(error).await?;
                    continue;
                }
                Err(error) => {
                    self.reread_map();
                    return Err(error);
                }
            };
            let Value::ServerError(error) = &reply else { return Ok(reply) };
            self.errors.answer(&reply);
            match Rejection::of(error) {
                // Sent again, it would be refused again.
                Some(Rejection::CrossSlot) | None => return Ok(reply),
                Some(rejection) => {
                    node.learn(&link, &rejection);
                    router.follow(rejection).await?;
                }
            }
        }
    }
}

/// The answer to an operator's command, which waits until `deadline` for it.
pub async fn in_time<T>(
    node: &Node,
    sent: impl Future<Output = Result<T, StoreError>>,
    deadline: Instant,
) -> Result<T, StoreError> {
    timeout_at(deadline.into(), sent).await.unwrap_or_else(|_| {
        node.away().store(true, Relaxed);
        Err(StoreError::NoAnswer(format!("{} does not answer", node.name())))
    })
}

/// The error for a key whose slot has no known owner.
pub fn no_primary() -> StoreError {
    StoreError::Unreachable("no primary is known for this key's slot".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::node::{Patience, Target};
    use super::*;
    use crate::store::Store;
    use crate::url::StoreUrl;

    /// A cluster that cannot be reached at all, and a node of it.
    fn unreachable() -> (Redis, Arc<Node>) {
        let Ok(StoreUrl::Cluster(login, seeds)) = "redis-cluster://127.0.0.1:1".parse() else {
            panic!("a cluster")
        };
        let target = Target::ClusterNode(login.clone(), seeds[0].clone());
        let node = Node::start(target, "qg", Arc::<Patience>::default());
        (Redis::start_cluster(login, seeds, "qg"), node)
    }

    #[tokio::test]
    async fn redirects_name_a_server_in_every_form_that_redis_writes() {
        let (redis, node) = unreachable();
        for (written, expected) in [
            ("10.0.0.2:7001", "10.0.0.2:7001"),
            ("redis-2.example:7001", "redis-2.example:7001"),
            ("::1:7002", "[::1]:7002"),
            ("[fd00::2]:7003", "[fd00::2]:7003"),
            // Without a name: the known node with this port, or else one where the answer is from.
            ("?:7002", "[::1]:7002"),
            (":7003", "[fd00::2]:7003"),
            ("?:7001", "127.0.0.1:7001"),
            (":7004", "127.0.0.1:7004"),
        ] {
            let found = redis.named(written, &node).unwrap();
            assert_eq!(found.address().unwrap().to_string(), expected, "{written}");
        }
        for unreadable in ["?:1", ":1", "", "?", "?:port", "nowhere", "a b:1", ":99999"] {
            assert!(redis.named(unreadable, &node).is_none(), "{unreadable:?}");
        }
    }

    #[tokio::test]
    async fn redirect_that_names_no_server_is_waited_out_once_and_shown() {
        let (redis, node) = unreachable();
        let owner = redis.moved("k", "127.0.0.1:1", &node).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let lost = |redis: &Redis| {
            redis
                .health()
                .faults
                .iter()
                .any(|fault| fault.contains("\"?:1\", which names no server"))
        };
        for tries in [8, 1] {
            let mut router = Router::at(&redis, "k", &owner, Urgency::Call, deadline);
            for left in (0..tries).rev() {
                router.next().await.unwrap();
                let followed = router.follow(Rejection::Moved("?:1".to_owned())).await;
                assert_eq!(followed.is_err(), left == 0, "{followed:?}");
                assert!(!matches!(followed, Err(StoreError::Refused(_))), "{followed:?}");
            }
            assert!(lost(&redis));
        }
    }

    #[tokio::test]
    async fn only_redirects_that_lead_nowhere_are_shown() {
        let (redis, node) = unreachable();
        let owner = redis.moved("k", "127.0.0.1:1", &node).unwrap();
        let far = Instant::now() + Duration::from_secs(60);
        let lost = |redis: &Redis| {
            let shown =
                |fault: &String| fault.contains("redirects to") || fault.contains("answers");
            redis.health().faults.iter().any(shown)
        };
        // A server that loses its scripts is reachable, and a slot may be on its way.
        let mut router = Router::at(&redis, "k", &owner, Urgency::Call, far);
        while router.next().await.is_ok() {
            router.follow(Rejection::NoScript).await.unwrap();
        }
        assert!(!lost(&redis), "{:?}", redis.health());
        for hops in 0..=MAX_HOPS {
            let mut router = Router::at(&redis, "k", &owner, Urgency::Call, far);
            for hop in 0..hops {
                router.next().await.unwrap();
                let moved = Rejection::Moved(format!("127.0.0.1:{}", 1 + hop % 2));
                router.follow(moved).await.unwrap();
            }
            assert!(router.next().await.is_ok() && !lost(&redis), "{hops} hops");
        }
        let mut router = Router::at(&redis, "k", &owner, Urgency::Call, far);
        let mut sent = 0;
        while router.next().await.is_ok() {
            sent += 1;
            let moved = Rejection::Moved(format!("127.0.0.1:{}", 1 + sent % 2));
            if router.follow(moved).await.is_err() {
                break;
            }
        }
        assert!(lost(&redis), "after {sent} circles");
        assert_eq!(sent, MAX_HOPS + 8, "with pauses of 2 ms to 256 ms");
    }
}
