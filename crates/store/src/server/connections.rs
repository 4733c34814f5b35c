//! The connections of all addresses of a server. They end in two steps: the server drains, then it
//! closes them.
//!
//! A connection must not be closed while a request may be on its way to it: that request would
//! fail. Each HTTP/2 connection gets a GOAWAY as soon as the server drains. An HTTP/1.1 connection
//! gets `connection: close` with its next answer; the second step closes the connections that stay
//! idle.

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, pending};
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connection::Connection;
use super::file_limit::connection_limits;
use super::listener::{Listener, Stream};
use super::log_pace::LogPace;
use super::open::OpenConnections;
use super::paced::Paced;
use super::requests::{Arriving, Requests};
use super::tracked::Tracked;

/// Callers of an address.
#[derive(Clone, Copy, Debug)]
pub enum Callers {
    /// Proxies, with so many requests at once on each HTTP/2 connection.
    Proxies(u32),
    /// Operators and probes, whose requests find room while those of proxies take all the rest.
    Operators,
}

/// Most requests at once of one HTTP/2 connection of a filter or an operator.
pub const STREAMS: u32 = 128;
/// Most bytes of a head, in HTTP/2 with 32 more for each field (which may be one byte on the wire).
/// In HTTP/1.1 also of a body that arrived but is not read yet; these bytes count for no request
/// until the head is whole, and the number of connections bounds them.
const HEAD: u32 = 16 * 1024;
/// How long a new connection waits for an old one to leave, before further ones must.
const ROOM: Duration = Duration::from_millis(50);
/// How often an HTTP/2 connection is probed, and how long it may take to answer.
const PROBE: Duration = Duration::from_secs(20);
/// How long accepted calls may take to be answered, once nothing more is accepted.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// The connections of a server, and the work that outlives them.
///
/// [`accept`](Self::accept) serves one listener; [`run`](Self::run) runs until the shutdown and
/// then ends the connections of all listeners.
#[derive(Default)]
pub struct Connections {
    draining: CancellationToken,
    closing: CancellationToken,
    open: TaskTracker,
    work: TaskTracker,
    requests: Arc<Requests>,
}

impl Connections {
    /// Whether the server is draining.
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Cancelled when the server begins to drain.
    pub fn draining(&self) -> CancellationToken {
        self.draining.clone()
    }

