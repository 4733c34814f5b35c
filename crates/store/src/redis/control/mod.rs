//! The [`ControlStore`] in Redis.
//!
//! Each domain has hashes and a list with one hash tag (`<prefix>:dials:{<domain>}`, and the same
//! with `overrides`, `policies`, `documents`, `texts` and `history`), so that a change, its version
//! and its history are one step. `<prefix>:domains:{*}` names the domains, and
//! `<prefix>:publishers:{*}` the processes that publish what they saw: each in
//! `<prefix>:published:{<id>}`.

mod search;

use std::time::{Duration, Instant};

use futures_util::future::FutureExt;
use quotagate_protocol::MAX_UNITS;
use redis::{Cmd, ServerError, Value};

use super::backend::Redis;
use super::node::Topology;
use super::routing::{Router, Urgency};
use super::script::{CONTROL, Form, counter_key, lacks_rights, override_key, quota_key, whole};
use crate::control::{
    Change, ChangesVersion, ControlStore, CounterPage, FoundKeys, HashName, KeptCounters, Key,
    KeyState, LAST_DOCUMENT, MAX_HISTORY, MAX_VALUE, Publication, Released, Reply, SlotsState,
    Snapshot, Upsert,
};
use crate::in_flight::{Slots, WorkerField};
use crate::sliding::Slices;
use crate::store::StoreError;
use crate::window::CounterId;

/// The longest that a command may take, with all its repetitions.
const LIMIT: Duration = Duration::from_secs(2);

impl Redis {
    /// Runs the script on keys with one hash tag. Returns the server's clock, and the values after
    /// it.
    async fn run(
        &self,
        keys: &[String],
        arguments: &[&[u8]],
    ) -> Result<(Duration, Vec<Value>), StoreError> {
        let command = |form: Form| {
            let mut command = Cmd::new();
            CONTROL.call(&mut command, form);
            command.arg(keys.len()).arg(keys).arg(arguments);
            command
        };
        let key = keys.first().map_or("", String::as_str);
        let Value::Array(values) = self.execute(key, command).await? else {
            return Err(unexpected());
        };
        let mut values = values.into_iter();
        let now = values.next().as_ref().and_then(whole).ok_or_else(unexpected)?;
        Ok((Duration::from_millis(now), values.collect()))
    }

    /// Sends a command to the server of `key`, until it is executed or fails.
    async fn execute(&self, key: &str, command: impl Fn(Form) -> Cmd) -> Result<Value, StoreError> {
        let router = Router::new(self, key, Urgency::Operator, Instant::now() + LIMIT);
        match self.query(router, command).await? {
            Value::ServerError(error) => Err(StoreError::Refused(explain(&error, key))),
            reply => Ok(reply),
        }
    }

    fn hash_key(&self, hash: HashName, domain: &str) -> String {
        let prefix = &self.prefix;
        match hash {
            HashName::Dials => format!("{prefix}:dials:{{{domain}}}"),
            HashName::Overrides => format!("{prefix}:overrides:{{{domain}}}"),
            HashName::Policies => format!("{prefix}:policies:{{{domain}}}"),
            HashName::Domains => format!("{prefix}:domains:{{*}}"),
            HashName::Publishers => format!("{prefix}:publishers:{{*}}"),
            HashName::Published => format!("{prefix}:published:{{{domain}}}"),
            HashName::Documents => format!("{prefix}:documents:{{{domain}}}"),
        }
    }

    /// The key of the texts of published documents.
    fn texts_key(&self, domain: &str) -> String {
        format!("{}:texts:{{{domain}}}", self.prefix)
    }

