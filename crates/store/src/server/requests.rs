//! The memory of the requests that are under way, over all listeners of a process.
//!
//! A request counts from its head until its answer is on its way: its head, its body, its answer,
//! and a fixed part for its stream and its task. Above [`SOFT`] the requests that have waited
//! longest for their clients make room. At [`HARD`] further bodies and answers are refused, and
//! with [`HEADS`] more further requests, before anything of them is kept.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use hyper::Request;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::connection::{Arrival, Connection};

/// Bytes above which requests that wait for their clients make room.
const SOFT: usize = 20 << 20;
/// Bytes that requests which wait for their clients may hold in any case, so that those make no
/// room whose clients are about to fetch the answer.
const WAITING: usize = 4 << 20;
/// Most bytes, but for heads and small answers.
const HARD: usize = 28 << 20;
/// Bytes beyond [`HARD`] for heads of an address that has probes, and for answers of at most
/// [`EACH`] bytes: a probe is answered while calls, bodies and large answers take all the rest.
const HEADS: usize = 4 << 20;
/// Most bytes of requests that are about to end, while further ones are read.
const LEAVING: usize = 1 << 20;
/// What a request takes besides its head, its body and its answer.
const EACH: usize = 6 << 10;
/// What a field of a head takes, besides its name and its value.
const FIELD: usize = 112;

/// The requests of all listeners that are under way.
#[derive(Default)]
pub struct Requests(Mutex<Totals>);

#[derive(Default)]
struct Totals {
    bytes: usize,
    /// The part of `bytes` that requests hold which are about to end.
    leaving: usize,
    /// The part of `bytes` that requests hold which wait for their clients.
    waiting_bytes: usize,
    /// The number of the request that began to wait last.
    last_number: u64,
    /// The requests that wait for their clients, the one that has waited longest first, and what
    /// ends each.
    waiting: BTreeMap<u64, (Arc<Weight>, CancellationToken)>,
}

/// What a request takes. Changes only while the totals are locked.
#[derive(Default)]
struct Weight {
    bytes: AtomicUsize,
    /// Its number among those that wait; 0 if it does not wait.
    waiting_number: AtomicU64,
    is_leaving: AtomicBool,
}

/// A request that is under way, until this is dropped.
pub struct UnderWay {
    requests: Arc<Requests>,
    weight: Arc<Weight>,
}

/// Why a body ends before its last byte: others need the memory.
#[derive(Debug, thiserror::Error)]
#[error("too many requests are under way, and this one has waited longest for its client")]
pub struct Crowded;

impl Requests {
    /// Admits a request, unless there are too many. Some room is kept for addresses that probes
    /// use.
    pub fn admit<B>(
        self: &Arc<Self>,
        request: &Request<B>,
        has_probes: bool,
    ) -> Option<Arc<UnderWay>> {
        let (headers, uri) = (request.headers(), request.uri());
        // Several values of one name are kept in a table of their own.
        let more = headers.len().saturating_sub(headers.keys_len());
        let texts = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let uri = uri.path().len() + uri.query().unwrap_or_default().len();
        let fields = FIELD * (headers.capacity() + more.next_power_of_two());
        let bytes = EACH + fields + texts.sum::<usize>() + uri;
        let under_way =
            UnderWay { requests: Arc::clone(self), weight: Arc::new(Weight::default()) };
        let most = if has_probes { HARD + HEADS } else { HARD };
        under_way.grow_to(most, bytes).then(|| Arc::new(under_way))
    }

    /// Whether many requests are about to end. Nothing should be read until they have: they take no
    /// further input, and further requests would be refused.
    pub fn is_crowded(&self) -> bool {
        self.totals().leaving > LEAVING
    }

    /// Nothing panics while the lock is held, so the content of a poisoned lock is intact.
    fn totals(&self) -> MutexGuard<'_, Totals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    /// Counts further bytes. Returns whether there is room for them; if not, nothing changes.
    #[must_use]
    pub fn grow(&self, bytes: usize) -> bool {
        self.grow_to(HARD, bytes)
    }

