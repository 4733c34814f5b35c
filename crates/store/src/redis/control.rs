//! What operators change and see, in Redis.
//!
//! Each domain has hashes and a list of one hash tag (`<prefix>:dials:{<domain>}`, and the same with `overrides`,
//! `policies`, `history`), so that a change, its version and its history are one step; `<prefix>:domains:{*}` names the
//! domains. A command is sent again only after an answer which proves that it was not executed.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::future::FutureExt;
use redis::{Cmd, Value};
use tokio::time::sleep;

use super::node::Node;
use super::script::{self, Answer, Form};
use super::{Redis, Topology};
use crate::control::{
    Change, ControlStore, FoundKeys, HashName, Key, KeyState, MAX_FIELDS, MAX_HISTORY, MAX_VALUE, Reply,
    Snapshot, Upsert,
};
use crate::error::StoreError;

static DIGEST: LazyLock<String> =
    LazyLock::new(|| sha1_smol::Sha1::from(script::CONTROL).digest().to_string());

/// The longest that a command may take, with all that it is sent again.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most times that a command is sent.
const TRIES: u32 = 32;
/// The pause after the first "not now"; doubles.
const NOT_NOW: Duration = Duration::from_millis(5);

impl Redis {
    /// Runs the script on keys of one hash tag.
    async fn run(&self, keys: &[String], arguments: &[&[u8]]) -> Result<(Duration, Vec<Value>), StoreError> {
        let home = keys.first().map_or("", String::as_str);
        let command = |form: Form| {
            let mut command = Cmd::new();
            match form {
                Form::Digest => command.arg("EVALSHA").arg(DIGEST.as_str()),
                Form::Text => command.arg("EVAL").arg(script::CONTROL),
            };
            command.arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        let Value::Array(values) = self.tell(home, command).await? else { return Err(nonsense()) };
        let mut values = values.into_iter();
        let now = values.next().as_ref().and_then(whole).ok_or_else(nonsense)?;
        Ok((Duration::from_millis(now), values.collect()))
    }

    /// Sends a command to the server of the hash tag in `key`, until it is executed or fails.
    async fn tell(&self, key: &str, command: impl Fn(Form) -> Cmd) -> Result<Value, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        let mut route: Option<(Arc<Node>, bool)> = None;
        let (mut form, mut pause) = (Form::Digest, NOT_NOW);
        let mut last = StoreError::Unreachable("no primary is known for this key's slot".to_owned());
        for _ in 0..TRIES {
            if Instant::now() >= deadline {
                break;
            }
            let Some((node, asking)) = route.take().or_else(|| self.owner(key).map(|node| (node, false)))
            else {
                self.suspect();
                sleep(pause).await;
                pause *= 2;
                continue;
            };
            let (link, reply) = match self.one(&node, command(form), asking, deadline).await {
                Ok(answered) => answered,
                // It was never sent.
                Err(error @ StoreError::Unreachable(_)) => {
                    self.suspect();
                    last = error;
                    sleep(pause).await;
                    pause *= 2;
                    continue;
                }
                Err(error) => {
                    self.suspect();
                    return Err(error);
                }
            };
            let Value::ServerError(error) = &reply else { return Ok(reply) };
            self.errors.answer(&reply);
            match script::refusal(error) {
                Answer::NoScript if form == Form::Digest => {
                    form = Form::Text;
                    route = Some((node, asking));
                }
                Answer::Moved(address) => {
                    route = self.redirect(key, &address, false, &node).map(|n| (n, false))
                }
                Answer::Elsewhere(address) => {
                    route = self.redirect(key, &address, true, &node).map(|n| (n, true));
                }
                Answer::NotNow(code) => {
                    if code == "READONLY" {
                        node.give_up(&link);
                    }
                    self.suspect();
                    last = StoreError::Unreachable(format!("{} answers {code}", node.name()));
                    sleep(pause).await;
                    pause *= 2;
                }
                _ => return Err(StoreError::Refused(explain(error, key))),
            }
        }
        Err(last)
    }

