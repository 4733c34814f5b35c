//! Finds the counters of a partition among all keys, in bounded time.
//!
//! The store walks each primary with `SCAN`, which blocks Redis for one step at a time. All
//! searches of a store take turns, so that a server never has more than one step of them to do. A
//! search can miss only keys that are created or deleted meanwhile.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_protocol::CounterKey;
use redis::Value;
use tokio::time::{sleep_until, timeout_at};

use super::super::backend::Redis;
use super::super::node::{Node, Topology};
use super::super::routing::in_time;
use super::{explain, unexpected};
use crate::control::{CounterPage, FoundKeys, KeptCounters, has_entry, unknown_page};
use crate::store::StoreError;
use crate::window::is_counter_id;

/// The longest time that a search takes.
const LIMIT: Duration = Duration::from_secs(2);
/// Keys of one step, which takes Redis about 0.2 ms.
const STEP: u64 = 1000;
/// The shortest pause between two steps, in which Redis serves other clients. After a step that
/// took longer, the pause is as long as that step: the more Redis has to do, the less is searched.
const PAUSE: Duration = Duration::from_micros(500);
/// The pause after a step whose search has ended meanwhile.
const ABANDONED: Duration = Duration::from_millis(5);
/// A page ends with this many counters, or after this time.
const MAX_PAGE: usize = 1000;
const PAGE: Duration = Duration::from_secs(1);

impl Redis {
    /// The counters of `domain` whose partition contains this entry, at most `max`.
    pub(super) async fn search(
        &self,
        domain: &str,
        entry: &str,
        kept: KeptCounters,
        max: usize,
    ) -> Result<FoundKeys, StoreError> {
        let nodes = self.primaries();
        let pattern =
            format!("{}:{}:*:{{*{}*}}:*", escaped(&self.prefix), escaped(domain), escaped(entry));
        let deadline = Instant::now() + LIMIT;
        let walks =
            nodes.iter().map(|node| self.walk(node, &pattern, (entry, kept), max, deadline));
        let (mut keys, mut fault) = (BTreeSet::new(), self.uncovered());
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
        (entry, kept): (&str, KeptCounters),
        max: usize,
        deadline: Instant,
    ) -> Result<FoundKeys, StoreError> {
        let (mut cursor, mut keys) = ("0".to_owned(), BTreeSet::new());
        loop {
            let (next, found) = match self.step(node, pattern, kept, &cursor, deadline).await {
                Ok(step) => step,
                Err(error @ StoreError::Refused(_)) => return Err(error),
                Err(error) => {
                    let incomplete = Some(error.to_string());
                    return Ok(FoundKeys { keys: keys.into_iter().collect(), incomplete });
                }
            };
            keys.extend(found.into_iter().filter(|key| has_entry(key, entry)));
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
                continue;
            };
            return Ok(FoundKeys { keys: keys.into_iter().collect(), incomplete });
        }
    }
}

impl Redis {
    /// A page of the counters of a policy: a part of those of one server. Its name is that of the
    /// server and the cursor.
    pub(super) async fn page_of(
        &self,
        domain: &str,
        policy: &str,
        kept: KeptCounters,
        from: Option<&str>,
    ) -> Result<CounterPage, StoreError> {
        let mut nodes = self.primaries();
        nodes.sort_by(|one, other| one.name().cmp(other.name()));
        let (name, mut cursor) = match from.map(|from| from.rsplit_once(' ')) {
            None => (None, "0".to_owned()),
            Some(Some((name, cursor))) => (Some(name), cursor.to_owned()),
            Some(None) => return Err(unknown_page()),
        };
        let mut nodes =
            nodes.iter().skip_while(|node| name.is_some_and(|name| node.name() != name));
        let node = nodes.next().ok_or_else(unknown_page)?;
        let pattern =
            format!("{}:{}:{}:{{*}}:*", escaped(&self.prefix), escaped(domain), escaped(policy));
        let deadline = Instant::now() + LIMIT;
        let full = Instant::now() + PAGE;
        let mut keys = BTreeSet::new();
        loop {
            let (next, found) = match self.step(node, &pattern, kept, &cursor, deadline).await {
                Ok(step) => step,
                // The other servers have their counters all the same.
                Err(error) if error.is_outage() && self.topology == Topology::Cluster => {
                    let next = nodes.next().map(|node| format!("{} 0", node.name()));
                    return Ok(CounterPage { keys, next, incomplete: Some(error.to_string()) });
                }
                Err(error) => return Err(error),
            };
            let own = |key: &String| {
                CounterKey::split(key)
                    .is_some_and(|key| (key.domain, key.policy) == (domain, policy))
            };
            keys.extend(found.into_iter().filter(own));
            cursor = next;
            if cursor == "0" {
                let next = nodes.next().map(|node| format!("{} 0", node.name()));
                let incomplete = self.uncovered().filter(|_| next.is_none());
                return Ok(CounterPage { keys, next, incomplete });
            }
            if keys.len() >= MAX_PAGE || Instant::now() >= full {
                let next = Some(format!("{} {cursor}", node.name()));
                return Ok(CounterPage { keys, next, incomplete: None });
            }
        }
    }