    /// The slots of a counter's key, and the time of the server that counts them.
    async fn read_slots(&self, key: &str) -> Result<(Duration, Slots), StoreError> {
        let name = counter_key(&self.prefix, key, CounterId::InFlight);
        let run = async |command: &'static str, name: Option<&str>| {
            let command = |_| {
                let mut command = redis::cmd(command);
                command.arg(name);
                command
            };
            self.execute(key, command).await
        };
        let (time, fields) = tokio::join!(run("TIME", None), run("HGETALL", Some(&name)));
        let Value::Array(parts) = time? else { return Err(unexpected()) };
        let now = clock(&parts).ok_or_else(unexpected)?;
        let fields = match fields? {
            Value::Array(values) => {
                let mut values = values.into_iter();
                std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect()
            }
            Value::Map(fields) => fields,
            _ => return Err(unexpected()),
        };
        Ok((now, Slots::parse(fields.iter().filter_map(field_of))))
    }

    fn key_of(&self, key: Key<'_>) -> String {
        match key {
            Key::Override(key) => override_key(&self.prefix, key),
            Key::Counter { key, id } => counter_key(&self.prefix, key, id),
        }
    }
}

impl ControlStore for Redis {
    fn backend(&self) -> &'static str {
        match self.topology {
            Topology::Single => "redis",
            Topology::Sentinel => "redis-sentinel",
            Topology::Cluster => "redis-cluster",
        }
    }

    fn durable(&self) -> bool {
        true
    }

    fn read<'a>(&'a self, hash: HashName, domain: &'a str) -> Reply<'a, Snapshot> {
        async move {
            let (fields, bytes) = (hash.max_fields().to_string(), MAX_VALUE.to_string());
            let arguments = [&b"read"[..], fields.as_bytes(), bytes.as_bytes()];
            let (now, values) = self.run(&[self.hash_key(hash, domain)], &arguments).await?;
            let [number, at_us, left_out, rest @ ..] = values.as_slice() else {
                return Err(unexpected());
            };
            let read = |value| whole(value).ok_or_else(unexpected);
            let version = ChangesVersion { number: read(number)?, at_us: read(at_us)? };
            let mut left_out = read(left_out)?;
            let mut fields = Vec::with_capacity(rest.len() / 2);
            for pair in rest.chunks_exact(2) {
                match pair {
                    [Value::BulkString(name), Value::BulkString(value)] => {
                        match str::from_utf8(name) {
                            Ok(name) => fields.push((name.to_owned(), value.clone())),
                            Err(_) => left_out = left_out.saturating_add(1),
                        }
                    }
                    _ => return Err(unexpected()),
                }
            }
            Ok(Snapshot::within_bounds(hash, fields.into_iter(), now, version, left_out))
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
            let (max_history, max_value) = (MAX_HISTORY.to_string(), MAX_VALUE.to_string());
            let arguments = [
                &b"change"[..],
                change.field.as_bytes(),
                flag(&change.old),
                bytes(&change.old),
                flag(&change.new),
                bytes(&change.new),
                bytes(&change.event),
                max_history.as_bytes(),
                max_value.as_bytes(),
            ];
            let (_, values) = self.run(&keys, &arguments).await?;
            new_version(&values)
        }
        .boxed()
    }

    fn publish<'a>(
        &'a self,
        domain: &'a str,
        publication: &'a Publication,
    ) -> Reply<'a, Option<u64>> {
        async move {
            let keys = [
                self.hash_key(HashName::Dials, domain),
                self.hash_key(HashName::Documents, domain),
                self.texts_key(domain),
                format!("{}:history:{{{domain}}}", self.prefix),
            ];
            let Publication { old, number, record, last, text, dropped, event } = publication;
            let (number, max_history) = (number.to_string(), MAX_HISTORY.to_string());
            let dropped = dropped.map_or_else(String::new, |dropped| dropped.to_string());
            let max_value = MAX_VALUE.to_string();
            let arguments = [
                &b"publish"[..],
                LAST_DOCUMENT.as_bytes(),
                old.as_deref().unwrap_or_default(),
                number.as_bytes(),
                record,
                last,
                text.as_deref().unwrap_or_default(),
                dropped.as_bytes(),
                event,
                max_history.as_bytes(),
                max_value.as_bytes(),
            ];
            let (_, values) = self.run(&keys, &arguments).await?;
            new_version(&values)
        }
        .boxed()
    }

    fn document<'a>(&'a self, domain: &'a str, number: u64) -> Reply<'a, Option<Vec<u8>>> {
        async move {
            let key = self.texts_key(domain);
            let command = |_| {
                let mut command = redis::cmd("HGET");
                command.arg(&key).arg(number);
                command
            };
            match self.execute(&key, command).await? {
                Value::BulkString(text) => Ok(Some(text)),
                Value::Nil => Ok(None),
                _ => Err(unexpected()),
            }
        }
        .boxed()
    }

    fn forget_documents<'a>(&'a self, domain: &'a str, last: Option<&'a [u8]>) -> Reply<'a, bool> {
        async move {
            let keys = [self.hash_key(HashName::Documents, domain), self.texts_key(domain)];
            let max_value = MAX_VALUE.to_string();
            let arguments = [
                &b"forget"[..],
                LAST_DOCUMENT.as_bytes(),
                last.unwrap_or_default(),
                max_value.as_bytes(),
            ];
            let (_, values) = self.run(&keys, &arguments).await?;
            new_version(&values).map(|done| done.is_some())
        }
        .boxed()
    }

    fn upsert<'a>(&'a self, hash: HashName, domain: &'a str, upsert: &'a Upsert) -> Reply<'a, ()> {
        async move {
            let [max, deleted] =
                [upsert.max_fields, upsert.delete.len()].map(|number| number.to_string());
            let keep = upsert.keep_for.as_millis().to_string();
            let mut arguments =
                vec![&b"upsert"[..], max.as_bytes(), keep.as_bytes(), deleted.as_bytes()];
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
            let entry =
                |value| if let Value::BulkString(entry) = value { Some(entry) } else { None };
            Ok(values.into_iter().filter_map(entry).collect())
        }
        .boxed()
    }

    fn get<'a>(&'a self, key: Key<'a>) -> Reply<'a, KeyState> {
        async move {
            if let Key::Counter { key, id: CounterId::InFlight } = key {
                let (now, slots) = self.read_slots(key).await?;
                if !slots.is_in_use(now) {
                    return Ok(KeyState { now, ..KeyState::default() });
                }
                return Ok(KeyState {
                    now,
                    value: Some(slots.held(now).to_string()),
                    ttl_ms: u64::try_from(slots.end().saturating_sub(now).as_millis()).ok(),
                    own_quota: slots.own_quota(now),
                });
            }
            let name = &self.key_of(key);
            let home = self.owner(key.counter());
            let run = async |command: &'static str, name: Option<&str>| {
                let command = |_| {
                    let mut command = redis::cmd(command);
                    command.arg(name);
                    command
                };
                self.execute(key.counter(), command).await
            };
            let beside = async || match key {
                Key::Override(_) => run("PTTL", Some(name)).await,
                Key::Counter { .. } => run("GET", Some(&quota_key(name))).await,
            };
            // The clock of the server that counts this key. It is read even without a counter, to
            // see a window's end. All three are sent at once, in this order.
            let (time, value, beside) =
                tokio::join!(run("TIME", None), run("GET", Some(name)), beside());
            let now = match time? {
                Value::Array(parts) => clock(&parts).ok_or_else(unexpected)?,
                _ => return Err(unexpected()),
            };
            home.inspect(|node| node.observe(now));
            let none = KeyState { now, ..KeyState::default() };
            let (Value::BulkString(value), beside) = (value?, beside?) else { return Ok(none) };
            let text = |value: Vec<u8>| Some(String::from_utf8_lossy(&value).into_owned());
            let Key::Counter { id, .. } = key else {
                return Ok(KeyState { value: text(value), ttl_ms: whole(&beside), ..none });
            };
            let own_quota = match beside {
                Value::BulkString(quota) => str::from_utf8(&quota).ok().and_then(read_units),
                _ => None,
            };
            let CounterId::Sliding(window) = id else {
                return Ok(KeyState { value: text(value), own_quota, ..none });
            };
            let Some(mut slices) = Slices::parse(&value) else { return Ok(none) };
            slices.advance(window.slice_at(now));
            let end = Duration::from_millis(slices.end_ms(window));
            let ttl_ms = u64::try_from(end.saturating_sub(now).as_millis()).ok();
            Ok(KeyState { value: Some(slices.used().to_string()), ttl_ms, own_quota, ..none })
        }
        .boxed()
    }

    fn find<'a>(
        &'a self,
        domain: &'a str,
        entry: &'a str,
        kept: KeptCounters,
        max: usize,
    ) -> Reply<'a, FoundKeys> {
        self.search(domain, entry, kept, max).boxed()
    }

    fn page<'a>(
        &'a self,
        domain: &'a str,
        policy: &'a str,
        kept: KeptCounters,
        from: Option<&'a str>,
    ) -> Reply<'a, CounterPage> {
        self.page_of(domain, policy, kept, from).boxed()
    }

    fn set_override<'a>(
        &'a self,
        key: &'a str,
        value: &'a str,
        for_ms: Option<u64>,
    ) -> Reply<'a, ()> {
        async move {
            let set = |_| {
                let mut set = redis::cmd("SET");
                set.arg(override_key(&self.prefix, key)).arg(value);
                if let Some(for_ms) = for_ms {
                    set.arg("PX").arg(for_ms);
                }
                set
            };
            self.execute(key, set).await.map(drop)
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
            Ok(matches!(self.execute(key.counter(), delete).await?, Value::Int(count) if count > 0))
        }
        .boxed()
    }

    fn slots<'a>(&'a self, key: &'a str) -> Reply<'a, SlotsState> {
        async move {
            let (now, slots) = self.read_slots(key).await?;
            Ok(slots.state(now))
        }
        .boxed()
    }

    fn release<'a>(&'a self, key: &'a str, of: Option<&'a str>) -> Reply<'a, Released> {
        async move {
            let hash = counter_key(&self.prefix, key, CounterId::InFlight);
            let arguments = [&b"release"[..], of.unwrap_or_default().as_bytes()];
            let (now, values) = self.run(&[hash], &arguments).await?;
            let mut released = Released::default();
            for value in &values {
                let Value::BulkString(value) = value else { return Err(unexpected()) };
                let field = WorkerField::parse(value);
                match field.map(|field| (field.is_placeholder(), field.held_at(now))) {
                    Some((_, 0)) => {}
                    Some((false, held)) => released.add(held),
                    Some((true, _)) | None => {
                        released.unreadable = released.unreadable.saturating_add(1)
                    }
                }
            }
            Ok(released)
        }
        .boxed()
    }
}