    /// Starts work that outlives its connection. The shutdown waits for it.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.work.spawn(work)
    }

    /// Like [`spawn`](Self::spawn), from a thread that may be none of the runtime.
    pub fn spawn_on<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
        runtime: &Handle,
    ) -> JoinHandle<T> {
        self.work.spawn_on(work, runtime)
    }

    /// Runs `accepting` until `shutdown`, which yields how long to drain.
    ///
    /// While the server drains, it asks its connections to close and still serves new ones, so that
    /// no caller loses a call before it has found another store. Then it drops `accepting`, which
    /// owns the listeners, and spends at most 5 s on the calls that it has accepted.
    pub async fn run(
        &self,
        accepting: impl Future<Output = ()>,
        shutdown: impl Future<Output = Duration>,
    ) {
        {
            let mut accepting = pin!(accepting);
            let drain = tokio::select! {
                () = &mut accepting => Duration::ZERO,
                drain = shutdown => drain,
            };
            self.draining.cancel();
            // Accepting never ends by itself.
            let _ = timeout(drain, accepting).await;
        }
        self.closing.cancel();
        let end = tokio::time::Instant::now() + LAST_ANSWERS;
        self.open.close();
        let mut answered = timeout_at(end, self.open.wait()).await.is_ok();
        self.work.close();
        answered &= timeout_at(end, self.work.wait()).await.is_ok();
        if !answered {
            let limit = LAST_ANSWERS.as_secs();
            tracing::warn!("gave up calls that were still under way after {limit} s");
        }
    }

    /// Accepts connections of these callers, and answers their requests with `respond`. Beyond
    /// their limit, connections make room for which the server does not work. Never returns.
    pub async fn accept<S, F, B>(&self, listener: &Listener, callers: Callers, respond: S)
    where
        S: Fn(Request<Arriving>) -> F + Clone + Send + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let accepting = self.accept_all(listener, callers, respond);
        match &listener.tls {
            Some(tls) => drop(tokio::join!(accepting, tls.keep_read())),
            None => accepting.await,
        }
    }

    async fn accept_all<S, F, B>(&self, listener: &Listener, callers: Callers, respond: S)
    where
        S: Fn(Request<Arriving>) -> F + Clone + Send + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
    {
        let limits = connection_limits();
        let (most, streams, has_probes) = match callers {
            Callers::Proxies(streams) => (limits.calls, streams, false),
            Callers::Operators => (limits.admin, STREAMS, true),
        };
        let permits = Arc::new(Semaphore::new(most));
        let mut builder = auto::Builder::new(TokioExecutor::new());
        // The idle timeout of the connection also bounds the time for a head.
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_buf_size(HEAD as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(PROBE)
            .keep_alive_timeout(PROBE)
            .max_header_list_size(HEAD)
            .max_concurrent_streams(streams);
        let all = Arc::new(OpenConnections::default());
        let [failures, crowds]: [LogPace; 2] = Default::default();
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Most likely no file descriptor is free, so other connections must end first.
                    if let Some(left_out) = failures.due() {
                        tracing::warn!("cannot accept a connection: {error}{left_out}");
                    }
                    all.make_room(most);
                    sleep(ROOM).await;
                    continue;
                }
            };
            let permit = loop {
                if let Ok(permit) = Arc::clone(&permits).try_acquire_owned() {
                    break permit;
                }
                if let Some(left_out) = crowds.due() {
                    let address = listener.address();
                    tracing::warn!(
                        "{most} connections to {address} are open, so idle ones make room for \
                         new ones{left_out}"
                    );
                }
                all.make_room(most);
                // The semaphore is never closed.
                if let Ok(Ok(permit)) = timeout(ROOM, Arc::clone(&permits).acquire_owned()).await {
                    break permit;
                }
            };
            let connection = Arc::new(Connection::new());
            let entered = all.enter(Arc::clone(&connection));
            let (answering, draining) = (Arc::clone(&connection), self.draining());
            let (respond, requests) = (respond.clone(), Arc::clone(&self.requests));
            let pacing = Arc::clone(&self.requests);
            let service = service_fn(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                let (connection, draining) = (Arc::clone(&answering), draining.clone());
                let is_http2 = request.version() == Version::HTTP_2;
                let answering = connection.answering();
                // Now, so that nothing is kept of a request for which there is no room.
                let admitted = requests.admit(&request, has_probes).map(|under_way| {
                    let body =
                        |body| Arriving::new(body, Arc::clone(&under_way), Arc::clone(&connection));
                    // In a box, whose memory is free as soon as there is a response.
                    (Box::pin(respond(request.map(body))), under_way)
                });
                async move {
                    if is_http2 {
                        connection.speaks_http2();
                    }
                    let mut response = match admitted {
                        Some((response, under_way)) => {
                            Tracked::answer(response.await, &connection, answering, under_way)
                        }
                        None => Tracked::busy(&connection, answering),
                    };
                    if !is_http2 && draining.is_cancelled() {
                        response
                            .headers_mut()
                            .insert(CONNECTION, HeaderValue::from_static("close"));
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            let builder = builder.clone();
            let (tls, age) = (listener.tls.clone(), listener.age);
            let (draining, closing) = (self.draining(), self.closing.clone());
            self.open.spawn(async move {
                let _held = (permit, entered);
                let closed = connection.closed().clone();
                let mut timed_out = pin!(connection.timed_out());
                let stream = match tls {
                    None => stream,
                    Some(tls) => tokio::select! {
                        accepted = tls.accept(stream) => match accepted {
                            Ok(stream) => Box::new(stream) as Box<dyn Stream>,
                            Err(error) => {
                                tracing::debug!("a connection ended in its handshake: {error}");
                                return;
                            }
                        },
                        () = &mut timed_out => return,
                        () = closed.cancelled() => return,
                        () = closing.cancelled() => return,
                    },
                };
                let stream = Paced::new(stream, pacing);
                let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
                let mut asked_to_close = false;
                let must_close = async || {
                    tokio::select! {
                        () = draining.cancelled() => {}
                        () = after(age.map(|age| spread(age.most, 0.1))) => return,
                    }
                    tokio::select! {
                        () = connection.http2() => {}
                        () = closing.cancelled() => {}
                    }
                };
                loop {
                    tokio::select! {
                        biased;
                        ended = serving.as_mut() => {
                            if let Err(error) = ended {
                                tracing::debug!("a connection ended: {error}");
                            }
                            return;
                        }
                        () = &mut timed_out => {
                            tracing::debug!("closed a connection at its idle timeout");
                            return;
                        }
                        () = closed.cancelled() => {
                            tracing::debug!("closed a connection, because others need its place");
                            return;
                        }
                        () = must_close(), if !asked_to_close => {
                            asked_to_close = true;
                            serving.as_mut().graceful_shutdown();
                        }
                        () = after(age.map(|age| age.grace)), if asked_to_close => {
                            tracing::debug!("closed a connection at its longest age");
                            return;
                        }
                    }
                }
            });
        }
    }
}

/// Waits for this time; for ever without one.
async fn after(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}

/// This time, longer or shorter at random by up to this part of it (0 to 1), so that what began
/// together does not happen together again.
pub fn spread(time: Duration, part: f64) -> Duration {
    let random = f64::from(RandomState::new().hash_one(time) as u32) / f64::from(u32::MAX);
    time.mul_f64((1.0 + part * (2.0 * random - 1.0)).max(0.0))
}
