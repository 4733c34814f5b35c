//! Whether a server that answers also counts.
//!
//! Each look carries out the counters' script on a counter of the store's own. It takes a unit, takes another one and
//! refunds both, which is everything that the script does, and leaves no key behind. So a server that is full, or
//! that must not write, or a user without rights is found before requests find it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use quotagate_quota::protocol::{Refund, Reservation, Window};
use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, ServerError, Value};

use super::cluster::{SLOTS, tag_of};
use super::rights;
use super::script::{self, Answer, Deed, Form, Override, TOGETHER};
use crate::store::{CheckedReservation, StoreError};

/// Length of the probe's window in seconds. A counter that was left behind, because a refund failed, ends with it.
const WINDOW_S: u32 = 60;

/// Why a server that answers does not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The store's user lacks rights.
    Rights(String),
    /// The server refuses to count now.
    Refuses(String),
}

/// Hash tags of the first and of the last slot.
static ENDS: LazyLock<[String; 2]> = LazyLock::new(|| [0, SLOTS - 1].map(tag_of));
const OF_A_CLUSTER: &str = "is a node of a Redis Cluster: use redis-cluster://";

impl Trouble {
    /// The reason, in words.
    pub fn reason(&self) -> &str {
        match self {
            Self::Rights(reason) | Self::Refuses(reason) => reason,
        }
    }
}

/// What a look found.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// The server counts.
    Counts,
    /// It does not.
    Fails(Trouble),
    /// Nothing is learned: the slot is on its way to another node, or none is known.
    Nothing,
    /// The server must not be used: it is no primary, for this reason.
    NoPrimary(String),
}

/// How a server is looked at, and what that has shown of it.
#[derive(Debug)]
pub struct Probe {
    prefix: String,
    /// Whom the store logs in as.
    user: String,
    /// Whether the server is a node of a cluster: its slots say what it is there for.
    clustered: bool,
    /// A hash tag of a slot that the node owns, and this slot.
    tag: Mutex<Option<(u16, String)>>,
    /// Commands must hold one counter each: several servers stand behind the address.
    apart: AtomicBool,
    /// A script reads only keys that its command declares.
    declares: AtomicBool,
}

impl Probe {
    /// Of a server where keys begin with `prefix` and the store logs in as `user`.
    pub fn new(prefix: &str, user: String, clustered: bool) -> Self {
        Self {
            prefix: prefix.to_owned(),
            user,
            clustered,
            tag: Mutex::new((!clustered).then(|| (0, "0".to_owned()))),
            apart: AtomicBool::new(false),
            declares: AtomicBool::new(false),
        }
    }

    /// Learns a slot that the node of a cluster owns.
    pub fn own(&self, slot: u16) {
        let mut tag = self.tag.lock().unwrap_or_else(PoisonError::into_inner);
        if tag.as_ref().is_none_or(|(known, _)| *known != slot) {
            *tag = Some((slot, tag_of(slot)));
        }
    }

    /// Whether commands must hold one counter each.
    pub fn keeps_apart(&self) -> bool {
        self.apart.load(Relaxed)
    }

    /// Learns whether commands must hold one counter each.
    pub fn keep_apart(&self, apart: bool) {
        self.apart.store(apart, Relaxed);
    }

    /// Where the script finds overrides on this server.
    pub fn over(&self) -> Override {
        if self.declares.load(Relaxed) { Override::Declared } else { Override::InItsKey }
    }

