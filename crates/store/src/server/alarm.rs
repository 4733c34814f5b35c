//! Ends the waits of calls at their deadlines, with one timer for all of them.
//!
//! A timer of its own would cost each call a call of the operating system: its deadline is nearly always the next
//! one of all, so that the runtime must wake up earlier for it. Here the timer stays where it was set, and looks
//! for the next deadline once it has fired. Bound: two waits a call under way.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::sleep_until;

/// The deadlines of the calls under way. Nobody is woken unless [`ring`](Self::ring) runs.
#[derive(Default)]
pub struct Alarm {
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

/// One wait; dropped, it is forgotten.
struct Wait<'a> {
    alarm: &'a Alarm,
    place: (Instant, u64),
}

impl Alarm {
    /// Waits for `future` until `deadline` at most; `None` where that came first.
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

    /// Wakes all waits whose deadline has come, for ever.
    pub async fn ring(&self) {
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
        let place = (deadline, waits.number);
        waits.wakers.insert(place, waker.clone());
        if waits.set.is_none_or(|set| deadline < set) {
            waits.set = Some(deadline);
            self.earlier.notify_one();
        }
        Wait { alarm: self, place }
    }

    /// Wakes what is due, and says when the next one is.
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

    /// No panic can happen while it is locked, so a poisoned lock guards nothing that is broken.
    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wait<'_> {
    /// Where the waker was taken meanwhile the deadline has come: this one may be another.
    fn wake_with(&self, waker: &Waker) {
        match self.alarm.waits().wakers.get_mut(&self.place) {
            Some(known) => known.clone_from(waker),
            None => waker.wake_by_ref(),
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.alarm.waits().wakers.remove(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn waits_end_with_what_they_wait_for_or_at_their_deadline() {
        let alarm = Arc::new(Alarm::default());
        let ringing = Arc::clone(&alarm);
        let ringing = tokio::spawn(async move { ringing.ring().await });
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let never = async |ms| {
            assert_eq!(alarm.within(at(ms), pending::<()>()).await, None);
            assert!(Instant::now() >= at(ms), "{ms} ms were not over");
        };
        // Later ones first: an earlier deadline moves the timer.
        let served = alarm.within(at(60_000), async {
            tokio::join!(never(30), never(20), never(20), never(0));
            7
        });
        assert_eq!(served.await, Some(7));
        assert!(start.elapsed() < Duration::from_secs(30), "nobody waited for a deadline of another");
        never(50).await;
        let crowd = (0..100).map(|_| {
            let alarm = Arc::clone(&alarm);
            tokio::spawn(async move {
                for _ in 0..20 {
                    let deadline = Instant::now() + Duration::from_micros(300);
                    assert_eq!(alarm.within(deadline, pending::<()>()).await, None);
                }
            })
        });
        for one in crowd.collect::<Vec<_>>() {
            tokio::time::timeout(Duration::from_secs(30), one).await.unwrap().unwrap();
        }
        assert!(alarm.waits().wakers.is_empty(), "what is over is forgotten");
        ringing.abort();
    }
}
