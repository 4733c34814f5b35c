//! Whether a connection answers, so that one node that hangs delays no other.
//!
//! A connection is silent when it has owed an answer for [two fifths](silence_limit) of a call's
//! budget, and for four times as long as its answers usually take: a node that is merely slow is
//! waited for. Commands to a silent node of a cluster fail at once. Commands that were sent before
//! are still awaited, and the first answer ends the silence. Without any answer the connection is
//! replaced after [`Patience::answer`](super::Patience::answer), and the node stays unreachable
//! until a new connection answers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::store::SECOND_LOOK;

/// A shorter silence may come from the machine itself, however short the budgets of calls are.
const SHORTEST: Duration = Duration::from_millis(20);
/// A connection may be silent for so many times its usual answer time.
const USUAL: u32 = 4;
/// Most commands that wait on a silent connection, each with at most the refunds of one call.
/// Further refunds are dropped.
const MAX_OWED: usize = 1024;

/// How long a node may owe an answer to a call that can wait for `budget`.
pub fn silence_limit(budget: Duration) -> Duration {
    budget.mul_f64(0.4).max(SHORTEST)
}

/// What one connection owes. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Silence(Arc<Mutex<Owed>>);

#[derive(Debug, Default)]
struct Owed {
    commands: usize,
    /// When the first command was sent since the last answer.
    since: Option<Instant>,
    /// When the silence was first seen to be too long.
    suspected: Option<Instant>,
    /// Since when its answers say that it cannot serve now.
    rejects: Option<Instant>,
    /// The smoothed time of an answer.
    usual: Duration,
    /// The end of the last silence. The answer times of earlier commands are not usual ones.
    resumed: Option<Instant>,
}

/// The result of looking at a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It owes nothing, or not for too long.
    Answers,
    /// It seems silent: look again after [`SECOND_LOOK`].
    Suspect,
    /// It is silent.
    Silent,
}

/// A command that was sent and has no answer yet.
#[derive(Debug)]
pub struct Question {
    silence: Silence,
    asked: Instant,
}

impl Silence {
    /// Notes that a command is sent now.
    pub fn ask(&self) -> Question {
        let asked = Instant::now();
        let mut owed = self.owed();
        owed.commands += 1;
        owed.since.get_or_insert(asked);
        Question { silence: self.clone(), asked }
    }

    /// Whether no answer has come for `limit` although one is owed.
    pub fn look(&self, limit: Duration) -> Look {
        let now = Instant::now();
        let mut owed = self.owed();
        let limit = limit.max(owed.usual * USUAL);
        if owed.since.is_none_or(|since| now - since < limit) {
            return Look::Answers;
        }
        let suspected = *owed.suspected.get_or_insert(now);
        if now - suspected < SECOND_LOOK { Look::Suspect } else { Look::Silent }
    }

    /// Whether a look has suspected it since the last answer.
    pub fn is_silent(&self) -> bool {
        self.owed().suspected.is_some()
    }

    /// Learns from an answer whether the node says that it cannot serve now.
    pub fn set_rejects(&self, rejects: bool) {
        let mut owed = self.owed();
        if rejects {
            owed.rejects.get_or_insert_with(Instant::now);
        } else {
            owed.rejects = None;
        }
    }

    /// Since when its answers say that it cannot serve now.
    pub fn rejects_since(&self) -> Option<Instant> {
        self.owed().rejects
    }

    /// Whether a refund may still be sent, although nobody knows when its answer comes.
    pub fn has_room(&self) -> bool {
        self.owed().commands < MAX_OWED
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn owed(&self) -> MutexGuard<'_, Owed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Question {
    /// Notes that the answer has come. A question that is dropped without it leaves the silence as
    /// it is.
    pub fn answered(self) {
        let now = Instant::now();
        let mut owed = self.silence.owed();
        owed.since = (owed.commands > 1).then_some(now);
        if owed.resumed.is_none_or(|resumed| resumed <= self.asked) {
            owed.usual = (owed.usual * 7 + (now - self.asked)) / 8;
        }
        if owed.suspected.take().is_some() {
            owed.resumed = Some(now);
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let mut owed = self.silence.owed();
        owed.commands = owed.commands.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn long_ago(silence: &Silence) {
        silence.owed().since = Instant::now().checked_sub(Duration::from_secs(1));
    }

    fn look_twice(silence: &Silence, limit: Duration) -> Look {
        if silence.look(limit) == Look::Suspect {
            std::thread::sleep(SECOND_LOOK);
        }
        silence.look(limit)
    }

    #[test]
    fn connection_is_silent_while_it_owes_an_answer_for_too_long() {
        let (silence, limit) = (Silence::default(), Duration::from_millis(80));
        assert_eq!(silence.look(Duration::ZERO), Look::Answers, "it owes nothing");
        let (first, second) = (silence.ask(), silence.ask());
        assert_eq!(silence.look(Duration::from_secs(60)), Look::Answers);
        long_ago(&silence);
        assert_eq!(silence.look(limit), Look::Suspect, "an answer may be there, still unread");
        std::thread::sleep(SECOND_LOOK);
        assert_eq!(silence.look(limit), Look::Silent);
        first.answered();
        assert_eq!(silence.look(limit), Look::Answers, "any answer ends the silence");
        long_ago(&silence);
        assert_eq!(look_twice(&silence, limit), Look::Silent);
        drop(second);
        assert_eq!(silence.look(limit), Look::Silent, "a dropped question was not answered");
        silence.ask().answered();
        assert_eq!(silence.look(Duration::ZERO), Look::Answers);
    }

    #[test]
    fn usually_slow_node_is_waited_for() {
        let silence = Silence::default();
        silence.owed().usual = Duration::from_millis(500);
        let _question = silence.ask();
        long_ago(&silence);
        assert_eq!(look_twice(&silence, Duration::from_millis(80)), Look::Answers);
        silence.owed().usual = Duration::from_millis(200);
        assert_eq!(look_twice(&silence, Duration::from_millis(80)), Look::Silent);
    }
}