    /// What the user may not do of what counting needs, and the command that grants it.
    ///
    /// # Errors
    /// When no answer came.
    pub async fn rights(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<rights::Missing, RedisError> {
        let tag = self.tag().unwrap_or_default();
        let key = format!("{}:probe:{{{tag}}}:0", self.prefix);
        rights::ask(connection, &self.prefix, &key, self.clustered).await
    }

    /// Looks whether the server counts, by its own clock. `rights` says that the user's rights are in doubt.
    ///
    /// # Errors
    /// When no answer came.
    pub async fn look(
        &self,
        connection: &mut MultiplexedConnection,
        name: &str,
        now: Duration,
        rights: bool,
    ) -> Result<Found, RedisError> {
        if !self.clustered
            && let Some(why) = role(connection).await?.no_primary()
        {
            return Ok(Found::NoPrimary(why));
        }
        if !self.clustered && self.redirects(connection).await? {
            return Ok(Found::NoPrimary(OF_A_CLUSTER.to_owned()));
        }
        let (tag, mut answers) = match self.tag() {
            Some(tag) => (tag.clone(), self.count(connection, &tag, now, &self.over()).await?),
            None if rights => (String::new(), Vec::new()),
            None => return Ok(Found::Nothing),
        };
        let unread = |answers: &[Answer]| answers.contains(&Answer::OverrideElsewhere);
        if rights || unread(&answers) || answers.iter().any(lacks_rights) {
            let missing = self.rights(connection).await?;
            if let Some(reason) = missing.needed(&self.user) {
                return Ok(Found::Fails(Trouble::Rights(reason)));
            }
            if let Some(reason) = missing.useful(&self.user).filter(|_| rights) {
                tracing::warn!("{name} {reason}");
            }
        }
        if unread(&answers) && self.over() == Override::InItsKey {
            let declared = self.count(connection, &tag, now, &Override::Declared).await?;
            if declared.iter().any(|answer| matches!(answer, Answer::Granted(_))) {
                tracing::info!(
                    "{name} lets scripts read declared keys only: keys of overrides are declared there"
                );
                self.declares.store(true, Relaxed);
                answers = declared;
            }
        }
        let is_moved = |answer: &Answer| matches!(answer, Answer::Moved(_) | Answer::Elsewhere(_));
        if !self.clustered && answers.iter().any(is_moved) {
            return Ok(Found::NoPrimary(OF_A_CLUSTER.to_owned()));
        }
        Ok(found(&answers))
    }

    /// Whether the server sends the store to another one for the first or the last slot, as a node of a cluster does
    /// that is not alone.
    async fn redirects(&self, connection: &mut MultiplexedConnection) -> Result<bool, RedisError> {
        let mut commands = Pipeline::new();
        for tag in &*ENDS {
            commands.cmd("GET").arg(format!("{}:probe:{{{tag}}}:0", self.prefix));
        }
        let replies = connection.send_packed_commands(&commands, 0, commands.len()).await?;
        let elsewhere = |error: &ServerError| ["MOVED", "ASK"].contains(&error.code());
        Ok(replies.iter().any(|reply| matches!(reply, Value::ServerError(error) if elsewhere(error))))
    }

    fn tag(&self) -> Option<String> {
        let tag = self.tag.lock().unwrap_or_else(PoisonError::into_inner);
        tag.as_ref().map(|(_, tag)| tag.clone())
    }

    /// Takes a unit, takes another one, refunds one, then what is left, so that no key stays.
    async fn count(
        &self,
        connection: &mut MultiplexedConnection,
        tag: &str,
        now: Duration,
        over: &Override,
    ) -> Result<Vec<Answer>, RedisError> {
        let key = format!("probe:{{{tag}}}");
        let reservation = Reservation {
            key: key.clone(),
            window_s: WINDOW_S,
            offset_s: 0,
            quota: 1_000,
            want: 1,
            min: 1,
            spare: 0,
            count_denied: false,
            shadow: false,
        };
        let Some(window) = Window::new(WINDOW_S, 0) else { return Ok(Vec::new()) };
        // Not checked: no domain and policy have this key, so that it meets no counter of a filter.
        let ask = CheckedReservation::within(reservation, window);
        let window = ask.window().number_at(now);
        let refund = |units| Refund { key: key.clone(), window_s: WINDOW_S, window, units };
        let (one, rest) = (refund(1), refund(2));
        let deeds = [
            Deed::Reserve(&ask, window),
            Deed::Reserve(&ask, window),
            Deed::Refund(&one),
            Deed::Refund(&rest),
        ];
        let mut together = if self.keeps_apart() { 1 } else { TOGETHER };
        let mut form = Form::Digest;
        loop {
            let mut commands = Pipeline::new();
            for deeds in deeds.chunks(together) {
                commands.add_command(script::command(&self.prefix, deeds, form, over));
            }
            let replies = connection.send_packed_commands(&commands, 0, commands.len()).await?;
            let several = |error: &ServerError| ["ERR", "CROSSSLOT"].contains(&error.code());
            if together > 1 && matches!(replies.first(), Some(Value::ServerError(error)) if several(error)) {
                // A proxy in front of shards may refuse several keys, even if they are the same one.
                self.keep_apart(true);
                together = 1;
                continue;
            }
            let read = |(reply, deeds): (&Value, _)| script::read(reply, deeds).0;
            let answers: Vec<_> = replies.iter().zip(deeds.chunks(together)).flat_map(read).collect();
            if form == Form::Text || !answers.contains(&Answer::NoScript) {
                return Ok(answers);
            }
            form = Form::Text;
        }
    }
}

fn lacks_rights(answer: &Answer) -> bool {
    matches!(answer, Answer::Failed(StoreError::Refused(reason)) if script::lacks_rights(reason))
}

/// What the answers to a probe say.
fn found(answers: &[Answer]) -> Found {
    let mut found = if answers.is_empty() { Found::Nothing } else { Found::Counts };
    for answer in answers {
        match answer {
            Answer::Moved(_)
            | Answer::Elsewhere(_)
            | Answer::Apart
            | Answer::NoScript
            | Answer::OtherWindow => found = Found::Nothing,
            Answer::NotNow(code) if code == "TRYAGAIN" => found = Found::Nothing,
            Answer::NotNow(code) if code == "READONLY" => {
                let why = "refuses writes (READONLY), as replicas do: point --store at the primary, or use \
                           redis-sentinel://";
                return Found::NoPrimary(why.to_owned());
            }
            Answer::NotNow(code) => return Found::Fails(Trouble::Refuses(advise(code))),
            Answer::Failed(StoreError::Refused(reason)) if script::lacks_rights(reason) => {
                return Found::Fails(Trouble::Rights(format!("does not let the store count: {reason}")));
            }
            Answer::Failed(StoreError::Refused(reason)) => {
                let advice = script::refuses_all(reason).map(advise);
                let advice = advice.unwrap_or_else(|| format!("does not count: {reason}"));
                return Found::Fails(Trouble::Refuses(advice));
            }
            _ => {}
        }
    }
    found
}

/// What is wrong, and what an operator can do.
fn advise(code: &str) -> String {
    let advice = match code {
        "OOM" => "is full and refuses writes (OOM): give it more memory (maxmemory)",
        "MISCONF" => "cannot save its data and refuses writes (MISCONF): see its log, and free its disk",
        "NOREPLICAS" => {
            "refuses writes (NOREPLICAS): it has fewer replicas than min-replicas-to-write asks for"
        }
        "CLUSTERDOWN" => "refuses to serve (CLUSTERDOWN): a part of the cluster's slots has no primary",
        code => return format!("cannot serve now ({code})"),
    };
    advice.to_owned()
}

/// What a server says of its role.
#[derive(Debug, PartialEq, Eq)]
enum Role {
    /// It takes writes.
    Primary,
    /// It follows the server of this address.
    Replica(String),
    /// It is a sentinel.
    Sentinel,
    /// It does not say.
    Unknown,
}

impl Role {
    /// Why it is no server to count on, as far as it says.
    fn no_primary(&self) -> Option<String> {
        match self {
            Self::Primary | Self::Unknown => None,
            Self::Replica(of) => {
                Some(format!("is a replica of {of}: point --store at the primary, or use redis-sentinel://"))
            }
            Self::Sentinel => Some("is a sentinel: use redis-sentinel://".to_owned()),
        }
    }
}

/// Asks a server for its role.
///
/// # Errors
/// When no answer came.
async fn role(connection: &mut MultiplexedConnection) -> Result<Role, RedisError> {
    let mut ask = Pipeline::new();
    ask.cmd("ROLE");
    let replies = connection.send_packed_commands(&ask, 0, 1).await?;
    let Some(Value::Array(fields)) = replies.first() else { return Ok(Role::Unknown) };
    Ok(match fields.as_slice() {
        [Value::BulkString(role), ..] if role == b"master" => Role::Primary,
        [Value::BulkString(role), Value::BulkString(host), Value::Int(port), ..] if role == b"slave" => {
            Role::Replica(format!("{}:{port}", String::from_utf8_lossy(host)))
        }
        [Value::BulkString(role), ..] if role == b"sentinel" => Role::Sentinel,
        _ => Role::Unknown,
    })
}
