//! Whether a server that answers also counts.
//!
//! Each probe runs the counter script on a counter of the store's own. It reserves a unit, reserves
//! another one and refunds both, so that the script does everything it can do, and leaves no key
//! behind. So the store notices a server that is full, a server that must not write and a user
//! without rights before requests do.

mod eviction;
mod rights;
mod role;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use quotagate_protocol::{Adjustment, Fixed, Kind, Reservation};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, ServerError, Value};

pub use self::eviction::{Eviction, eviction_policy};
use self::role::{Role, point_elsewhere};
use super::target::Topology;
use crate::redis::script::{
    Form, MAX_OPERATIONS, Operation, OverrideSource, Rejection, ScriptAnswer, ScriptCall,
    lacks_rights, refuses_all,
};
use crate::redis::slots::{SLOTS, tag_of};
use crate::store::{CheckedReservation, StoreError};

/// Length of the probe's window in seconds. A counter that was left behind, because a refund
/// failed, ends with it.
const WINDOW_S: u32 = 60;
const OF_A_CLUSTER: &str = "is a node of a Redis Cluster: use redis-cluster://";

/// Hash tags of the first and of the last slot.
static END_TAGS: LazyLock<[String; 2]> = LazyLock::new(|| [0, SLOTS - 1].map(tag_of));

/// Why a server that answers does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The store's user lacks rights.
    Rights(String),
    /// The server refuses to count now.
    Refuses(String),
}

impl Trouble {
    /// The reason and the remedy.
    pub fn reason(&self) -> &str {
        match self {
            Self::Rights(reason) | Self::Refuses(reason) => reason,
        }
    }
}

/// The result of a probe.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The server counts.
    Counts,
    /// The server does not count.
    Fails(Trouble),
    /// The probe shows nothing: the slot migrates, or the node has none.
    Unknown,
    /// The server must not be used, because it is no primary, for this reason.
    NotPrimary(String),
}

/// How a server is probed, and what the probes have shown about it.
#[derive(Debug)]
pub struct Probe {
    prefix: String,
    /// The store's user in Redis.
    user: String,
    topology: Topology,
    /// A slot that the server owns, and a hash tag of it.
    tag: Mutex<Option<(u16, String)>>,
    /// Each command must hold one key: several servers are behind the address.
    single_key: AtomicBool,
    /// A script reads only keys that its command declares.
    declares: AtomicBool,
}

impl Probe {
    /// Probes a server where keys begin with `prefix` and the store logs in as `user`.
    pub fn new(prefix: &str, user: String, topology: Topology) -> Self {
        let any = || (0, "0".to_owned());
        Self {
            prefix: prefix.to_owned(),
            user,
            topology,
            tag: Mutex::new((topology != Topology::Cluster).then(any)),
            single_key: AtomicBool::new(false),
            declares: AtomicBool::new(false),
        }
    }

    /// Learns a slot that the node of a cluster owns.
    pub fn own_slot(&self, slot: u16) {
        let mut tag = self.tag.lock().unwrap_or_else(PoisonError::into_inner);
        if tag.as_ref().is_none_or(|(known, _)| *known != slot) {
            *tag = Some((slot, tag_of(slot)));
        }
    }

    /// Whether each command must hold one key.
    pub fn is_single_key(&self) -> bool {
        self.single_key.load(Relaxed)
    }

    /// Learns whether each command must hold one key.
    pub fn set_single_key(&self, single_key: bool) {
        self.single_key.store(single_key, Relaxed);
    }

    /// Where the script finds overrides on this server.
    pub fn override_source(&self) -> OverrideSource {
        if self.declares.load(Relaxed) {
            OverrideSource::Declared
        } else {
            OverrideSource::Undeclared
        }
    }

