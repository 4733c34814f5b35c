//! The name under which a process publishes.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::api::{Publisher, PublisherKind};
use crate::millis;

/// Longest name of a host.
const MAX_HOST: usize = 64;

/// Who this process is. It keeps its id for life.
#[derive(Debug)]
pub struct Identity {
    publisher: Publisher,
    started: Instant,
}

impl Identity {
    /// A new one, with a random id.
    pub fn new(kind: PublisherKind) -> Self {
        // The standard library seeds it from the operating system.
        let id = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let name = rustix::system::uname();
        let host = clean(&name.nodename().to_string_lossy());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let publisher = Publisher { id, kind, host, since_ms: millis(now) };
        Self { publisher, started: Instant::now() }
    }

    /// The id.
    pub fn id(&self) -> &str {
        &self.publisher.id
    }

    /// As this host's clock shows it.
    pub fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// As the backend's clock, which shows `now`, would show it.
    pub fn publisher_at(&self, now: Duration) -> Publisher {
        let since_ms = millis(now.saturating_sub(self.started.elapsed()));
        Publisher { since_ms, ..self.publisher.clone() }
    }
}

/// The name of a host as operators may see it: `[A-Za-z0-9._-]`, at most [`MAX_HOST`] bytes.
pub fn clean(host: &str) -> String {
    let safe = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let name: String = host.chars().filter(safe).take(MAX_HOST).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::is_process_id;

    #[test]
    fn processes_have_different_ids() {
        let [one, other] = [PublisherKind::Store, PublisherKind::Proxy].map(Identity::new);
        assert!(is_process_id(one.id()) && is_process_id(other.id()) && one.id() != other.id());
        assert_eq!(clean("a<b>\u{202e}é-1.x"), "ab-1.x");
        assert_eq!((clean("\n").as_str(), clean(&"a".repeat(300)).len()), ("unknown", MAX_HOST));
    }
}
