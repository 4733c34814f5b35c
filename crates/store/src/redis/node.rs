//! One Redis server: a connection that is kept up, and what is known of the server.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisError, Value};
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

use super::eviction::{self, Eviction};
use super::probe::{Found, Probe, Trouble};
use super::script::{self, Override};
use super::silence::{DIALING, Silence};
use super::target::{DIAL, Target};
use crate::error::StoreError;
use crate::url::HostPort;

/// The longest that an answer may take; the connection is given up then.
const ANSWER: Duration = Duration::from_secs(1);
/// The pause before the second try to connect; doubles up to [`SLOWEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(50);
const SLOWEST_RETRY: Duration = Duration::from_millis(500);
/// A connection that ends sooner is replaced after a pause.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// How often an idle connection is tried.
const PROBE: Duration = Duration::from_secs(1);
/// How soon after a probe an error of a call may lead to the next one.
const SOON: Duration = Duration::from_millis(100);
/// How many probes pass between two looks at the eviction policy: an operator may change it while Redis runs.
const PROBES_A_LOOK: u32 = 5;
/// How often sentinels are asked whether the server is still the primary.
const SENTINELS: Duration = Duration::from_secs(5);

/// A Redis server and the task that keeps it connected; the task ends with this.
pub struct Node {
    shared: Arc<Shared>,
    state: watch::Receiver<State>,
    keeper: AbortHandle,
}

struct Shared {
    name: String,
    address: Option<HostPort>,
    clock: ServerClock,
    /// The generation of the connection that was last found broken.
    broken: AtomicU64,
    wake: Notify,
    eviction: Mutex<Eviction>,
    probe: Probe,
    /// Why it does not count, although it answers.
    trouble: Mutex<Option<Trouble>>,
}

#[derive(Clone)]
enum State {
    /// There is no connection since then, and the first try to make one is under way.
    Dialing(Instant),
    Up(Link),
    Down(Arc<str>),
}

/// A connection. It never repeats a command.
#[derive(Clone)]
pub struct Link {
    connection: MultiplexedConnection,
    generation: u64,
    silence: Silence,
}

impl Link {
    /// What it owes.
    pub const fn silence(&self) -> &Silence {
        &self.silence
    }
}

impl Node {
    /// Starts to connect to `target`, where keys begin with `prefix`. Needs a Tokio runtime.
    pub fn start(target: Target, prefix: &str, clustered: bool) -> Arc<Self> {
        let (publish, state) = watch::channel(State::Dialing(Instant::now()));
        let shared = Arc::new(Shared {
            name: target.to_string(),
            address: target.address().cloned(),
            clock: ServerClock::new(),
            broken: AtomicU64::new(0),
            wake: Notify::new(),
            eviction: Mutex::default(),
            probe: Probe::new(prefix, target.user(), clustered),
            trouble: Mutex::default(),
        });
        let keeper = tokio::spawn(keep(target, Arc::clone(&shared), publish)).abort_handle();
        Arc::new(Self { shared, state, keeper })
    }

    /// What it is called in logs, without credentials.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its address, where it is always the same.
    pub fn address(&self) -> Option<&HostPort> {
        self.shared.address.as_ref()
    }

    /// The server's clock as last seen in its replies, run on by the local one.
    pub fn now(&self) -> Duration {
        self.shared.clock.now()
    }

    /// Learns the server's clock from a reply.
    pub fn observe(&self, now: Duration) {
        self.shared.clock.observe(now);
    }

    /// Whether commands must hold one key each, because several servers stand behind its address.
    pub fn keeps_apart(&self) -> bool {
        self.shared.probe.keeps_apart()
    }

    /// Learns that several servers stand behind its address.
    pub fn keep_apart(&self) {
        self.shared.probe.keep_apart(true);
    }

    /// Where the script finds overrides on it.
    pub fn over(&self) -> Override {
        self.shared.probe.over()
    }

    /// Learns a slot that it owns.
    pub fn own(&self, slot: u16) {
        self.shared.probe.own(slot);
    }

    /// Has it probed soon, because an answer says that it refuses more than one counter.
    pub fn look_soon(&self) {
        if self.shared.trouble().is_none() {
            self.shared.wake.notify_one();
        }
    }

    /// The connection, waiting at most until `deadline` for one that is being made.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] without one.
    pub async fn link(&self, deadline: Instant) -> Result<Link, StoreError> {
        if let Some(settled) = self.settled() {
            return settled;
        }
        let mut state = self.state.clone();
        let settled = state.wait_for(|state| !matches!(state, State::Dialing(_)));
        // Both ends of this wait are the same answer: it is read from the state again.
        let _ = timeout_at(deadline.into(), settled).await;
        self.settled()
            .unwrap_or_else(|| Err(StoreError::Unreachable(format!("connecting to {}", self.name()))))
    }

    /// The connection, if there is one now.
    pub fn connected(&self) -> Option<Link> {
        self.settled()?.ok()
    }