    /// Which rights the user lacks.
    ///
    /// # Errors
    /// When no answer came.
    pub async fn rights(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<rights::Missing, RedisError> {
        let tag = self.tag().unwrap_or_default();
        let key = format!("{}:probe:{{{tag}}}:0", self.prefix);
        rights::check(connection, &self.prefix, &key, self.topology == Topology::Cluster).await
    }

    /// Probes the server called `name`, whose clock is predicted to be at `now`. `check_rights`
    /// tries each right as well.
    ///
    /// # Errors
    /// When no answer came.
    pub async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        name: &str,
        now: Duration,
        check_rights: bool,
    ) -> Result<Verdict, RedisError> {
        let clustered = self.topology == Topology::Cluster;
        if !clustered && let Some(why) = Role::read(connection).await?.not_primary(self.topology) {
            return Ok(Verdict::NotPrimary(why));
        }
        if !clustered && self.redirects(connection).await? {
            return Ok(Verdict::NotPrimary(OF_A_CLUSTER.to_owned()));
        }
        let (tag, mut answers) = match self.tag() {
            Some(tag) => {
                (tag.clone(), self.count(connection, &tag, now, &self.override_source()).await?)
            }
            None if check_rights => (String::new(), Vec::new()),
            None => return Ok(Verdict::Unknown),
        };
        let unread = |answers: &[ScriptAnswer]| answers.contains(&ScriptAnswer::OverrideElsewhere);
        let denied = |answer: &ScriptAnswer| matches!(answer, ScriptAnswer::Failed(StoreError::Refused(why)) if lacks_rights(why));
        if check_rights || unread(&answers) || answers.iter().any(denied) {
            let missing = self.rights(connection).await?;
            if let Some(reason) = missing.needed(&self.user) {
                return Ok(Verdict::Fails(Trouble::Rights(reason)));
            }
            if let Some(reason) = missing.useful(&self.user).filter(|_| check_rights) {
                tracing::warn!("{name} {reason}");
            }
        }
        if unread(&answers) && self.override_source() == OverrideSource::Undeclared {
            let declared = self.count(connection, &tag, now, &OverrideSource::Declared).await?;
            if declared.iter().any(|answer| matches!(answer, ScriptAnswer::Granted(_))) {
                tracing::info!(
                    "{name} lets scripts read declared keys only: commands declare the keys of overrides"
                );
                self.declares.store(true, Relaxed);
                answers = declared;
            }
        }
        let moved = |answer: &ScriptAnswer| {
            matches!(answer, ScriptAnswer::Rejected(Rejection::Moved(_) | Rejection::Ask(_)))
        };
        if !clustered && answers.iter().any(moved) {
            return Ok(Verdict::NotPrimary(OF_A_CLUSTER.to_owned()));
        }
        Ok(self.verdict(&answers))
    }

    /// Whether the server redirects the first or the last slot, as a node of a cluster does that is
    /// not alone.
    async fn redirects(&self, connection: &mut MultiplexedConnection) -> Result<bool, RedisError> {
        let mut commands = Pipeline::new();
        for tag in &*END_TAGS {
            commands.cmd("GET").arg(format!("{}:probe:{{{tag}}}:0", self.prefix));
        }
        let replies = connection.send_packed_commands(&commands, 0, commands.len()).await?;
        let elsewhere = |error: &ServerError| ["MOVED", "ASK"].contains(&error.code());
        Ok(replies
            .iter()
            .any(|reply| matches!(reply, Value::ServerError(error) if elsewhere(error))))
    }

    fn tag(&self) -> Option<String> {
        let tag = self.tag.lock().unwrap_or_else(PoisonError::into_inner);
        tag.as_ref().map(|(_, tag)| tag.clone())
    }

