//! The HTTP server: HTTP/1.1 and HTTP/2 without TLS on one address, and the admin address.

mod admin;
mod alarm;
mod body;
mod caller;
mod descriptors;
mod dials;
mod ending;
mod events;
mod listen;
mod metrics;
mod page;
mod pending;
mod query;
mod reply;
mod reserve;
mod token;

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONNECTION, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use quotagate_quota::protocol::RESERVE_PATH;
use quotagate_quota::protocol::dials::DIALS_PATH;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_util::task::TaskTracker;

use self::admin::guard::{Guard, Reach};
use self::alarm::Alarm;
use self::caller::Caller;
use self::ending::Ending;
use self::events::Events;
use self::metrics::Metrics;
use self::reply::{Payload, Refusal};
use crate::operate::Operate;
use crate::store::Store;
use crate::watch::Watch;

pub use self::descriptors::raise_file_limit;
pub use self::listen::{ListenAddr, ListenAddrError, Listener};
pub use self::token::{TokenError, Tokens};

/// Most calls at once, so that their bodies of at most 1 MiB fill no more than 1 GiB; a worker of Envoy has 4. A call
/// is over when it is carried out and its answer is fetched.
const CALLS: usize = 1024;
/// Most calls at once of one HTTP/2 connection.
const STREAMS: u32 = 128;
/// Most bytes of an HTTP/1.1 head, and of what has arrived of a body and is not read yet.
const HEAD: usize = 64 * 1024;
/// How often an HTTP/2 connection is probed, and how long it may take to answer.
const PROBE: Duration = Duration::from_secs(20);
/// How long calls that were accepted may take to be answered, once nothing more is accepted.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What the server serves.
pub struct App {
    store: Arc<dyn Store>,
    tokens: Option<Tokens>,
    guard: Guard,
    operate: Operate,
    watch: Watch,
    events: Events,
    ending: Ending,
    metrics: Metrics,
    /// Ends the waits of calls.
    alarm: Alarm,
    /// Work that outlives the connection it came by.
    tasks: TaskTracker,
    /// One for each call under way.
    places: Arc<Semaphore>,
}

impl App {
    /// Serves `store` to callers and operators with one of `tokens`, or to everyone where they are `None`.
    pub fn new(store: Arc<dyn Store>, tokens: Option<Tokens>) -> Self {
        let watch = Watch::default();
        let metrics = Metrics::new(&*store, &watch);
        let operate = Operate::new(Arc::clone(&store));
        let guard = Guard { tokens: tokens.clone(), hosts: Vec::new() };
        let (alarm, tasks) = (Alarm::default(), TaskTracker::new());
        let places = Arc::new(Semaphore::new(CALLS));
        let (events, ending) = (Events::default(), Ending::default());
        Self { store, tokens, guard, operate, watch, events, ending, metrics, alarm, tasks, places }
    }

    /// Asks operators for one of these tokens, which callers do not have.
    #[must_use]
    pub fn admin_tokens(mut self, tokens: Option<Tokens>) -> Self {
        self.guard.tokens = tokens.or(self.guard.tokens);
        self
    }

    /// Lets operators ask for the admin address by these names too.
    #[must_use]
    pub fn admin_hosts(mut self, hosts: Vec<String>) -> Self {
        self.guard.hosts = hosts;
        self
    }

    fn authorize(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let given = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        match &self.tokens {
            Some(tokens) if !tokens.admits(given) => Err(Refusal::Token),
            _ => Ok(()),
        }
    }
}

/// Which of the two addresses a connection came by.
#[derive(Clone, Copy)]
enum Door {
    Calls,
    Admin(Reach),
}

