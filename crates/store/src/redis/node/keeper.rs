//! The task that keeps a server connected: connects, watches the connection, connects again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until, timeout};

use super::clock::read_clock;
use super::probe::{Trouble, Verdict, eviction_policy};
use super::silence::Silence;
use super::state::{Link, NodeState, Shared};
use super::target::{Target, Topology};
use crate::redis::script;

/// How many answers it takes at most to know that a server counts. Each may take as long as
/// [`Patience::answer`](super::Patience::answer).
const ANSWERS: u32 = 12;
/// The pause before the second try to connect. It doubles up to [`SLOWEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(50);
const SLOWEST_RETRY: Duration = Duration::from_millis(500);
/// A connection that ends sooner is replaced after a pause.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// How often a connection is probed.
const PROBE: Duration = Duration::from_secs(1);
/// How soon after a probe an error of a call may lead to the next one.
const SOON: Duration = Duration::from_millis(100);
/// The store reads the eviction policy with every so many probes, because an operator may change it
/// while Redis runs.
const PROBES_PER_EVICTION: u32 = 5;
/// How often the store asks the sentinels whether the server is still the primary. After a failover
/// that an operator starts, the old primary goes on taking writes for seconds, and loses them when
/// it becomes a replica: what is counted there in the meantime is a fresh quota.
const SENTINELS: Duration = Duration::from_secs(1);

/// Keeps `target` connected, and publishes each change of the connection's state.
pub async fn keep(target: Target, shared: Arc<Shared>, publish: watch::Sender<NodeState>) {
    let mut pause = FIRST_RETRY;
    let mut logged = None;
    for generation in 1.. {
        match timeout(shared.patience.answer() * ANSWERS, open(&target, &shared))
            .await
            .unwrap_or_else(|_| Err("no answer in time".into()))
        {
            Ok((connection, home)) => {
                tracing::info!("connected to {}", shared.name);
                (pause, logged) = (FIRST_RETRY, None);
                let link = Link { connection, generation, silence: Silence::default() };
                publish.send_replace(NodeState::Up(link.clone()));
                let since = Instant::now();
                let reason = tokio::select! {
                    reason = watch_over(&shared, &link) => reason,
                    reason = moved(&target, &home, &shared) => reason,
                };
                tracing::warn!("lost the connection to {}: {reason}", shared.name);
                // A server that closed a connection is often back at once, so calls wait for it.
                // They do not wait for one that was silent.
                publish.send_replace(if link.silence.is_silent() {
                    NodeState::Down(
                        format!("{}: it was silent, and the store reconnects", shared.name).into(),
                    )
                } else {
                    NodeState::Connecting(Instant::now())
                });
                // A server that drops every connection must not cause a tight loop of connections.
                if since.elapsed() < SHORT_LIFE {
                    sleep(FIRST_RETRY).await;
                }
            }
            Err(reason) => {
                if logged.as_ref() != Some(&reason) {
                    tracing::warn!("cannot connect to {}: {reason}; retrying", shared.name);
                }
                publish.send_replace(NodeState::Down(format!("{}: {reason}", shared.name).into()));
                logged = Some(reason);
                sleep(pause).await;
                pause = (pause * 2).min(SLOWEST_RETRY);
            }
        }
    }
}

/// Returns when the connection must be replaced, and says why.
async fn watch_over(shared: &Shared, link: &Link) -> String {
    let Link { mut connection, generation, silence } = link.clone();
    let (mut probes, mut last) = (0_u32, Instant::now());
    let mut due = last + PROBE;
    loop {
        tokio::select! {
            () = shared.wake.notified() => {
                if shared.is_replaced(generation) {
                    return "a command failed".to_owned();
                }
                due = due.min(last + SOON);
            },
            () = sleep_until(due.into()) => {
                connection.set_response_timeout(shared.patience.answer());
                let question = silence.ask();
                match read_clock(&mut connection).await {
                    Ok(now) => {
                        question.answered();
                        shared.clock.observe(now);
                    }
                    Err(error) => return error.to_string(),
                }
                if let Err(reason) = probe(shared, &mut connection, false).await {
                    return reason;
                }
                probes = probes.wrapping_add(1);
                if probes.is_multiple_of(PROBES_PER_EVICTION) {
                    read_eviction(shared, &mut connection).await;
                }
                last = Instant::now();
                due = last + PROBE;
            },
        }
    }
}