    /// Reserves a unit, reserves another one, refunds one, then the rest, so that no key stays.
    async fn count(
        &self,
        connection: &mut MultiplexedConnection,
        tag: &str,
        now: Duration,
        source: &OverrideSource,
    ) -> Result<Vec<ScriptAnswer>, RedisError> {
        let key = format!("probe:{{{tag}}}");
        let reservation = Reservation {
            key: key.clone().into(),
            window_s: WINDOW_S,
            quota: 1_000,
            want: 1,
            min: 1,
            ..Reservation::default()
        };
        let Some(window) = Fixed::new(WINDOW_S, 0) else { return Ok(Vec::new()) };
        // Not checked: no domain and policy have this key, so that it is no counter of a filter.
        let reservation = CheckedReservation::within(reservation, window.into());
        let window = window.number_at(now);
        let refund = |units| Adjustment {
            key: key.clone().into(),
            kind: Kind::Fixed,
            window_s: WINDOW_S,
            offset_s: 0,
            window,
            units,
        };
        let (one, rest) = (refund(1), refund(2));
        let reserve = |index| Operation::Reserve { index, reservation: &reservation };
        let operations =
            [reserve(0), reserve(1), Operation::Refund(&one), Operation::Refund(&rest)];
        let mut per_command = if self.is_single_key() { 1 } else { MAX_OPERATIONS };
        let mut form = Form::Digest;
        loop {
            let calls =
                operations.chunks(per_command).map(|operations| ScriptCall { operations, now });
            let mut commands = Pipeline::new();
            for call in calls.clone() {
                commands.add_command(call.command(&self.prefix, form, source));
            }
            let replies = connection.send_packed_commands(&commands, 0, commands.len()).await?;
            let several = |error: &ServerError| ["ERR", "CROSSSLOT"].contains(&error.code());
            if per_command > 1
                && matches!(replies.first(), Some(Value::ServerError(error)) if several(error))
            {
                // A proxy in front of shards may refuse several keys, even if all of them are the
                // same key.
                self.set_single_key(true);
                per_command = 1;
                continue;
            }
            let answers: Vec<_> =
                replies.iter().zip(calls).flat_map(|(reply, call)| call.read(reply).0).collect();
            if form == Form::Text || !answers.contains(&ScriptAnswer::Rejected(Rejection::NoScript))
            {
                return Ok(answers);
            }
            form = Form::Text;
        }
    }

    /// What the answers to a probe show.
    fn verdict(&self, answers: &[ScriptAnswer]) -> Verdict {
        let mut verdict = if answers.is_empty() { Verdict::Unknown } else { Verdict::Counts };
        for answer in answers {
            match answer {
                ScriptAnswer::Rejected(Rejection::NotNow(code)) if code == "READONLY" => {
                    return Verdict::NotPrimary(format!(
                        "refuses writes (READONLY), as replicas do: {}",
                        point_elsewhere(self.topology)
                    ));
                }
                ScriptAnswer::Rejected(Rejection::NotNow(code)) if code != "TRYAGAIN" => {
                    return Verdict::Fails(Trouble::Refuses(advice(code)));
                }
                ScriptAnswer::Rejected(_) | ScriptAnswer::OtherWindow(_) => {
                    verdict = Verdict::Unknown
                }
                ScriptAnswer::Failed(StoreError::Refused(reason)) if lacks_rights(reason) => {
                    return Verdict::Fails(Trouble::Rights(format!(
                        "does not let the store count: {reason}"
                    )));
                }
                ScriptAnswer::Failed(StoreError::Refused(reason)) => {
                    let advice = refuses_all(reason).map(advice);
                    let advice = advice.unwrap_or_else(|| format!("does not count: {reason}"));
                    return Verdict::Fails(Trouble::Refuses(advice));
                }
                _ => {}
            }
        }
        verdict
    }
}

/// What is wrong with a server that refuses everything, and the remedy.
fn advice(code: &str) -> String {
    let advice = match code {
        "OOM" => "is full and refuses writes (OOM): give it more memory (maxmemory)",
        "MISCONF" => {
            "cannot save its data and refuses writes (MISCONF): see its log, and free its disk"
        }
        "NOREPLICAS" => {
            "refuses writes (NOREPLICAS): it has fewer replicas than min-replicas-to-write asks for"
        }
        "CLUSTERDOWN" => {
            "refuses to serve (CLUSTERDOWN): a part of the cluster's slots has no primary"
        }
        code => return format!("cannot serve now ({code})"),
    };
    advice.to_owned()
}