    fn hash_key(&self, hash: HashName, domain: &str) -> String {
        let prefix = &self.prefix;
        match hash {
            HashName::Dials => format!("{prefix}:dials:{{{domain}}}"),
            HashName::Overrides => format!("{prefix}:overrides:{{{domain}}}"),
            HashName::Policies => format!("{prefix}:policies:{{{domain}}}"),
            HashName::Domains => format!("{prefix}:domains:{{*}}"),
        }
    }

    fn key_of(&self, key: Key<'_>) -> String {
        match key {
            Key::Override(key) => script::override_key(&self.prefix, key),
            Key::Counter { key, number, .. } => format!("{}:{key}:{number}", self.prefix),
        }
    }
}

impl ControlStore for Redis {
    fn backend(&self) -> &'static str {
        self.backend
    }

    fn durable(&self) -> bool {
        true
    }

    fn read<'a>(&'a self, hash: HashName, domain: &'a str) -> Reply<'a, Snapshot> {
        async move {
            let (fields, bytes) = (MAX_FIELDS.to_string(), MAX_VALUE.to_string());
            let arguments = [&b"read"[..], fields.as_bytes(), bytes.as_bytes()];
            let (now, values) = self.run(&[self.hash_key(hash, domain)], &arguments).await?;
            let [version, left_out, rest @ ..] = values.as_slice() else { return Err(nonsense()) };
            let (version, mut left_out) =
                (whole(version).ok_or_else(nonsense)?, whole(left_out).ok_or_else(nonsense)?);
            let mut fields = Vec::with_capacity(rest.len() / 2);
            for pair in rest.chunks_exact(2) {
                match pair {
                    [Value::BulkString(name), Value::BulkString(value)] => match str::from_utf8(name) {
                        Ok(name) => fields.push((name.to_owned(), value.clone())),
                        Err(_) => left_out = left_out.saturating_add(1),
                    },
                    _ => return Err(nonsense()),
                }
            }
            Ok(Snapshot::within_bounds(fields.into_iter(), now, version, left_out))
        }
        .boxed()
    }

    fn change<'a>(&'a self, domain: &'a str, change: &'a Change) -> Reply<'a, Option<u64>> {
        async move {
            let keys = [
                self.hash_key(HashName::Dials, domain),
                self.hash_key(change.hash, domain),
                format!("{}:history:{{{domain}}}", self.prefix),
            ];
            let flag = |value: &Option<Vec<u8>>| if value.is_some() { &b"1"[..] } else { b"0" };
            let bytes = |value: &'a Option<Vec<u8>>| value.as_deref().unwrap_or_default();
            let (most, largest) = (MAX_HISTORY.to_string(), MAX_VALUE.to_string());
            let arguments = [
                &b"change"[..],
                change.field.as_bytes(),
                flag(&change.old),
                bytes(&change.old),
                flag(&change.new),
                bytes(&change.new),
                bytes(&change.event),
                most.as_bytes(),
                largest.as_bytes(),
            ];
            let (_, values) = self.run(&keys, &arguments).await?;
            match values.as_slice() {
                [Value::Int(-1)] => Ok(None),
                [version] => whole(version).map(Some).ok_or_else(nonsense),
                _ => Err(nonsense()),
            }
        }
        .boxed()
    }

    fn upsert<'a>(&'a self, hash: HashName, domain: &'a str, upsert: &'a Upsert) -> Reply<'a, ()> {
        async move {
            let [most, dead] = [upsert.max_fields, upsert.delete.len()].map(|number| number.to_string());
            let keep = upsert.keep_for.as_millis().to_string();
            let mut arguments = vec![&b"upsert"[..], most.as_bytes(), keep.as_bytes(), dead.as_bytes()];
            arguments.extend(upsert.delete.iter().map(|name| name.as_bytes()));
            let fields = upsert.fields.iter();
            arguments.extend(fields.flat_map(|(name, value)| [name.as_bytes(), value.as_slice()]));
            self.run(&[self.hash_key(hash, domain)], &arguments).await.map(drop)
        }
        .boxed()
    }

    fn history<'a>(&'a self, domain: &'a str, limit: usize) -> Reply<'a, Vec<Vec<u8>>> {
        async move {
            let key = format!("{}:history:{{{domain}}}", self.prefix);
            let limit = limit.to_string();
            let (_, values) = self.run(&[key], &[b"history", limit.as_bytes()]).await?;
            let entry = |value| if let Value::BulkString(entry) = value { Some(entry) } else { None };
            Ok(values.into_iter().filter_map(entry).collect())
        }
        .boxed()
    }

    fn get<'a>(&'a self, key: Key<'a>) -> Reply<'a, KeyState> {
        async move {
            let name = self.key_of(key);
            let home = self.owner(key.counter());
            let simple = |name: &'static str| move |_| redis::cmd(name);
            let of_key = |command: &'static str| {
                let name = &name;
                move |_| {
                    let mut command = redis::cmd(command);
                    command.arg(name);
                    command
                }
            };
            // The clock of the server that counts it; asked for in any case, to see a window's end.
            let now = match self.tell(key.counter(), simple("TIME")).await? {
                Value::Array(parts) => clock(&parts).ok_or_else(nonsense)?,
                _ => return Err(nonsense()),
            };
            home.inspect(|node| node.observe(now));
            let value = match self.tell(key.counter(), of_key("GET")).await? {
                Value::BulkString(value) => Some(String::from_utf8_lossy(&value).into_owned()),
                _ => None,
            };
            let ttl_ms = match (&value, key) {
                (Some(_), Key::Override(_)) => whole(&self.tell(key.counter(), of_key("PTTL")).await?),
                _ => None,
            };
            Ok(KeyState { now, value, ttl_ms })
        }
        .boxed()
    }

    fn find<'a>(&'a self, domain: &'a str, entry: &'a str, most: usize) -> Reply<'a, FoundKeys> {
        self.search(domain, entry, most).boxed()
    }

    fn set_override<'a>(&'a self, key: &'a str, value: &'a str, for_ms: Option<u64>) -> Reply<'a, ()> {
        async move {
            let set = |_| {
                let mut set = redis::cmd("SET");
                set.arg(script::override_key(&self.prefix, key)).arg(value);
                if let Some(for_ms) = for_ms {
                    set.arg("PX").arg(for_ms);
                }
                set
            };
            self.tell(key, set).await.map(drop)
        }
        .boxed()
    }

    fn delete<'a>(&'a self, key: Key<'a>) -> Reply<'a, bool> {
        async move {
            let name = self.key_of(key);
            let delete = |_| {
                let mut delete = redis::cmd("DEL");
                delete.arg(&name);
                delete
            };
            Ok(matches!(self.tell(key.counter(), delete).await?, Value::Int(count) if count > 0))
        }
        .boxed()
    }
}