    /// Until when a call of a cluster waits for a connection that is being made, at most until `deadline`.
    pub fn dialing_until(&self, deadline: Instant) -> Instant {
        match *self.state.borrow() {
            State::Dialing(since) => deadline.min(since + DIALING),
            State::Up(_) | State::Down(_) => deadline,
        }
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

    /// Whether it answers a user who may count: then it still refuses what is over its quota.
    pub fn serves(&self) -> bool {
        matches!(self.settled(), Some(Ok(_))) && !matches!(*self.shared.trouble(), Some(Trouble::Rights(_)))
    }

    /// What is wrong with its eviction policy, which may lose counters.
    pub fn eviction(&self) -> Option<String> {
        self.shared.eviction().warning(self.name())
    }

    fn settled(&self) -> Option<Result<Link, StoreError>> {
        match &*self.state.borrow() {
            State::Dialing(_) => None,
            State::Up(link) => Some(Ok(link.clone())),
            State::Down(reason) => Some(Err(StoreError::Unreachable(reason.to_string()))),
        }
    }

    /// Sends `commands` at once, and gives each its own answer.
    ///
    /// # Errors
    /// Where the connection failed: then no command's fate is known.
    pub async fn send(&self, link: &mut Link, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let question = link.silence.ask();
        let answers = link.connection.send_packed_commands(commands, 0, commands.len()).await;
        match &answers {
            Ok(_) => question.answered(),
            Err(_) => self.give_up(link),
        }
        answers
    }

    /// Has the connection replaced, because it failed or because the server is no longer the right one.
    pub fn give_up(&self, link: &Link) {
        self.shared.broken.fetch_max(link.generation, Relaxed);
        self.shared.wake.notify_one();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Shared {
    fn eviction(&self) -> MutexGuard<'_, Eviction> {
        self.eviction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns whether the server counts, and logs each change once.
    fn learn(&self, now: Option<Trouble>) {
        let mut known = self.trouble();
        match (&*known, &now) {
            (before, now) if before == now => {}
            (_, Some(trouble)) => tracing::warn!("{} {}", self.name, trouble.reason()),
            (_, None) => tracing::info!("{} counts again", self.name),
        }
        *known = now;
    }
}

/// Connects, watches, connects again.
async fn keep(target: Target, shared: Arc<Shared>, publish: watch::Sender<State>) {
    let mut pause = FIRST_RETRY;
    let mut complaint = None;
    let patience = target.patience();
    for generation in 1.. {
        match timeout(patience, open(&target, &shared))
            .await
            .unwrap_or_else(|_| Err("no answer in time".into()))
        {
            Ok((connection, home)) => {
                tracing::info!("connected to {}", shared.name);
                (pause, complaint) = (FIRST_RETRY, None);
                let link = Link { connection, generation, silence: Silence::default() };
                publish.send_replace(State::Up(link.clone()));
                let since = Instant::now();
                let reason = tokio::select! {
                    reason = watch_over(&shared, &link) => reason,
                    reason = moved(&target, &home) => reason,
                };
                tracing::warn!("lost the connection to {}: {reason}", shared.name);
                // A server that closed a connection is often back at once; one that is silent is not waited for.
                publish.send_replace(if link.silence.is_found() {
                    State::Down(
                        format!("{}: it was silent, and is being connected to again", shared.name).into(),
                    )
                } else {
                    State::Dialing(Instant::now())
                });
                // A server that drops every connection is not to be dialled in a circle.
                if since.elapsed() < SHORT_LIFE {
                    sleep(FIRST_RETRY).await;
                }
            }
            Err(reason) => {
                if complaint.as_ref() != Some(&reason) {
                    tracing::warn!("cannot connect to {}: {reason}; trying on", shared.name);
                }
                publish.send_replace(State::Down(format!("{}: {reason}", shared.name).into()));
                complaint = Some(reason);
                sleep(pause).await;
                pause = (pause * 2).min(SLOWEST_RETRY);
            }
        }
    }
}

/// Returns when the connection is of no use any more, and says why.
async fn watch_over(shared: &Shared, link: &Link) -> String {
    let Link { mut connection, generation, silence } = link.clone();
    let (mut probes, mut last) = (0_u32, Instant::now());
    let mut due = last + PROBE;
    loop {
        let broken = || shared.broken.load(Relaxed) >= generation;
        tokio::select! {
            () = shared.wake.notified() => {
                if broken() {
                    return "a command failed".to_owned();
                }
                due = due.min(last + SOON);
            },
            () = sleep_until(due.into()) => {
                let question = silence.ask();
                match read_clock(&mut connection).await {
                    Ok(now) => {
                        question.answered();
                        shared.clock.observe(now);
                    }
                    Err(error) => return error.to_string(),
                }
                if let Err(reason) = look(shared, &mut connection, false).await {
                    return reason;
                }
                probes = probes.wrapping_add(1);
                if probes.is_multiple_of(PROBES_A_LOOK) {
                    look_at_eviction(shared, &mut connection).await;
                }
                last = Instant::now();
                due = last + PROBE;
            },
        }
    }
}

/// Returns when more sentinels name another server than name this one. Where there are none, it never does.
async fn moved(target: &Target, home: &Target) -> String {
    if !target.is_found_by_sentinels() {
        return std::future::pending().await;
    }
    let config = AsyncConnectionConfig::new();
    loop {
        sleep(SENTINELS).await;
        let Ok(candidates) = target.candidates(&config).await else { continue };
        let named = candidates
            .iter()
            .find(|(server, _)| server.address() == home.address())
            .map_or(0, |(_, named)| *named);
        if let Some((server, _)) = candidates.first().filter(|(_, most)| *most > named) {
            return format!("its sentinels name {server}, no longer {home}");
        }
    }
}

/// Looks whether the server counts. The connection is of no use where it is no primary, or does not answer.
async fn look(shared: &Shared, connection: &mut MultiplexedConnection, first: bool) -> Result<(), String> {
    let doubted = first || matches!(*shared.trouble(), Some(Trouble::Rights(_)));
    let now = shared.clock.now();
    let found = shared.probe.look(connection, &shared.name, now, doubted).await;
    match found.map_err(|error| error.to_string())? {
        Found::Counts => shared.learn(None),
        Found::Fails(trouble) => shared.learn(Some(trouble)),
        Found::Nothing => {}
        Found::NoPrimary(why) => return Err(format!("it {why}")),
    }
    Ok(())
}

/// Connects to the server, or to the first one that is a primary of those that sentinels name.
async fn open(target: &Target, shared: &Shared) -> Result<(MultiplexedConnection, Target), String> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(DIAL))
        .set_response_timeout(Some(ANSWER))
        .set_pipeline_buffer_size(1024);
    let mut last = String::new();
    for (home, _) in target.candidates(&config).await.map_err(|error| error.to_string())? {
        match open_one(&home, &config, shared).await {
            Ok(connection) => return Ok((connection, home)),
            Err(reason) if !target.is_found_by_sentinels() => last = reason,
            Err(reason) => last = format!("{home}: {reason}"),
        }
    }
    Err(last)
}

async fn open_one(
    home: &Target,
    config: &AsyncConnectionConfig,
    shared: &Shared,
) -> Result<MultiplexedConnection, String> {
    let said = |error: RedisError| error.to_string();
    let mut connection = home.dial(config).await.map_err(said)?;
    match read_clock(&mut connection).await {
        Ok(now) => shared.clock.observe(now),
        Err(error) => {
            let denied = error.code() == Some("NOPERM");
            let missing = if denied { shared.probe.rights(&mut connection).await.ok() } else { None };
            let missing = missing.and_then(|missing| missing.needed(&home.user()));
            return Err(missing.map_or_else(|| error.to_string(), |missing| format!("it {missing}")));
        }
    }
    load_script(shared, &mut connection).await.map_err(said)?;
    look(shared, &mut connection, true).await?;
    look_at_eviction(shared, &mut connection).await;
    Ok(connection)
}

/// A server that cannot load the script just now, such as one that is reading its data, is not connected to yet.
async fn load_script(shared: &Shared, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    let mut load = Cmd::new();
    load.arg("SCRIPT").arg("LOAD").arg(script::SOURCE);
    let apart = match load.query_async::<String>(connection).await {
        Ok(_) => false,
        // Where loading is forbidden, the first call finds no script and sends its text. It may be a proxy in front
        // of shards, which would send all keys of a command to the first one's.
        Err(error) if matches!(error.code(), Some("NOPERM" | "ERR")) => true,
        Err(error) => return Err(error),
    };
    shared.probe.keep_apart(apart);
    if !apart {
        // Where this fails the first operator's command sends its text.
        let mut load = Cmd::new();
        load.arg("SCRIPT").arg("LOAD").arg(script::CONTROL);
        let _ = load.query_async::<String>(connection).await;
    }
    Ok(())
}

/// Learns the server's eviction policy, and warns of what is new about it and may lose counters.
async fn look_at_eviction(shared: &Shared, connection: &mut MultiplexedConnection) {
    if let Some(told) = eviction::ask(connection).await
        && let Some(news) = shared.eviction().learn(&shared.name, told)
    {
        tracing::warn!("{news}");
    }
}

async fn read_clock(connection: &mut MultiplexedConnection) -> Result<Duration, RedisError> {
    let (seconds, micros): (u64, u32) = redis::cmd("TIME").query_async(connection).await?;
    Ok(Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros.into())))
}

/// A server's clock, guessed between its replies.
struct ServerClock {
    start: Instant,
    ahead_ms: AtomicI64,
}

impl ServerClock {
    fn new() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let ahead_ms = AtomicI64::new(i64::try_from(epoch.as_millis()).unwrap_or_default());
        Self { start: Instant::now(), ahead_ms }
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or_default()
    }

    fn now(&self) -> Duration {
        let now = self.elapsed_ms().saturating_add(self.ahead_ms.load(Relaxed));
        Duration::from_millis(u64::try_from(now).unwrap_or_default())
    }

    fn observe(&self, now: Duration) {
        let server_ms = i64::try_from(now.as_millis()).unwrap_or_default();
        self.ahead_ms.store(server_ms.saturating_sub(self.elapsed_ms()), Relaxed);
    }
}
