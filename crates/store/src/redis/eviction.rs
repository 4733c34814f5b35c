//! What is known of a server's eviction policy: any but `noeviction` may lose counters.
//!
//! What was read last stays known while it cannot be read again, and is said once, however often it is read.

use redis::aio::MultiplexedConnection;

/// What a server says of its policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// This is it.
    Policy(String),
    /// It does not say, or may not be asked.
    Nothing,
}

/// What is known of it.
#[derive(Debug, Default)]
pub struct Eviction {
    policy: Option<String>,
    /// It was asked, and did not say.
    untold: bool,
}

impl Eviction {
    /// Learns what the server called `name` says, and returns what is new and wrong about it.
    pub fn learn(&mut self, name: &str, told: Told) -> Option<String> {
        let before = self.warning(name);
        let untold_before = self.untold;
        self.untold = told == Told::Nothing;
        if let Told::Policy(policy) = told {
            self.policy = Some(policy);
        } else if !untold_before && self.policy.is_some() {
            return Some(format!(
                "{name} no longer says its maxmemory-policy: allow INFO, or watch it yourself"
            ));
        }
        self.warning(name).filter(|now| before.as_ref() != Some(now))
    }

    /// What is wrong, as far as it is known.
    pub fn warning(&self, name: &str) -> Option<String> {
        match self.policy.as_deref() {
            Some("noeviction") => None,
            Some(policy) => Some(format!(
                "{name} runs with maxmemory-policy {policy}: set noeviction, or counters may be lost"
            )),
            None if self.untold => Some(format!(
                "{name} does not say its maxmemory-policy: allow INFO, or see that it is noeviction, or counters \
                 may be lost"
            )),
            None => None,
        }
    }
}

/// Asks the server; `None` where no answer came. `INFO` tells it as well as `CONFIG GET` does, which many managed
/// servers forbid.
pub async fn ask(connection: &mut MultiplexedConnection) -> Option<Told> {
    match redis::cmd("INFO").arg("memory").query_async::<String>(connection).await {
        Ok(info) => Some(read(&info)),
        // An answer of the server, in words.
        Err(error) if error.code().is_some() => Some(Told::Nothing),
        Err(_) => None,
    }
}

fn read(info: &str) -> Told {
    let policy = info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
    policy.map_or(Told::Nothing, |policy| Told::Policy(policy.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_news_is_told_once_and_the_last_policy_stays_known() {
        let mut eviction = Eviction::default();
        assert_eq!(eviction.warning("r"), None, "before anybody asked");
        let policy = |name: &str| read(&format!("# Memory\r\nmaxmemory_policy:{name}\r\nused_memory:1\r\n"));
        // What is told, what is logged of it, and what stands in `/readyz` then.
        for (told, logged, stands) in [
            (read("# Memory\r\n"), "does not say", "does not say"),
            (Told::Nothing, "", "does not say"),
            (policy("allkeys-lru"), "policy allkeys-lru", "policy allkeys-lru"),
            (policy("allkeys-lru"), "", "policy allkeys-lru"),
            (Told::Nothing, "no longer says", "policy allkeys-lru"),
            (Told::Nothing, "", "policy allkeys-lru"),
            (policy("allkeys-lru"), "", "policy allkeys-lru"),
            (policy("volatile-ttl"), "policy volatile-ttl", "policy volatile-ttl"),
            (policy("noeviction"), "", ""),
            (Told::Nothing, "no longer says", ""),
            (policy("allkeys-lru"), "policy allkeys-lru", "policy allkeys-lru"),
        ] {
            let shown = format!("{told:?}");
            for (text, expected) in [(eviction.learn("r", told), logged), (eviction.warning("r"), stands)] {
                let text = text.unwrap_or_default();
                assert!(text.contains(expected) && text.is_empty() == expected.is_empty(), "{shown}: {text}");
            }
        }
    }
}