/// Returns when more sentinels name another server than name this one. Without sentinels it never
/// returns.
async fn moved(target: &Target, home: &Target, shared: &Shared) -> String {
    if target.topology() != Topology::Sentinel {
        return std::future::pending().await;
    }
    loop {
        sleep(SENTINELS).await;
        let Ok(candidates) = target.candidates(&shared.patience).await else { continue };
        let own = candidates.iter().find(|(server, _)| server.address() == home.address());
        let own = own.map_or(0, |(_, votes)| *votes);
        if let Some((server, _)) = candidates.first().filter(|(_, votes)| *votes > own) {
            return format!("its sentinels name {server}, no longer {home}");
        }
    }
}

/// Connects to the server, or to the first primary among those that sentinels name.
async fn open(target: &Target, shared: &Shared) -> Result<(MultiplexedConnection, Target), String> {
    let limit = shared.patience.answer();
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limit))
        .set_response_timeout(Some(limit))
        .set_pipeline_buffer_size(1024);
    let mut last = String::new();
    for (home, _) in target.candidates(&shared.patience).await? {
        match open_one(&home, &config, shared).await {
            Ok(connection) => return Ok((connection, home)),
            Err(reason) if target.topology() != Topology::Sentinel => last = reason,
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
    let text = |error: RedisError| error.to_string();
    let mut connection = home.connect(config).await.map_err(text)?;
    match read_clock(&mut connection).await {
        Ok(now) => shared.clock.observe(now),
        Err(error) => {
            if let Some(reason) = of_a_proxy(&error) {
                return Err(reason);
            }
            let denied = error.code() == Some("NOPERM");
            let missing =
                if denied { shared.probe.rights(&mut connection).await.ok() } else { None };
            let missing = missing.and_then(|missing| missing.needed(&home.user()));
            return Err(
                missing.map_or_else(|| error.to_string(), |missing| format!("it {missing}"))
            );
        }
    }
    load_scripts(shared, &mut connection).await.map_err(text)?;
    probe(shared, &mut connection, true).await?;
    read_eviction(shared, &mut connection).await;
    Ok(connection)
}

/// Recognizes a proxy for Redis by its answer to TIME, the first command on a connection. Envoy's
/// `redis_proxy` says the microseconds since 1970, or that it does not know the command. twemproxy
/// closes the connection, which a server that ends does as well.
fn of_a_proxy(error: &RedisError) -> Option<String> {
    let is_unknown = || error.detail().is_some_and(|detail| detail.starts_with("unknown command"));
    let is_unread = matches!(error.kind(), ErrorKind::Parse | ErrorKind::UnexpectedReturnType);
    let what = if is_unread || is_unknown() {
        "answers TIME as no Redis does"
    } else if error.is_connection_dropped() {
        "closes the connection at the first command"
    } else {
        return None;
    };
    Some(format!(
        "it {what} ({error}): if it is a proxy for Redis, such as Envoy's redis_proxy or twemproxy, name \
         Redis itself"
    ))
}

/// Loads the scripts. An error means that the server cannot serve now, for example because it still
/// reads its data.
async fn load_scripts(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
) -> Result<(), RedisError> {
    let single_key = match script::COUNTER.load().query_async::<String>(connection).await {
        Ok(_) => false,
        // Where loading is forbidden, the first call finds no script and sends its text. The server
        // may be a proxy in front of shards, which would send all keys of a command to the shard of
        // the first key.
        Err(error) if matches!(error.code(), Some("NOPERM" | "ERR")) => true,
        Err(error) => return Err(error),
    };
    shared.probe.set_single_key(single_key);
    if !single_key {
        // If this fails, the first command of an operator sends the text.
        let _ = script::CONTROL.load().query_async::<String>(connection).await;
    }
    Ok(())
}

/// Probes whether the server counts. An error is the reason to use another connection: the server
/// does not answer, or is no primary.
async fn probe(
    shared: &Shared,
    connection: &mut MultiplexedConnection,
    first: bool,
) -> Result<(), String> {
    let check_rights = first || matches!(*shared.trouble(), Some(Trouble::Rights(_)));
    let now = shared.clock.now();
    let verdict = shared.probe.run(connection, &shared.name, now, check_rights).await;
    match verdict.map_err(|error| error.to_string())? {
        Verdict::Counts => shared.learn(None),
        Verdict::Fails(trouble) => shared.learn(Some(trouble)),
        Verdict::Unknown => {}
        Verdict::NotPrimary(why) => return Err(format!("it {why}")),
    }
    Ok(())
}

/// Reads the server's eviction policy, and warns of a new one that may lose counters.
async fn read_eviction(shared: &Shared, connection: &mut MultiplexedConnection) {
    if let Some(policy) = eviction_policy(connection).await
        && let Some(warning) = shared.eviction().learn(&shared.name, policy)
    {
        tracing::warn!("{warning}");
    }
}