    /// One step of a walk: the cursor of the next one, and the keys of counters.
    async fn step(
        &self,
        node: &Node,
        pattern: &str,
        kept: KeptCounters,
        cursor: &str,
        deadline: Instant,
    ) -> Result<(String, Vec<String>), StoreError> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        let turn = async {
            let turn = node.search_turn().lock().await;
            sleep_until((*turn).into()).await;
            turn
        };
        let busy = |_| StoreError::Unreachable(format!("other searches keep {} busy", node.name()));
        let mut turn = timeout_at(deadline.into(), turn).await.map_err(busy)?;
        let began = Instant::now();
        *turn = began + ABANDONED;
        let sent = in_time(node, self.send_one(node, scan, false, deadline), deadline);
        let answer = sent.await;
        *turn = Instant::now() + began.elapsed().max(PAUSE);
        drop(turn);
        let (next, found) = match answer?.1 {
            Value::Array(parts) => page(&parts).ok_or_else(unexpected)?,
            Value::ServerError(error) => return Err(StoreError::Refused(explain(&error, pattern))),
            _ => return Err(unexpected()),
        };
        let now = node.now().as_secs();
        let counters = found.iter().filter_map(|key| counter(&self.prefix, key, kept, now));
        Ok((next, counters.map(str::to_owned).collect()))
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
fn counter<'k>(prefix: &str, key: &'k str, kept: KeptCounters, now_s: u64) -> Option<&'k str> {
    let (counter, id) = key.strip_prefix(prefix)?.strip_prefix(':')?.rsplit_once(':')?;
    let end = id.split_once('-').and_then(|(_, end)| end.parse::<u64>().ok());
    let is_found = kept == KeptCounters::Found || end.is_none_or(|end| now_s < end);
    (is_counter_id(id) && counter.ends_with('}') && is_found).then_some(counter)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_of_a_window_that_has_ended_is_found_only_if_kept_ones_are_asked_for() {
        use KeptCounters::{Found, LeftOut};
        let key = Some("shop:tokens:{jwt.sub=a}");
        for (end, kept, expected) in [
            ("1700000000-1700003600", LeftOut, None),
            ("1700000000-1700003601", LeftOut, key),
            ("1700000000-1700003600", Found, key),
            // Redis itself deletes what a fixed or a sliding window no longer needs.
            ("28333", LeftOut, key),
            ("s60", LeftOut, key),
            ("slots", LeftOut, key),
            ("slots2", Found, None),
            ("1700000000-", Found, None),
            ("override", Found, None),
        ] {
            let own = format!("qg:shop:tokens:{{jwt.sub=a}}:{end}");
            assert_eq!(counter("qg", &own, kept, 1_700_003_600), expected, "{end} {kept:?}");
        }
        let foreign = "qg2:shop:tokens:{jwt.sub=a}:28333";
        assert_eq!(counter("qg", foreign, Found, 0), None, "another prefix");
    }
}
