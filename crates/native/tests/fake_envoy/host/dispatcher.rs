//! A thread of Envoy's with its queue of events.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, ThreadId};

type Event = Box<dyn FnOnce() + Send>;

/// A thread that runs events, one after the other. It ends with its last sender.
pub struct Dispatcher {
    events: Sender<Event>,
    thread: ThreadId,
}

impl Dispatcher {
    /// Starts the thread.
    pub fn start(name: &str) -> Self {
        let (events, queue) = channel::<Event>();
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(event) = queue.recv() {
                event();
            }
        });
        Self { events, thread: thread.expect("a thread").thread().id() }
    }

    /// Whether this is the thread.
    pub fn is_current(&self) -> bool {
        thread::current().id() == self.thread
    }

    /// Runs an event later.
    pub fn post(&self, event: impl FnOnce() + Send + 'static) {
        // A thread that has ended runs nothing, as Envoy's at its end.
        let _ = self.events.send(Box::new(event));
    }

    /// Runs an event, and waits for it. A panic in it goes on here.
    pub fn run<R: Send + 'static>(&self, event: impl FnOnce() -> R + Send + 'static) -> R {
        assert!(!self.is_current(), "it would wait for itself");
        let (result, ended) = channel();
        self.post(move || {
            let _ = result.send(catch_unwind(AssertUnwindSafe(event)));
        });
        ended.recv().expect("the thread runs").unwrap_or_else(|panic| resume_unwind(panic))
    }
}
