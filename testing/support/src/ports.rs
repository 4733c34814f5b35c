//! Free loopback ports.
//!
//! The ports lie below the range that the system gives to outgoing connections, so that no
//! connection of another test can take a port between the moment it is found and the moment a
//! server binds it.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, TcpListener},
    process,
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Result, bail};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port without a listener, which this process has not handed out before.
///
/// # Errors
/// When none is left.
pub fn free() -> Result<u16> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.subsec_nanos());
    let seed = process::id().wrapping_mul(2_654_435_761).wrapping_add(nanos / 1_000);
    for step in 0..u32::from(COUNT) {
        let offset = u16::try_from(seed.wrapping_add(step) % u32::from(COUNT))?;
        let port = FIRST + offset;
        if !taken.contains(&port) && is_free(port) {
            taken.insert(port);
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT - 1)
}

/// Whether a server could listen on this port of 127.0.0.1 now.
#[must_use]
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_given_once() {
        let ports: BTreeSet<u16> = (0..50).map(|_| free().unwrap()).collect();
        assert_eq!(ports.len(), 50);
    }

    #[test]
    fn port_with_a_listener_is_not_free() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }
}