    /// The same with at most so many bytes of all requests.
    fn grow_to(&self, most: usize, bytes: usize) -> bool {
        let mut totals = self.requests.totals();
        if totals.bytes.saturating_add(bytes) > most {
            return false;
        }
        totals.bytes += bytes;
        self.weight.bytes.fetch_add(bytes, Relaxed);
        if self.weight.is_leaving.load(Relaxed) {
            totals.leaving += bytes;
        } else if self.weight.waiting_number.load(Relaxed) != 0 {
            totals.waiting_bytes += bytes;
        }
        while totals.bytes - totals.leaving > SOFT
            && totals.waiting_bytes > WAITING
            && let Some((_, (weight, end))) = totals.waiting.pop_first()
        {
            let bytes = weight.bytes.load(Relaxed);
            weight.waiting_number.store(0, Relaxed);
            weight.is_leaving.store(true, Relaxed);
            totals.waiting_bytes -= bytes;
            totals.leaving += bytes;
            end.cancel();
        }
        true
    }

    /// Counts an answer of so many bytes instead of the request, which nothing keeps any more.
    /// Returns whether there is room for it.
    #[must_use]
    pub fn replace_with_answer(&self, bytes: usize) -> bool {
        self.release();
        let most = if bytes <= EACH { HARD + HEADS } else { HARD };
        self.grow_to(most, bytes.saturating_add(EACH))
    }

    /// Counts nothing any more.
    fn release(&self) {
        let mut totals = self.requests.totals();
        self.clear_state(&mut totals);
        totals.bytes -= self.weight.bytes.swap(0, Relaxed);
    }

    /// Records that the request neither waits for its client nor is about to end.
    fn clear_state(&self, totals: &mut Totals) {
        let bytes = self.weight.bytes.load(Relaxed);
        if self.weight.is_leaving.swap(false, Relaxed) {
            totals.leaving -= bytes;
        }
        if totals.waiting.remove(&self.weight.waiting_number.swap(0, Relaxed)).is_some() {
            totals.waiting_bytes -= bytes;
        }
    }

    /// Records that the request waits for its client. `end` is cancelled if others need its memory.
    pub fn set_waiting(&self, end: CancellationToken) {
        let mut totals = self.requests.totals();
        totals.last_number += 1;
        let number = totals.last_number;
        self.weight.waiting_number.store(number, Relaxed);
        totals.waiting_bytes += self.weight.bytes.load(Relaxed);
        totals.waiting.insert(number, (Arc::clone(&self.weight), end));
    }

    /// Records that the request does not wait for its client.
    fn clear_waiting(&self) {
        self.clear_state(&mut self.requests.totals());
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.release();
    }
}

/// The body of a request, without trailers.
pub struct Arriving {
    body: Incoming,
    request: Arc<UnderWay>,
    connection: Arc<Connection>,
    /// Present while the client has not sent all of it.
    waiting: Option<WaitingForClient>,
}