/// What operators call the backend.
pub(super) const fn backend(topology: &Topology, sentinel: bool) -> &'static str {
    match topology {
        Topology::Cluster(_) => "redis-cluster",
        Topology::One(_) if sentinel => "redis-sentinel",
        Topology::One(_) => "redis",
    }
}

fn clock(parts: &[Value]) -> Option<Duration> {
    let number = |value: &Value| match value {
        Value::BulkString(text) => str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [seconds, micros] = parts else { return None };
    Some(Duration::from_secs(number(seconds)?).saturating_add(Duration::from_micros(number(micros)?)))
}

/// What an operator can do about an error.
pub(super) fn explain(error: &redis::ServerError, key: &str) -> String {
    let (code, detail) = (error.code(), error.details().unwrap_or_default());
    if script::lacks_rights(&format!("{code} {detail}")) {
        return format!("the store's user in Redis lacks a right that operating needs: {detail}");
    }
    if code == "WRONGTYPE" || detail.contains("WRONGTYPE") {
        return format!("{key} is not of the type that quotagate writes: somebody else wrote it; delete it");
    }
    format!("{code} {detail}")
}

fn whole(value: &Value) -> Option<u64> {
    if let Value::Int(number) = value { u64::try_from(*number).ok() } else { None }
}

pub(super) fn nonsense() -> StoreError {
    StoreError::Refused("an answer that is none of the script's".to_owned())
}
