//! The deadline timer: ends the waits of all calls at their deadlines.
//!
//! A timer for each call would cost one system call each: most calls end long before their
//! deadlines, so each new call would have the earliest deadline and the runtime would set its clock
//! again. This timer stays set to the old deadline instead, and looks for the next one when it
//! fires. Bound: two waits for each call under way.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::sleep_until;

/// The deadlines of the calls under way. Nothing wakes at a deadline unless [`run`](Self::run)
/// runs.
#[derive(Default)]
pub struct Deadlines {
    waits: Mutex<Waits>,
    earlier: Notify,
}

#[derive(Default)]
struct Waits {
    /// By deadline, and a number that keeps equal ones apart.
    wakers: BTreeMap<(Instant, u64), Waker>,
    number: u64,
    /// When the timer fires next.
    set: Option<Instant>,
}

/// One wait, forgotten when it is dropped.
struct Wait<'a> {
    deadlines: &'a Deadlines,
    at: (Instant, u64),
}

impl Deadlines {
    /// Waits for `future`, until `deadline` at most. `None` if the deadline came first.
    pub async fn within<F: Future>(&self, deadline: Instant, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut wait = None;
        poll_fn(|context| {
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            if Instant::now() >= deadline {
                return Poll::Ready(None);
            }
            match &wait {
                None => wait = Some(self.wait(deadline, context.waker())),
                Some(wait) => wait.wake_with(context.waker()),
            }
            Poll::Pending
        })
        .await
    }

    /// Wakes all waits whose deadline has come. Never returns.
    pub async fn run(&self) {
        loop {
            let earlier = self.earlier.notified();
            match self.wake_due() {
                Some(next) => tokio::select! {
                    () = sleep_until(next.into()) => {}
                    () = earlier => {}
                },
                None => earlier.await,
            }
        }
    }

    fn wait(&self, deadline: Instant, waker: &Waker) -> Wait<'_> {
        let mut waits = self.waits();
        waits.number = waits.number.wrapping_add(1);
        let at = (deadline, waits.number);
        waits.wakers.insert(at, waker.clone());
        if waits.set.is_none_or(|set| deadline < set) {
            waits.set = Some(deadline);
            self.earlier.notify_one();
        }
        Wait { deadlines: self, at }
    }

    /// Wakes what is due, and returns the next deadline.
    fn wake_due(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut waits = self.waits();
        let later = waits.wakers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut waits.wakers, later);
        let next = waits.wakers.first_key_value().map(|(&(deadline, _), _)| deadline);
        waits.set = next;
        drop(waits);
        due.into_values().for_each(Waker::wake);
        next
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wait<'_> {
    /// Replaces the waker, because the future may have moved to another task. If the old waker is
    /// gone, the deadline has come, so the new one is woken at once.
    fn wake_with(&self, waker: &Waker) {
        match self.deadlines.waits().wakers.get_mut(&self.at) {
            Some(known) => known.clone_from(waker),
            None => waker.wake_by_ref(),
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.deadlines.waits().wakers.remove(&self.at);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn wait_ends_with_its_future_or_at_its_deadline() {
        let deadlines = Arc::new(Deadlines::default());
        let running = Arc::clone(&deadlines);
        let running = tokio::spawn(async move { running.run().await });
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let never = async |ms| {
            assert_eq!(deadlines.within(at(ms), pending::<()>()).await, None);
            assert!(Instant::now() >= at(ms), "ended before {ms} ms");
        };
        // Later ones first: an earlier deadline moves the timer.
        let served = deadlines.within(at(60_000), async {
            tokio::join!(never(30), never(20), never(20), never(0));
            7
        });
        assert_eq!(served.await, Some(7));
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "no wait lasts until the deadline of another"
        );
        never(50).await;
        let crowd = (0..100).map(|_| {
            let deadlines = Arc::clone(&deadlines);
            tokio::spawn(async move {
                for _ in 0..20 {
                    let deadline = Instant::now() + Duration::from_micros(300);
                    assert_eq!(deadlines.within(deadline, pending::<()>()).await, None);
                }
            })
        });
        for one in crowd.collect::<Vec<_>>() {
            tokio::time::timeout(Duration::from_secs(30), one).await.unwrap().unwrap();
        }
        assert!(deadlines.waits().wakers.is_empty(), "a wait that ended is forgotten");
        running.abort();
    }
}