/// Serves calls on `calls` and operators on `admin` until `shutdown`, which yields how long to drain.
///
/// While it drains it is not ready, asks its connections to close, and serves new ones, so that no caller loses a call
/// before it has found another store. After that it accepts nothing more, and answers what it accepted for at most 5 s.
pub async fn run(calls: Listener, admin: Listener, app: App, shutdown: impl Future<Output = Duration>) {
    let app = Arc::new(app);
    let ringing = Arc::clone(&app);
    let alarm = tokio::spawn(async move { ringing.alarm.ring().await });
    let reading = Arc::clone(&app);
    let reader = tokio::spawn(async move {
        tokio::join!(reading.operate.keep_fresh(), reading.watch.keep_swept(), events::publish(&reading))
    });
    let connections = TaskTracker::new();
    let reach = Reach::of(admin.address());
    if !app.guard.serves(reach) {
        tracing::warn!("{}", Refusal::Open);
    }
    let (most_calls, most_admin) = descriptors::bounds();
    {
        let mut accepting = pin!(async {
            tokio::join!(
                accept(&calls, Door::Calls, most_calls, &app, &connections),
                accept(&admin, Door::Admin(reach), most_admin, &app, &connections),
            )
        });
        let drain = tokio::select! {
            _ = &mut accepting => Duration::ZERO,
            drain = shutdown => drain,
        };
        app.ending.drain();
        // Accepting never ends by itself.
        let _ = timeout(drain, accepting).await;
    }
    drop((calls, admin));
    app.ending.close();
    let end = tokio::time::Instant::now() + LAST_ANSWERS;
    connections.close();
    let mut answered = timeout_at(end, connections.wait()).await.is_ok();
    app.tasks.close();
    answered &= timeout_at(end, app.tasks.wait()).await.is_ok();
    alarm.abort();
    reader.abort();
    if !answered {
        tracing::warn!("gave up calls that were still under way after {} s", LAST_ANSWERS.as_secs());
    }
}

async fn accept(listener: &Listener, door: Door, most: usize, app: &Arc<App>, connections: &TaskTracker) {
    let places = Arc::new(Semaphore::new(most));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // How long a head may take is the caller's matter.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PROBE)
        .keep_alive_timeout(PROBE)
        .max_concurrent_streams(STREAMS);
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: others must end first.
                tracing::warn!("cannot accept a connection: {error}");
                sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let caller = Arc::new(Caller::new());
        let (of_service, serving) = (Arc::clone(&caller), Arc::clone(app));
        let service = service_fn(move |request: Request<Incoming>| {
            let (app, caller) = (Arc::clone(&serving), Arc::clone(&of_service));
            async move {
                let _turn = caller.turn();
                let multiplexed = request.version() == Version::HTTP_2;
                if multiplexed {
                    caller.speaks_http2();
                }
                let mut response = respond(&app, door, request).await;
                if !multiplexed && app.ending.is_draining() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                response.body_mut().left_to(&caller);
                Ok::<_, Infallible>(response)
            }
        });
        let connection = builder.serve_connection(TokioIo::new(stream), service).into_owned();
        let app = Arc::clone(app);
        connections.spawn(async move {
            let _place = place;
            let mut connection = pin!(connection);
            let mut outstays = pin!(caller.outstays());
            let mut asked = false;
            loop {
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => {
                        if let Err(error) = ended {
                            tracing::debug!("a connection ended: {error}");
                        }
                        return;
                    }
                    () = &mut outstays => {
                        tracing::debug!("ended a connection that kept the store waiting");
                        return;
                    }
                    () = app.ending.is_due(&caller), if !asked => {
                        asked = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        });
    }
}

/// Errors become answers here.
async fn respond(app: &Arc<App>, door: Door, request: Request<Incoming>) -> Response<Payload> {
    let received = Instant::now();
    match door {
        Door::Admin(reach) => {
            admin::serve(app, request, reach).await.unwrap_or_else(|refusal| refusal.answer())
        }
        Door::Calls if request.uri().path() == DIALS_PATH => {
            let answer = match *request.method() {
                Method::GET => dials::serve(app, &request).await,
                Method::PUT | Method::DELETE => Err(Refusal::CallAddress),
                _ => Err(Refusal::Method("GET")),
            };
            answer.unwrap_or_else(|refusal| refusal.answer())
        }
        Door::Calls => {
            let answer = match (request.uri().path(), request.method()) {
                (RESERVE_PATH, &Method::POST) => reserve::serve(app, request, received).await,
                (RESERVE_PATH, _) => Err(Refusal::Method("POST")),
                (path, _) if admin::serves(path) => Err(Refusal::CallAddress),
                _ => Err(Refusal::NoSuchPath),
            };
            let response = answer.unwrap_or_else(|refusal| refusal.answer());
            app.metrics.call(response.status().as_u16(), received.elapsed());
            response
        }
    }
}