/// The name and the value of a field.
fn field_of((name, value): &(Value, Value)) -> Option<(&[u8], &[u8])> {
    match (name, value) {
        (Value::BulkString(name), Value::BulkString(value)) => Some((name, value)),
        _ => None,
    }
}

fn read_units(text: &str) -> Option<u64> {
    text.parse().ok().filter(|units| *units <= MAX_UNITS)
}

fn clock(parts: &[Value]) -> Option<Duration> {
    let number = |value: &Value| match value {
        Value::BulkString(text) => str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [seconds, micros] = parts else { return None };
    Some(
        Duration::from_secs(number(seconds)?)
            .saturating_add(Duration::from_micros(number(micros)?)),
    )
}

/// What is wrong, and what an operator can do about it.
fn explain(error: &ServerError, key: &str) -> String {
    let (code, detail) = (error.code(), error.details().unwrap_or_default());
    if lacks_rights(&format!("{code} {detail}")) {
        return format!("the store's user in Redis lacks a right that operating needs: {detail}");
    }
    if code == "WRONGTYPE" || detail.contains("WRONGTYPE") {
        return format!(
            "{key} has another type than quotagate writes, so something else wrote it: delete it"
        );
    }
    format!("{code} {detail}")
}

/// The version after a change; `None` if another change came before it.
fn new_version(values: &[Value]) -> Result<Option<u64>, StoreError> {
    match values {
        [Value::Int(-1)] => Ok(None),
        [version] => whole(version).map(Some).ok_or_else(unexpected),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> StoreError {
    StoreError::unexpected_reply()
}
