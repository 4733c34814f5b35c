//! A server's eviction policy: any policy but `noeviction` may lose counters.
//!
//! The policy that was read last stays known while the server does not say it again. Each change is
//! logged once.

use redis::aio::MultiplexedConnection;

/// A server's answer about its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The server's policy.
    Named(String),
    /// The server does not say, or the store's user may not ask.
    Unknown,
}

/// What is known about a server's policy.
#[derive(Debug, Default)]
pub struct Eviction {
    policy: Option<String>,
    /// The last answer named no policy.
    unknown: bool,
}

impl Eviction {
    /// Learns the answer of the server called `name`, and returns a warning that is new.
    pub fn learn(&mut self, name: &str, answer: Policy) -> Option<String> {
        let before = self.warning(name);
        let unknown_before = self.unknown;
        self.unknown = answer == Policy::Unknown;
        if let Policy::Named(policy) = answer {
            self.policy = Some(policy);
        } else if !unknown_before && self.policy.is_some() {
            return Some(format!(
                "{name} no longer says its maxmemory-policy: allow INFO, or watch it yourself"
            ));
        }
        self.warning(name).filter(|now| before.as_ref() != Some(now))
    }

    /// What is wrong with the policy, as far as it is known.
    pub fn warning(&self, name: &str) -> Option<String> {
        match self.policy.as_deref() {
            Some("noeviction") => None,
            Some(policy) => Some(format!(
                "{name} runs with maxmemory-policy {policy}: set noeviction, or counters may be lost"
            )),
            None if self.unknown => Some(format!(
                "{name} does not say its maxmemory-policy: allow INFO, or see that it is noeviction, or counters \
                 may be lost"
            )),
            None => None,
        }
    }
}

/// Asks a server for its policy. `None` if no answer came. The store reads `INFO` because many
/// managed servers forbid `CONFIG GET`.
pub async fn eviction_policy(connection: &mut MultiplexedConnection) -> Option<Policy> {
    match redis::cmd("INFO").arg("memory").query_async::<String>(connection).await {
        Ok(info) => Some(read(&info)),
        // The server answered with an error.
        Err(error) if error.code().is_some() => Some(Policy::Unknown),
        Err(_) => None,
    }
}

fn read(info: &str) -> Policy {
    let policy = info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
    policy.map_or(Policy::Unknown, |policy| Policy::Named(policy.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_logged_once_and_the_last_policy_stays_known() {
        let mut eviction = Eviction::default();
        assert_eq!(eviction.warning("r"), None, "before the first answer");
        let policy =
            |name: &str| read(&format!("# Memory\r\nmaxmemory_policy:{name}\r\nused_memory:1\r\n"));
        // The answer, what is logged, and what `/readyz` says then.
        for (answer, logged, stands) in [
            (read("# Memory\r\n"), "does not say", "does not say"),
            (Policy::Unknown, "", "does not say"),
            (policy("allkeys-lru"), "policy allkeys-lru", "policy allkeys-lru"),
            (policy("allkeys-lru"), "", "policy allkeys-lru"),
            (Policy::Unknown, "no longer says", "policy allkeys-lru"),
            (Policy::Unknown, "", "policy allkeys-lru"),
            (policy("allkeys-lru"), "", "policy allkeys-lru"),
            (policy("volatile-ttl"), "policy volatile-ttl", "policy volatile-ttl"),
            (policy("noeviction"), "", ""),
            (Policy::Unknown, "no longer says", ""),
            (policy("allkeys-lru"), "policy allkeys-lru", "policy allkeys-lru"),
        ] {
            let shown = format!("{answer:?}");
            for (text, expected) in
                [(eviction.learn("r", answer), logged), (eviction.warning("r"), stands)]
            {
                let text = text.unwrap_or_default();
                assert!(
                    text.contains(expected) && text.is_empty() == expected.is_empty(),
                    "{shown}: {text}"
                );
            }
        }
    }
}
