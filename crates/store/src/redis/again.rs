//! Asking for a reservation again, after an answer which proves that it was not carried out: another window,
//! another node, a script to be sent in full, a server that cannot serve just now.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Pipeline, Value};
use tokio::time::sleep;

use super::cluster::slot_of;
use super::node::{Link, Node};
use super::script::{self, Answer, Deed, Form, Override};
use super::silence::patience;
use super::{Redis, Topology};
use crate::store::{CheckedReservation, Settled, StoreError};

/// Most times that one reservation is asked for.
const TRIES: u32 = 16;
/// The pause after the first "not now"; doubles.
const NOT_NOW: Duration = Duration::from_millis(2);

/// Where and how a reservation is asked for next.
struct Route {
    node: Arc<Node>,
    form: Form,
    asking: bool,
    over: Override,
}

impl Redis {
    /// Asks for one reservation again, after an answer which proves that it was not carried out.
    pub(super) async fn ask_again(
        &self,
        node: Arc<Node>,
        ask: &CheckedReservation,
        proof: Answer,
        deadline: Instant,
    ) -> Settled {
        let mut route = Route { node, form: Form::Digest, asking: false, over: Override::InItsKey };
        let (mut answer, mut rolled, mut pause) = (proof, false, NOT_NOW);
        for _ in 1..TRIES {
            match answer {
                Answer::Granted(grant) => return Ok(grant),
                Answer::Failed(error) => return Err(error),
                Answer::Returned => return Err(StoreError::Refused("the answer to a return".to_owned())),
                Answer::OtherWindow if rolled => return Err(StoreError::Rolled),
                Answer::OtherWindow => rolled = true,
                Answer::NoScript => route.form = Form::Text,
                // Asked for alone, its key has one server.
                Answer::Apart => {}
                Answer::OverrideElsewhere => {
                    route.over = Override::Known(self.read_override(&route.node, ask, deadline).await?);
                }
                Answer::Moved(ref address) | Answer::Elsewhere(ref address) => {
                    let asking = matches!(answer, Answer::Elsewhere(_));
                    let node = self.redirect(&ask.key, address, asking, &route.node);
                    let node = node.ok_or_else(|| StoreError::Refused(format!("redirected to {address}")))?;
                    route = Route { node, form: Form::Digest, asking, ..route };
                }
                // The slot migrates, and the key of the override is not on this node.
                Answer::NotNow(ref code)
                    if code == "TRYAGAIN"
                        && route.over == Override::InItsKey
                        && route.node.over() == Override::Declared =>
                {
                    route.over = Override::Known(self.read_override(&route.node, ask, deadline).await?);
                }
                Answer::NotNow(ref code) => {
                    self.suspect();
                    let error = StoreError::Unreachable(format!("{} answers {code}", route.node.name()));
                    if Instant::now() + pause >= deadline || self.is_given_up(&route.node, deadline) {
                        return Err(error);
                    }
                    sleep(pause).await;
                    pause *= 2;
                    let node = self.owner(&ask.key).ok_or(error)?;
                    route = Route { node, form: Form::Digest, asking: false, ..route };
                }
            }
            if Instant::now() >= deadline {
                return Err(StoreError::Late);
            }
            answer = self.ask_once(&route, ask, deadline).await;
        }
        match answer {
            Answer::Granted(grant) => Ok(grant),
            Answer::Failed(error) => Err(error),
            last => Err(StoreError::Unreachable(format!("{TRIES} tries, the last one {last:?}"))),
        }
    }

    /// Whether a node of a cluster has refused for so long that the items of other nodes must not wait for it.
    fn is_given_up(&self, node: &Node, deadline: Instant) -> bool {
        let patience = patience(deadline.saturating_duration_since(Instant::now()));
        let since = node.connected().and_then(|link| link.silence().refuses_since());
        matches!(self.topology, Topology::Cluster(_))
            && since.is_some_and(|since| since.elapsed() >= patience)
    }

    async fn ask_once(&self, route: &Route, ask: &CheckedReservation, deadline: Instant) -> Answer {
        let Route { node, form, asking, over } = route;
        let number = ask.window().number_at(node.now());
        let deed = [Deed::Reserve(ask, number)];
        let over = if *over == Override::InItsKey { node.over() } else { over.clone() };
        let command = script::command(&self.prefix, &deed, *form, &over);
        match self.one(node, command, *asking, deadline).await {
            Ok((link, reply)) => self.read(node, &link, &reply, &deed).pop().unwrap_or_else(script::nonsense),
            Err(error) => Answer::Failed(error),
        }
    }

    /// Sends one command, behind `ASKING` where the node is about to take over its slot.
    pub(super) async fn one(
        &self,
        node: &Node,
        cmd: Cmd,
        asking: bool,
        deadline: Instant,
    ) -> Result<(Link, Value), StoreError> {
        let mut link = self.link(node, deadline).await?;
        let mut commands = Pipeline::with_capacity(2);
        if asking {
            commands.cmd("ASKING");
        }
        commands.add_command(cmd);
        let reply = self.exchange(node, &mut link, &commands).await?.pop().unwrap_or_default();
        Ok((link, reply))
    }

    /// Reads the override of a partition whose slot is being moved, from the node that has it.
    async fn read_override(
        &self,
        node: &Arc<Node>,
        ask: &CheckedReservation,
        deadline: Instant,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let key = script::override_key(&self.prefix, &ask.key);
        let get = || {
            let mut get = redis::cmd("GET");
            get.arg(&key);
            get
        };
        let (_, mut reply) = self.one(node, get(), false, deadline).await?;
        if let Value::ServerError(error) = &reply
            && let Answer::Elsewhere(address) = script::refusal(error)
            && let Some(other) = self.redirect(&ask.key, &address, true, node)
        {
            reply = self.one(&other, get(), true, deadline).await?.1;
        }
        match reply {
            Value::Nil => Ok(None),
            Value::BulkString(value) => Ok(Some(value)),
            _ => Err(StoreError::Refused("the override of this partition cannot be read".to_owned())),
        }
    }

    /// The node that an answer of `from` names.
    pub(super) fn redirect(&self, key: &str, address: &str, asking: bool, from: &Node) -> Option<Arc<Node>> {
        match &self.topology {
            Topology::One(_) => None,
            Topology::Cluster(cluster) if asking => cluster.node(address, from),
            Topology::Cluster(cluster) => cluster.moved(slot_of(key), address, from),
        }
    }
}
