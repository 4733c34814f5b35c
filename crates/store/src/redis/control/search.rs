//! Finds the counters of a partition among all keys, in bounded time.
//!
//! The store walks each primary with `SCAN`, which blocks Redis for one step at a time. It can miss
//! only keys that are created or deleted meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Value;
use tokio::time::sleep;

use super::super::backend::Redis;
use super::super::node::Node;
use super::{explain, unexpected};
use crate::control::{FoundKeys, has_entry};
use crate::store::StoreError;
use crate::window::is_counter_id;

/// The longest time that a search takes.
const LIMIT: Duration = Duration::from_secs(2);
/// Keys of one step, which takes Redis about 0.2 ms.
const STEP: u64 = 1000;
/// The pause between two steps, in which Redis serves other clients.
const PAUSE: Duration = Duration::from_micros(500);

impl Redis {
    /// The counters of `domain` whose partition contains this entry, at most `max`.
    pub(super) async fn search(
        &self,
        domain: &str,
        entry: &str,
        max: usize,
    ) -> Result<FoundKeys, StoreError> {
        let nodes = self.primaries();
        let pattern =
            format!("{}:{}:*:{{*{}*}}:*", escaped(&self.prefix), escaped(domain), escaped(entry));
        let deadline = Instant::now() + LIMIT;
        let walks = nodes.iter().map(|node| self.walk(node, &pattern, entry, max, deadline));
        let (mut keys, mut fault) = (BTreeSet::new(), None);
        for walked in join_all(walks).await {
            match walked {
                Ok(found) => {
                    keys.extend(found.keys);
                    fault = fault.or(found.incomplete);
                }
                Err(error) => fault = fault.or(Some(error.to_string())),
            }
        }
        if keys.len() > max {
            fault = Some(format!("more than {max} counters were found"));
        }
        Ok(FoundKeys { keys: keys.into_iter().take(max).collect(), incomplete: fault })
    }

    async fn walk(
        &self,
        node: &Node,
        pattern: &str,
        entry: &str,
        max: usize,
        deadline: Instant,
    ) -> Result<FoundKeys, StoreError> {
        let (mut cursor, mut keys) = ("0".to_owned(), BTreeSet::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
            let reply = match self.send_one(node, scan, false, deadline).await {
                Ok((_, reply)) => reply,
                Err(error) => {
                    let incomplete = Some(error.to_string());
                    return Ok(FoundKeys { keys: keys.into_iter().collect(), incomplete });
                }
            };
            let (next, found) = match reply {
                Value::Array(parts) => page(&parts).ok_or_else(unexpected)?,
                Value::ServerError(error) => {
                    return Err(StoreError::Refused(explain(&error, pattern)));
                }
                _ => return Err(unexpected()),
            };
            let counters = found.iter().filter_map(|key| counter(&self.prefix, key));
            keys.extend(counters.filter(|key| has_entry(key, entry)).map(str::to_owned));
            cursor = next;
            let incomplete = if cursor == "0" {
                None
            } else if keys.len() > max {
                Some(format!("more than {max} counters were found"))
            } else if Instant::now() >= deadline {
                Some(format!(
                    "{} has too many keys to look at all of them within {} s",
                    node.name(),
                    LIMIT.as_secs()
                ))
            } else {
                sleep(PAUSE).await;
                continue;
            };
            return Ok(FoundKeys { keys: keys.into_iter().collect(), incomplete });
        }
    }
}

/// Reads the next cursor, and the keys of one step.
fn page(parts: &[Value]) -> Option<(String, Vec<String>)> {
    let [Value::BulkString(cursor), Value::Array(keys)] = parts else { return None };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    Some((String::from_utf8(cursor.clone()).ok()?, keys.iter().filter_map(text).collect()))
}

/// The counter's key in a key of Redis: without the prefix and the end.
fn counter<'k>(prefix: &str, key: &'k str) -> Option<&'k str> {
    let (counter, id) = key.strip_prefix(prefix)?.strip_prefix(':')?.rsplit_once(':')?;
    (is_counter_id(id) && counter.ends_with('}')).then_some(counter)
}

/// Escapes text for a pattern.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if "*?[]\\^".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
    out
}
