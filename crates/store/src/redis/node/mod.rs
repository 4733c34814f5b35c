//! One Redis server: a connection that is kept up, and what is known of the server.

mod clock;
mod keeper;
mod patience;
mod probe;
mod sentinel;
mod silence;
mod state;
mod target;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout_at};

pub use self::patience::Patience;
use self::probe::Trouble;
pub use self::silence::silence_limit;
use self::silence::{Look, Question};
pub use self::state::Link;
use self::state::{NodeState, Shared};
pub use self::target::{Target, Topology};
use crate::address::HostPort;
use crate::redis::script::{OverrideSource, Rejection};
use crate::store::{SECOND_LOOK, StoreError};

/// How long a call to a cluster waits for a connection that was just lost, or that is the node's
/// first.
const CONNECTING: Duration = Duration::from_millis(100);

/// A Redis server and the task that keeps it connected. The task ends with this.
pub struct Node {
    shared: Arc<Shared>,
    state: watch::Receiver<NodeState>,
    keeper: AbortHandle,
    /// When the next step of a search may begin. The search whose step is under way holds it.
    search_turn: Mutex<Instant>,
}

impl Node {
    /// Starts to connect to `target`, where keys begin with `prefix`. Needs a Tokio runtime.
    pub fn start(target: Target, prefix: &str, patience: Arc<Patience>) -> Arc<Self> {
        let (publish, state) = watch::channel(NodeState::Connecting(Instant::now()));
        let shared = Arc::new(Shared::new(&target, prefix, patience));
        let keeper =
            tokio::spawn(keeper::keep(target, Arc::clone(&shared), publish)).abort_handle();
        Arc::new(Self { shared, state, keeper, search_turn: Mutex::new(Instant::now()) })
    }

    /// The turn of a step of a search: one at a time runs on the server, whatever operators ask.
    pub const fn search_turn(&self) -> &Mutex<Instant> {
        &self.search_turn
    }

    /// Its name in logs, without credentials.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its address, unless it may change.
    pub fn address(&self) -> Option<&HostPort> {
        self.shared.address.as_ref()
    }

    /// The server's predicted time since the Unix epoch.
    pub fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    /// Learns the server's time from a reply that arrives now.
    pub fn observe(&self, now: Duration) {
        self.shared.clock.observe(now);
    }

    /// Whether each command must hold one key, because several servers are behind its address.
    pub fn is_single_key(&self) -> bool {
        self.shared.probe.is_single_key()
    }

    /// Learns that several servers are behind its address.
    pub fn set_single_key(&self) {
        self.shared.probe.set_single_key(true);
    }

    /// Where the script finds overrides on it.
    pub fn override_source(&self) -> OverrideSource {
        self.shared.probe.override_source()
    }

    /// Learns a slot that it owns.
    pub fn own_slot(&self, slot: u16) {
        self.shared.probe.own_slot(slot);
    }

    /// Asks for a probe soon, because an answer refuses more than one counter.
    pub fn probe_soon(&self) {
        if self.shared.trouble().is_none() {
            self.shared.wake.notify_one();
        }
    }

    /// Learns from an answer which proves that it did not execute a command.
    pub fn learn(&self, link: &Link, rejection: &Rejection) {
        match rejection {
            Rejection::CrossSlot => self.set_single_key(),
            // A primary that became a replica: its successor must be found.
            Rejection::NotNow(code) if code == "READONLY" => self.replace(link),
            Rejection::NotNow(code) if code != "TRYAGAIN" => self.probe_soon(),
            _ => {}
        }
    }

