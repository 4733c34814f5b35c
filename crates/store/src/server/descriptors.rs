//! File descriptors: connections must leave some for Redis, or a crowd on a port would cut the store off from it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most connections of callers at once.
const CALLS: u64 = 8192;
/// Most connections of operators at once.
const ADMIN: u64 = 256;
/// What is left for Redis, a connection or two a node, and for files.
const OTHERS: u64 = 256;
/// Where the system allows few files, operators and others have a part of this size each, and callers the rest.
const PART: u64 = 4;

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
    shares(allowed)
}

fn shares(allowed: u64) -> (usize, usize) {
    let (admin, others) = (ADMIN.min(allowed / PART), OTHERS.min(allowed / PART));
    let calls = allowed.saturating_sub(admin + others).min(CALLS);
    // Of each at least one: where even that is too much, nothing is served at all.
    let [calls, admin] = [calls, admin].map(|most| usize::try_from(most.max(1)).unwrap_or(usize::MAX));
    (calls, admin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_leave_descriptors_for_redis_and_for_operators() {
        for (allowed, expected) in [
            (0, (1, 1)),
            (64, (32, 16)),
            (256, (128, 64)),
            (575, (289, 143)),
            (1024, (512, 256)),
            (9000, (8192, 256)),
            (u64::MAX, (8192, 256)),
        ] {
            let (calls, admin) = shares(allowed);
            assert_eq!((calls, admin), expected, "{allowed}");
            let left = allowed.saturating_sub((calls + admin) as u64);
            assert!(left >= OTHERS.min(allowed / PART), "{allowed} leave {left}");
        }
    }
}
