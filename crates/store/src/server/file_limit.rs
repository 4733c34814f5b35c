//! The limit of open files: connections must leave some file descriptors for Redis, or a crowd on a
//! port would cut the store off from it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most connections of callers at once. One takes up to 30 KiB while no request of it is under
/// way: 20 KiB if it is idle after HTTP/1.1, 24 KiB after HTTP/2, and the rest for a begun head.
const CALLS: u64 = 1500;
/// Most connections of operators at once.
const ADMIN: u64 = 256;
/// Descriptors left for Redis, a connection or two a node, and for files.
const OTHERS: u64 = 256;
/// If the system allows few files, operators and Redis each get one in so many, and callers get the
/// rest.
const PART: u64 = 4;

/// Lets this process open as many files as the system allows. Most processes start with a limit of
/// a thousand.
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

/// Most connections at once. Those that the server does not work for make room for further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionLimits {
    /// Connections of callers.
    pub calls: usize,
    /// Connections of operators.
    pub admin: usize,
}

/// The limits that the limit of open files allows now.
pub(super) fn connection_limits() -> ConnectionLimits {
    shares(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

fn shares(allowed: u64) -> ConnectionLimits {
    let (admin, others) = (ADMIN.min(allowed / PART), OTHERS.min(allowed / PART));
    let calls = allowed.saturating_sub(admin + others).min(CALLS);
    // At least one each: with fewer, the store could serve nothing at all.
    let [calls, admin] =
        [calls, admin].map(|most| usize::try_from(most.max(1)).unwrap_or(usize::MAX));
    ConnectionLimits { calls, admin }
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
            (9000, (1500, 256)),
            (u64::MAX, (1500, 256)),
        ] {
            let ConnectionLimits { calls, admin } = shares(allowed);
            assert_eq!((calls, admin), expected, "{allowed}");
            let left = allowed.saturating_sub((calls + admin) as u64);
            assert!(left >= OTHERS.min(allowed / PART), "{allowed} leave {left}");
        }
    }
}