    /// The connection. Waits until `deadline` at most if one is being made.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] without one.
    pub async fn link(&self, deadline: Instant) -> Result<Link, StoreError> {
        if let Some(settled) = self.settled() {
            return settled;
        }
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, NodeState::Connecting(_)));
        // However the wait ends, the state has the answer.
        let _ = timeout_at(deadline.into(), settled).await;
        self.settled().unwrap_or_else(|| {
            Err(StoreError::Unreachable(format!("connecting to {}", self.name())))
        })
    }

    /// The connection for a call to a cluster that may wait until `deadline`. The items of other
    /// nodes wait with this call, so it waits for 100 ms at most.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] without a connection, or with one that is silent.
    pub async fn prompt_link(&self, deadline: Instant) -> Result<Link, StoreError> {
        let link = self.link(self.connecting_until(deadline)).await?;
        let limit = silence_limit(deadline.saturating_duration_since(Instant::now()));
        let mut look = link.silence().look(limit);
        if look == Look::Suspect {
            sleep(SECOND_LOOK).await;
            look = link.silence().look(limit);
        }
        match look {
            Look::Answers => Ok(link),
            Look::Suspect | Look::Silent => {
                Err(StoreError::Unreachable(format!("{} does not answer", self.name())))
            }
        }
    }

    /// The connection, if there is one now.
    pub fn connected(&self) -> Option<Link> {
        self.settled()?.ok()
    }

    /// Whether its connection has been silent for `limit`.
    pub fn is_silent(&self, limit: Duration) -> bool {
        self.connected().is_some_and(|link| link.silence().look(limit) == Look::Silent)
    }

    /// Whether an operator has waited for it in vain, and it has answered nothing since. An
    /// operator who waits for other nodes, too, then does not wait for this one again.
    pub fn away(&self) -> &AtomicBool {
        &self.shared.is_away
    }

    /// Why it cannot be used now.
    pub fn fault(&self) -> Option<String> {
        match self.settled() {
            Some(Ok(_)) => {
                let trouble = self.shared.trouble();
                trouble.as_ref().map(|trouble| format!("{} {}", self.name(), trouble.reason()))
            }
            Some(Err(error)) => Some(error.to_string()),
            None => Some(format!("connecting to {}", self.name())),
        }
    }

    /// Whether it answers, and the store's user may count. Such a server at least refuses for
    /// counters that are full.
    pub fn serves(&self) -> bool {
        matches!(self.settled(), Some(Ok(_)))
            && !matches!(*self.shared.trouble(), Some(Trouble::Rights(_)))
    }

    /// What is wrong with its eviction policy, which may lose counters.
    pub fn eviction_warning(&self) -> Option<String> {
        self.shared.eviction().warning(self.name())
    }

    /// Sends `commands` at once. Each has its own answer.
    ///
    /// # Errors
    /// When the connection failed: then each command may have been executed or not.
    pub async fn send(
        &self,
        link: &mut Link,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, RedisError> {
        let question = self.ask(link);
        let answers = link.connection.send_packed_commands(commands, 0, commands.len()).await;
        self.answered(link, question, answers)
    }

    /// Sends one command, which costs less than several.
    ///
    /// # Errors
    /// When the connection failed: then the command may have been executed or not.
    pub async fn send_alone(&self, link: &mut Link, command: &Cmd) -> Result<Value, RedisError> {
        let question = self.ask(link);
        let answer = link.connection.send_packed_command(command).await;
        self.answered(link, question, answer)
    }

    fn ask(&self, link: &mut Link) -> Question {
        link.connection.set_response_timeout(self.shared.patience.answer());
        link.silence.ask()
    }

    fn answered<T>(
        &self,
        link: &Link,
        question: Question,
        answer: Result<T, RedisError>,
    ) -> Result<T, RedisError> {
        match &answer {
            Ok(_) => {
                question.answered();
                self.shared.is_away.store(false, Relaxed);
            }
            Err(_) => self.replace(link),
        }
        answer
    }

    /// Asks for another connection, because this one failed or its server is no longer the right
    /// one.
    pub fn replace(&self, link: &Link) {
        self.shared.replace(link.generation);
    }

    /// Until when a call to a cluster waits for a connection that is being made, at most until
    /// `deadline`.
    fn connecting_until(&self, deadline: Instant) -> Instant {
        match *self.state.borrow() {
            NodeState::Connecting(since) => deadline.min(since + CONNECTING),
            NodeState::Up(_) | NodeState::Down(_) => deadline,
        }
    }

    fn settled(&self) -> Option<Result<Link, StoreError>> {
        match &*self.state.borrow() {
            NodeState::Connecting(_) => None,
            NodeState::Up(link) => Some(Ok(link.clone())),
            NodeState::Down(reason) => Some(Err(StoreError::Unreachable(reason.to_string()))),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}
