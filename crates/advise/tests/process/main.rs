//! Tests that measure or change the whole process. They run one after another.

#![cfg(test)]

mod memory;
mod open_files;

use std::sync::{Mutex, MutexGuard, PoisonError};

static PROCESS: Mutex<()> = Mutex::new(());

/// Waits until no other test uses the process.
fn alone() -> MutexGuard<'static, ()> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}
