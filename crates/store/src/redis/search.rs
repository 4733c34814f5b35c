//! Looking for the counters of a partition among all keys, bounded in time so that neither operators nor Redis wait for it.
//!
//! Each primary is walked with `SCAN`, which locks nothing for longer than one step. A key may be missed only where it
//! came or went meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Value;
use tokio::time::sleep;

use super::node::Node;
use super::{Redis, Topology};
use crate::control::{FoundKeys, has_entry};
use crate::error::StoreError;

/// The longest that a search takes.
const PATIENCE: Duration = Duration::from_secs(2);
/// Keys that Redis looks at in one step, which takes it some 0.2 ms.
const STEP: u64 = 1000;
/// The pause after a step, in which Redis serves others.
const PAUSE: Duration = Duration::from_micros(500);

impl Redis {
    /// The keys of counters of `domain` whose partition has this entry, `most` at most.
    pub(super) async fn search(
        &self,
        domain: &str,
        entry: &str,
        most: usize,
    ) -> Result<FoundKeys, StoreError> {
        let nodes = match &self.topology {
            Topology::One(node) => vec![node.clone()],
            Topology::Cluster(cluster) => cluster.nodes(),
        };
        let pattern = format!("{}:{}:*:{{*{}*}}:*", escaped(&self.prefix), escaped(domain), escaped(entry));
        let deadline = Instant::now() + PATIENCE;
        let walks = nodes.iter().map(|node| self.walk(node, &pattern, entry, most, deadline));
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
        if keys.len() > most {
            fault = Some(format!("more than {most} counters were found"));
        }
        Ok(FoundKeys { keys: keys.into_iter().take(most).collect(), incomplete: fault })
    }

    async fn walk(
        &self,
        node: &Node,
        pattern: &str,
        entry: &str,
        most: usize,
        deadline: Instant,
    ) -> Result<FoundKeys, StoreError> {
        let (mut cursor, mut keys) = ("0".to_owned(), BTreeSet::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
            let reply = match self.one(node, scan, false, deadline).await {
                Ok((_, reply)) => reply,
                Err(error) => {
                    let incomplete = Some(error.to_string());
                    return Ok(FoundKeys { keys: keys.into_iter().collect(), incomplete });
                }
            };
            let (next, found) = match reply {
                Value::Array(parts) => page(&parts).ok_or_else(super::control::nonsense)?,
                Value::ServerError(error) => {
                    return Err(StoreError::Refused(super::control::explain(&error, pattern)));
                }
                _ => return Err(super::control::nonsense()),
            };
            let own = found.iter().filter_map(|key| counter(&self.prefix, key));
            keys.extend(own.filter(|key| has_entry(key, entry)).map(str::to_owned));
            cursor = next;
            let incomplete = if cursor == "0" {
                None
            } else if keys.len() > most {
                Some(format!("more than {most} counters were found"))
            } else if Instant::now() >= deadline {
                Some(format!(
                    "{} has too many keys to look at all of them within {} s",
                    node.name(),
                    PATIENCE.as_secs()
                ))
            } else {
                sleep(PAUSE).await;
                continue;
            };
            return Ok(FoundKeys { keys: keys.into_iter().collect(), incomplete });
        }
    }
}

/// The next cursor, and the keys of a step.
fn page(parts: &[Value]) -> Option<(String, Vec<String>)> {
    let [Value::BulkString(cursor), Value::Array(keys)] = parts else { return None };
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    Some((String::from_utf8(cursor.clone()).ok()?, keys.iter().filter_map(text).collect()))
}

/// The key of the counter that is kept in `key`: without the prefix and the number of its window.
fn counter<'k>(prefix: &str, key: &'k str) -> Option<&'k str> {
    let (counter, number) = key.strip_prefix(prefix)?.strip_prefix(':')?.rsplit_once(':')?;
    (number.bytes().all(|b| b.is_ascii_digit()) && counter.ends_with('}')).then_some(counter)
}

/// Text as part of a pattern.
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
