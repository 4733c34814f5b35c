//! The inbox of a shard: how the runtime thread and Envoy's main thread report to it.
//!
//! No letter is lost. The sender [puts](Mailbox::put) it, and then tries to lock the core. The
//! holder of the core [takes](Mailbox::take) all letters, and [looks again](Mailbox::has_letters)
//! after it has unlocked. The sender and this second look each exchange the value of `mail`, so
//! that the later one sees what the earlier one did.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quotagate_quota::worker::{CallEnd, CallFault, CallId};
use quotagate_store::server::CarriedOut;

/// What another thread reports to a shard.
pub enum Letter {
    /// The store in this process carried out a call. It refunds the grants if the letter is never
    /// read.
    CarriedOut(CallId, CarriedOut),
    /// A call or a fetch has ended.
    Ended(CallId, CallEnd),
    /// A call or a fetch was not sent or not carried out, or a fetch took too long.
    Failed(CallId, CallFault<'static>),
}

/// Whom another thread reports to.
pub trait Recipient: Send + Sync {
    /// Takes a letter, on the runtime thread or Envoy's main thread.
    fn deliver(self: Arc<Self>, letter: Letter);
}

/// The letters to one shard. Its lock is taken last, alone.
#[derive(Default)]
pub struct Mailbox {
    letters: Mutex<VecDeque<Letter>>,
    /// Whether there may be letters.
    mail: AtomicBool,
}

impl Mailbox {
    /// Adds a letter, on any thread.
    pub fn put(&self, letter: Letter) {
        self.letters().push_back(letter);
        self.mail.swap(true, Ordering::SeqCst);
    }

    /// Takes all letters, while the core is locked.
    pub fn take(&self) -> impl Iterator<Item = Letter> {
        // What comes later is found after the core is unlocked.
        let is_mail = self.mail.load(Ordering::SeqCst) && self.mail.swap(false, Ordering::SeqCst);
        Letters(is_mail.then_some(self))
    }

    /// Whether there may be letters, after the core was unlocked.
    pub fn has_letters(&self) -> bool {
        // A read alone might come before the lock is free to others.
        self.mail.fetch_or(false, Ordering::SeqCst)
    }

    fn letters(&self) -> MutexGuard<'_, VecDeque<Letter>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The letters of a mailbox, one by one, so that its list keeps its memory for the next ones.
struct Letters<'m>(Option<&'m Mailbox>);

impl Iterator for Letters<'_> {
    type Item = Letter;

    fn next(&mut self) -> Option<Letter> {
        self.0?.letters().pop_front()
    }
}

impl Drop for Letters<'_> {
    fn drop(&mut self) {
        // If the reader of a letter panics, the next one finds the others.
        if let Some(mailbox) = self.0.filter(|mailbox| !mailbox.letters().is_empty()) {
            mailbox.mail.swap(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use quotagate_quota::config::Config;
    use quotagate_quota::time::Monotonic;
    use quotagate_quota::worker::Worker;

    use super::*;

    #[test]
    fn letters_behind_one_whose_reader_panics_are_found_by_the_next_reader() {
        let document = br#"{"domain": "d", "store": {"cluster": "c"}, "policies": []}"#;
        let mut worker: Worker<()> = Worker::new(Arc::new(Config::parse(document).unwrap()), 1);
        worker.observe_traffic(Monotonic::default());
        let fetch = worker.next_fetch(Monotonic::default()).unwrap();
        let mailbox = Mailbox::default();
        for _ in 0..3 {
            mailbox.put(Letter::Ended(fetch.id, CallEnd::Reset));
        }
        let mut letters = mailbox.take();
        assert!(letters.next().is_some());
        drop(letters);
        assert!(mailbox.has_letters());
        assert_eq!(mailbox.take().count(), 2);
        assert!(!mailbox.has_letters());
    }
}
