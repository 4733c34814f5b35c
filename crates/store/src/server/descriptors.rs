//! File descriptors: connections must leave some for Redis, or a crowd on a port would cut the store off from it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most connections of callers at once.
const CALLS: u64 = 8192;
/// Most connections of operators at once.
const ADMIN: u64 = 256;
/// What is left for Redis, a connection or two a node, and for files.
const OTHERS: u64 = 256;
/// So many callers are served, whatever the system allows.
const LEAST: u64 = 64;

/// Lets this process open as many files as the system allows it; most begin with a thousand.
///
/// # Errors
/// When the system refuses; nothing has changed then.
pub fn raise_file_limit() -> std::io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return Ok(());
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// Most connections at once of callers, and of operators; further ones wait to be accepted.
pub fn bounds() -> (usize, usize) {
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (calls(allowed), usize::try_from(ADMIN).unwrap_or(usize::MAX))
}

fn calls(allowed: u64) -> usize {
    let free = allowed.saturating_sub(ADMIN + OTHERS).clamp(LEAST, CALLS);
    usize::try_from(free).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_leave_descriptors_for_redis_and_for_operators() {
        for (allowed, expected) in [(0, 64), (256, 64), (1024, 512), (9000, 8192), (u64::MAX, 8192)] {
            assert_eq!(calls(allowed), expected, "{allowed}");
        }
    }
}
