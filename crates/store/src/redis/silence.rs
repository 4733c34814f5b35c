//! Whether a node of a cluster answers, so that one that hangs holds up nobody else.
//!
//! A node is silent when it has owed an answer for [two fifths](patience) of what a call may wait, and for four times
//! as long as its answers usually take: a node that is merely slow is waited for. Commands to a silent node fail at once.
//! What was sent before is still awaited, and the first answer ends the silence. Without any the connection
//! is replaced after a second, and the node stays given up until a new connection has answered.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Pipeline;
use tokio::time::sleep;

use super::node::{Link, Node};
use super::script::{self, Form, Override};
use super::{Item, Redis, Topology};
use crate::store::{SECOND_LOOK, StoreError};

/// How long a call to a cluster waits for a connection that was just lost, or that is the node's first.
pub const DIALING: Duration = Duration::from_millis(100);
/// A silence that is shorter may be the machine's, however short the calls' time is.
const SHORTEST: Duration = Duration::from_millis(20);
/// So many times its usual answer time a node may be silent.
const USUAL: u32 = 4;
/// Most writes that wait for a silent connection, each with at most the refunds of one call; refunds beyond them are
/// dropped.
const MOST_OWED: usize = 1024;

/// How long a node may owe an answer to a call that can wait for `budget`.
pub fn patience(budget: Duration) -> Duration {
    budget.mul_f64(0.4).max(SHORTEST)
}

/// What one connection owes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Silence(Arc<Mutex<Owed>>);

#[derive(Debug, Default)]
struct Owed {
    commands: usize,
    /// When the first command was sent after which nothing came.
    since: Option<Instant>,
    /// When the silence was first seen to be too long.
    suspected: Option<Instant>,
    /// Since when its answers say that it cannot serve now.
    refuses: Option<Instant>,
    /// The smoothed time of an answer.
    usual: Duration,
    /// The end of the last silence: how long answers took that were asked for before says nothing more.
    resumed: Option<Instant>,
}

/// What a look at a connection tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It owes nothing, or not for too long.
    Answers,
    /// It seems silent: look again after [`SECOND_LOOK`].
    Suspect,
    /// It is silent.
    Silent,
}

/// A command that is sent and not answered yet.
#[derive(Debug)]
pub struct Question {
    silence: Silence,
    asked: Instant,
}

impl Silence {
    /// A command is sent now.
    pub fn ask(&self) -> Question {
        let asked = Instant::now();
        let mut owed = self.owed();
        owed.commands += 1;
        owed.since.get_or_insert(asked);
        Question { silence: self.clone(), asked }
    }

    /// Whether nothing has come for `patience` although an answer is owed.
    pub fn look(&self, patience: Duration) -> Look {
        let now = Instant::now();
        let mut owed = self.owed();
        let patience = patience.max(owed.usual * USUAL);
        if owed.since.is_none_or(|since| now - since < patience) {
            return Look::Answers;
        }
        let suspected = *owed.suspected.get_or_insert(now);
        if now - suspected < SECOND_LOOK { Look::Suspect } else { Look::Silent }
    }

    /// Whether it was found silent.
    pub fn is_found(&self) -> bool {
        self.owed().suspected.is_some()
    }

    /// Learns from an answer whether the node says that it cannot serve now.
    pub fn refuses(&self, refuses: bool) {
        let mut owed = self.owed();
        if refuses {
            owed.refuses.get_or_insert_with(Instant::now);
        } else {
            owed.refuses = None;
        }
    }

    /// Since when its answers say that it cannot serve now.
    pub fn refuses_since(&self) -> Option<Instant> {
        self.owed().refuses
    }

    /// Whether a refund may still be sent, although nobody knows when it will be answered.
    pub fn has_room(&self) -> bool {
        self.owed().commands < MOST_OWED
    }