struct WaitingForClient {
    request: Arc<UnderWay>,
    _arrival: Arrival,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Arriving {
    /// The body of this request of this connection.
    pub fn new(body: Incoming, request: Arc<UnderWay>, connection: Arc<Connection>) -> Self {
        Self { body, request, connection, waiting: None }
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        // Before its next frame: a request that was told to end must not go on.
        if let Some(waiting) = &mut this.waiting
            && waiting.end.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(Crowded.into())));
        }
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) else {
            let waiting = this.waiting.get_or_insert_with(|| {
                let end = CancellationToken::new();
                this.request.set_waiting(end.clone());
                WaitingForClient {
                    request: Arc::clone(&this.request),
                    _arrival: this.connection.arrival(),
                    end: Box::pin(end.cancelled_owned()),
                }
            });
            ready!(waiting.end.as_mut().poll(context));
            return Poll::Ready(Some(Err(Crowded.into())));
        };
        let data = match frame {
            Some(Ok(frame)) => frame.into_data().ok(),
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => None,
        };
        let Some(data) = data else {
            this.waiting = None;
            return Poll::Ready(None);
        };
        // Twice, because the parts are put together.
        if this.request.grow(2 * data.len()) {
            Poll::Ready(Some(Ok(Frame::data(data))))
        } else {
            Poll::Ready(Some(Err(Crowded.into())))
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for WaitingForClient {
    fn drop(&mut self) {
        self.request.clear_waiting();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_wait_longest_for_their_clients_make_room() {
        let requests = Arc::new(Requests::default());
        let admit = || requests.admit(&Request::new(()), true);
        let working: Vec<_> = (0..SOFT / EACH / 2).map(|_| admit().unwrap()).collect();
        let ends: Vec<_> = (0..SOFT / EACH / 2).map(|_| CancellationToken::new()).collect();
        let mut waiting = Vec::new();
        for end in &ends {
            let one = admit().unwrap();
            one.set_waiting(end.clone());
            waiting.push(one);
        }
        let ended = || ends.iter().filter(|end| end.is_cancelled()).count();
        let before = ended();
        let further: Vec<_> = (0..100).map(|_| admit().unwrap()).collect();
        assert!(ended() >= before + 100, "{before} and then {}", ended());
        assert!(ends.first().unwrap().is_cancelled() && !ends.last().unwrap().is_cancelled());
        // They have not left yet.
        let mut rest = Vec::new();
        while let Some(one) = admit() {
            rest.push(one);
        }
        assert!(!further.first().unwrap().grow(EACH));
        drop(waiting);
        assert!(admit().is_some());
        drop((working, further, rest));
        let totals = requests.totals();
        assert_eq!((totals.bytes, totals.leaving, totals.waiting.len()), (0, 0, 0));
        assert_eq!(totals.waiting_bytes, 0);
    }

    #[test]
    fn calls_that_work_end_no_few_that_wait_and_leave_room_for_probes() {
        let requests = Arc::new(Requests::default());
        let call = || requests.admit(&Request::new(()), false);
        let (fetched, end) = (call().unwrap(), CancellationToken::new());
        fetched.set_waiting(end.clone());
        let mut working = Vec::new();
        while let Some(call) = call() {
            working.push(call);
        }
        assert!(!end.is_cancelled());
        assert!(requests.admit(&Request::new(()), true).unwrap().replace_with_answer(2));
        drop((fetched, working));
        let totals = requests.totals();
        assert_eq!((totals.bytes, totals.waiting_bytes), (0, 0));
    }

    #[test]
    fn request_that_ends_by_itself_is_not_about_to_end() {
        let requests = Arc::new(Requests::default());
        let [large, further] = [(); 2].map(|()| requests.admit(&Request::new(()), true).unwrap());
        assert!(large.grow(2 * WAITING));
        let end = CancellationToken::new();
        large.set_waiting(end.clone());
        assert!(further.grow(SOFT - WAITING) && end.is_cancelled() && requests.is_crowded());
        large.clear_waiting();
        assert!(!requests.is_crowded());
    }

    #[test]
    fn bodies_and_large_answers_leave_room_for_probes() {
        let requests = Arc::new(Requests::default());
        let admit = || requests.admit(&Request::new(()), true);
        let large = admit().unwrap();
        let rest = HARD - requests.totals().bytes;
        assert!(large.grow(rest) && !large.grow(1));
        let probe = admit().unwrap();
        assert!(!probe.grow(1) && probe.replace_with_answer(2));
        assert!(!admit().unwrap().replace_with_answer(EACH + 1));
        let mut heads = Vec::new();
        while let Some(head) = admit() {
            heads.push(head);
        }
        assert!(requests.totals().bytes <= HARD + HEADS);
    }

    #[test]
    fn texts_of_a_head_count() {
        let requests = Arc::new(Requests::default());
        let text = "a".repeat(10_000);
        let uri = format!("/{text}?{text}");
        let request = Request::get(uri).header(&text, &text).body(()).unwrap();
        let _admitted = requests.admit(&request, true).unwrap();
        assert!(requests.totals().bytes >= EACH + FIELD + 4 * text.len());
    }
}