    /// No panic can happen while it is locked, so a poisoned lock guards nothing that is broken.
    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Question {
    /// The answer has come. A question that is dropped before was not answered: the silence goes on.
    pub fn answered(self) {
        let now = Instant::now();
        let mut owed = self.silence.owed();
        owed.since = (owed.commands > 1).then_some(now);
        if owed.resumed.is_none_or(|resumed| resumed <= self.asked) {
            owed.usual = (owed.usual * 7 + (now - self.asked)) / 8;
        }
        if owed.suspected.take().is_some() {
            owed.resumed = Some(now);
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let mut owed = self.silence.owed();
        owed.commands = owed.commands.saturating_sub(1);
    }
}

impl Redis {
    /// The connection to a node. In a cluster nobody waits for one that is gone or silent: other nodes serve the other
    /// items of the same call.
    pub(super) async fn link(&self, node: &Node, deadline: Instant) -> Result<Link, StoreError> {
        match self.topology {
            Topology::One(_) => node.link(deadline).await,
            Topology::Cluster(_) => node.prompt_link(deadline).await,
        }
    }

    /// Sends the refunds among `items` to a node that is connected but silent. Nobody waits for them.
    pub(super) fn refund_unheard(&self, node: &Arc<Node>, items: &[Item<'_>]) {
        let Some(mut link) = node.connected().filter(|link| link.silence().has_room()) else { return };
        let mut commands = Pipeline::new();
        for item in items.iter().filter(|item| matches!(item, Item::Refund(_))) {
            let deed = [item.deed(node.now())];
            commands.add_command(script::command(&self.prefix, &deed, Form::Digest, &Override::InItsKey));
        }
        if commands.is_empty() {
            return;
        }
        self.commands.inc_by(u64::try_from(commands.len()).unwrap_or(u64::MAX));
        let node = Arc::clone(node);
        tokio::spawn(async move { node.send(&mut link, &commands).await });
    }
}

impl Node {
    /// The connection for a call of a cluster that may wait until `deadline`. Other nodes' items wait with it, so it
    /// waits for no more than [`DIALING`].
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] without a connection, or with one that is silent.
    pub async fn prompt_link(&self, deadline: Instant) -> Result<Link, StoreError> {
        let link = self.link(self.dialing_until(deadline)).await?;
        let patience = patience(deadline.saturating_duration_since(Instant::now()));
        let mut look = link.silence().look(patience);
        if look == Look::Suspect {
            sleep(SECOND_LOOK).await;
            look = link.silence().look(patience);
        }
        match look {
            Look::Answers => Ok(link),
            Look::Suspect | Look::Silent => {
                Err(StoreError::Unreachable(format!("{} does not answer", self.name())))
            }
        }
    }

    /// Whether its connection is silent.
    pub fn is_silent(&self, patience: Duration) -> bool {
        self.connected().is_some_and(|link| link.silence().look(patience) == Look::Silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_ago(silence: &Silence) {
        silence.owed().since = Instant::now().checked_sub(Duration::from_secs(1));
    }

    fn look_twice(silence: &Silence, patience: Duration) -> Look {
        if silence.look(patience) == Look::Suspect {
            std::thread::sleep(SECOND_LOOK);
        }
        silence.look(patience)
    }

    #[test]
    fn a_connection_is_silent_while_it_owes_an_answer_for_too_long() {
        let (silence, patience) = (Silence::default(), Duration::from_millis(80));
        assert_eq!(silence.look(Duration::ZERO), Look::Answers, "it owes nothing");
        let (first, second) = (silence.ask(), silence.ask());
        assert_eq!(silence.look(Duration::from_secs(60)), Look::Answers);
        long_ago(&silence);
        assert_eq!(silence.look(patience), Look::Suspect, "an answer may be there that nobody has read");
        std::thread::sleep(SECOND_LOOK);
        assert_eq!(silence.look(patience), Look::Silent);
        first.answered();
        assert_eq!(silence.look(patience), Look::Answers, "any answer ends the silence");
        long_ago(&silence);
        assert_eq!(look_twice(&silence, patience), Look::Silent);
        drop(second);
        assert_eq!(silence.look(patience), Look::Silent, "a question that is given up was not answered");
        silence.ask().answered();
        assert_eq!(silence.look(Duration::ZERO), Look::Answers);
    }

    #[test]
    fn a_node_that_is_usually_slow_is_waited_for() {
        let silence = Silence::default();
        silence.owed().usual = Duration::from_millis(500);
        let _question = silence.ask();
        long_ago(&silence);
        assert_eq!(look_twice(&silence, Duration::from_millis(80)), Look::Answers);
        silence.owed().usual = Duration::from_millis(200);
        assert_eq!(look_twice(&silence, Duration::from_millis(80)), Look::Silent);
    }
}
